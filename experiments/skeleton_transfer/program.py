"""Runs in a process of its own: a module before and after a transformation, through one check, compared.

    program.py source NAME          prints the source of an installed module (relative imports made absolute)
    program.py compare REQUEST      reads a JSON request and prints a JSON answer

A request: `check` (a file) and `function` in it, `seeds`, and `before` and `after`, each `{"name"}` for an installed
module, `{"name", "file"}` for a file to be imported under that name, or with `root` for one below a folder of modules.
`changed`: numbers of the lines that the transformation wrote.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any


def load(told: dict[str, str], transformed: bool) -> types.ModuleType:
    """Import a module; `TRANSFORMED` in it says which of the two it is."""
    if "root" in told:
        sys.path.insert(0, told["root"])
        module = importlib.import_module(told["name"])
    elif "file" not in told:
        module = importlib.import_module(told["name"])
    else:
        spec = importlib.util.spec_from_file_location(told["name"], told["file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[told["name"]] = module
        spec.loader.exec_module(module)
    module.TRANSFORMED = transformed  # type: ignore[attr-defined]
    return module


def source(name: str) -> str:
    """The source of an installed module, its relative imports made absolute: so it can stand in another package."""
    module = importlib.import_module(name)
    parts = (module.__package__ or "").split(".")

    def absolute(found: re.Match[str]) -> str:
        above = parts[: len(parts) - len(found["dots"]) + 1]
        return f"from {'.'.join([*above, *filter(None, [found['rest']])])} import"

    return re.sub(r"^from (?P<dots>\.+)(?P<rest>[\w.]*) import", absolute, inspect.getsource(module), flags=re.M)


def functions(code: types.CodeType) -> Iterator[types.CodeType]:
    """Every function's code in a module's, classes looked through."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from functions(constant)


def changed_functions(file: str, changed: set[int]) -> dict[str, set[int]]:
    """Functions of a file that hold changed executable lines, with those lines."""
    with open(file, encoding="utf-8") as opened:
        module = compile(opened.read(), file, "exec")
    found: dict[str, set[int]] = {}
    for code in functions(module):
        if not code.co_flags & inspect.CO_NEWLOCALS:
            continue  # a class body
        own = {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
        if own & changed:
            found[f"{code.co_qualname}:{code.co_firstlineno}"] = own & changed
    return found


class Watch:
    """Which lines of one file run."""

    def __init__(self, file: str) -> None:
        self.file, self.lines = file, set[int]()

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        return self._line

    def _line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        return self._line


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Largest difference over all seeds and outputs, relative to the largest value of an output, and what ran."""
    check = getattr(load({"name": "_check", "file": request["check"]}, False), request["function"])
    before, after = load(request["before"], False), load(request["after"], True)
    watch = Watch(request["after"]["file"])
    worst, count, problem = 0.0, 0, ""
    for seed in request["seeds"]:
        expected = check(before, seed)
        sys.settrace(watch)
        try:
            got = check(after, seed)
        finally:
            sys.settrace(None)
        for name, want in expected.items():
            have = got[name]
            count += want.numel()
            if have.shape != want.shape or have.dtype != want.dtype:
                problem = f"{name}: {have.dtype} {tuple(have.shape)} where {want.dtype} {tuple(want.shape)} was"
                continue
            scale = max(float(want.abs().max()), 1e-30)
            error = float((have.double() - want.double()).abs().max()) / scale
            worst = max(worst, error if error == error else float("inf"))
    touched = changed_functions(request["after"]["file"], set(request["changed"]))
    ran = [name for name, lines in touched.items() if lines & watch.lines]
    return {"error": worst, "values": count, "problem": problem, "changed": sorted(touched), "ran": sorted(ran)}


def main() -> None:
    """Do what the arguments say."""
    what, argument = sys.argv[1:3]
    if what == "source":
        sys.stdout.write(source(argument))
        return
    import torch

    torch.set_num_threads(1)
    with open(argument, encoding="utf-8") as file:
        request = json.load(file)
    print(json.dumps(compare(request)))


if __name__ == "__main__":
    main()
