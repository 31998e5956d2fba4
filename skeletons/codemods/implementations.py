"""What a template needs to know of the implementation it stands beside: its class, its call, a free file name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

import libcst as cst

from feedback.target import OperatorInfo
from skeletons.codemods.classes import ClassView, classes
from skeletons.codemods.source import parameters, parse


class Unfit(Exception):
    """Why a template does not fit an operator."""


def selected_text(operator: OperatorInfo, path: str | None, sources: dict[str, str]) -> str:
    """The selected implementation's text. Raises `Unfit` when it may not be edited, or is native already."""
    if path is None or path not in sources:
        raise Unfit(f"the selected implementation {operator.selected} is not among the editable sources")
    if "ctypes" in sources[path] or "cpp_extension" in sources[path]:
        raise Unfit("the selected implementation is native already")
    return sources[path]


def callable_of(path: str, text: str, count: int) -> tuple[ClassView, str, list[str]]:
    """The class, method and argument names of an implementation: the one whose call takes that many tensors."""
    for owner in classes(parse(text)):
        for method in ("__call__", "forward"):
            function = owner.methods.get(method)
            listed = [p.name.value for p in parameters(function)][1:] if function is not None else []
            starred = function is not None and isinstance(function.params.star_arg, cst.Param)
            if len(listed) == count and not starred and "computed" not in listed:  # the templates' own variable
                return owner, method, listed
    raise Unfit(f"no class in {path} has a call that takes the operator's {count} tensors")


def signature(method: str, arguments: tuple[str, ...], result: str = "Tensor") -> str:
    """The method's first line inside a class, broken as a formatter does where it is too long."""
    listed = ["self", *(f"{name}: Tensor" for name in arguments)]
    line = f"    def {method}({', '.join(listed)}) -> {result}:"
    if len(line) <= 120:
        return line
    inner = "        " + ", ".join(listed)
    if len(inner) > 120:
        inner = "\n".join(f"        {each}," for each in listed)
    return f"    def {method}(\n{inner}\n    ) -> {result}:"


def free_name(operator: OperatorInfo, wanted: str) -> str:
    """A name for the new implementation that the operator does not have yet."""
    names = (wanted, *(f"{wanted}_{number}" for number in range(2, 100)))
    return next(name for name in names if name not in operator.implementations)


def filled(template: Path, holes: Mapping[str, str], label: str = "") -> str:
    """The text of a template. `$LOADER` becomes what compiles C at first use, which keeps its files under `label`."""
    loader = Path(__file__).with_name("native_loader.txt").read_text(encoding="utf-8")
    given = {**holes, "LOADER": Template(loader).substitute(LABEL=label)}
    return Template(template.read_text(encoding="utf-8")).substitute(given)
