"""The file that says on what a kernel is tried: TOML or JSON, read whole or refused with the place of the mistake.

reference = "reference.py::merge"        # float64 numpy, called with the arguments that it names; runs in a
                                         # worker that never sees the kernel
devices = ["cuda:90", "hip:gfx942"]      # compiled for; all known ones by default
must_compile = ["cuda:90"]               # where not compiling refutes; elsewhere it is a fact about where it runs
pretend = "cuda:90"                      # what code that asks for its device at import is told

[defaults]                               # of every case
bound = 1e-6                             # largest |error| / largest |expected|, a number or a table by output
grid = ["cdiv(V, BLOCK_V)", 2]           # of a kernel; a plain function has none
outputs = ["states"]                     # arguments that are compared; what a function returns: `returns`
meta = { V = 64, BLOCK_V = 32, num_warps = 4 }

[[case]]
name = "weak-decay"
none = ["h0"]                            # arguments that are None
generate = "inputs.py::chain"            # optional: function(seed, **parameters) that gives arrays by name
parameters = { ranks = 64 }
arguments.ranks = 64                     # a number is passed as it is
arguments.s_ext = { shape = [64, 2, 64, 64], distribution = "normal" }
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from feedback.errors import UserError
from feedback.kernels.arguments import DISTRIBUTIONS, Argument
from feedback.kernels.devices import DEVICES
from feedback.target import Wire


class KernelCase(Wire):
    """One condition. `bound` by output, "" for all others."""

    name: str = Field(min_length=1)
    arguments: dict[str, Argument | bool | int | float | str] = Field(default_factory=dict)
    none: tuple[str, ...] = ()
    generate: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    grid: tuple[int | str, ...] | None = None
    meta: dict[str, bool | int | float | str] = Field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    bound: float | dict[str, float]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.outputs or self.returns):
            raise ValueError("nothing is compared: name outputs, or returns of a function")
        for name, argument in self.arguments.items():
            if isinstance(argument, Argument) and argument.distribution not in (None, *DISTRIBUTIONS):
                known = ", ".join(sorted(DISTRIBUTIONS))
                raise ValueError(f"{name} has no such distribution {argument.distribution!r}; there are {known}")
        missing = [name for name in self.outputs if name not in self.arguments and self.generate is None]
        if missing:
            raise ValueError(f"output {', '.join(missing)} is no argument")
        compared = (*self.outputs, *self.returns)
        named = self.bound if isinstance(self.bound, dict) else dict.fromkeys(compared, self.bound)
        unbound = [name for name in compared if name not in named]
        if unbound or any(not value > 0 for value in named.values()):
            raise ValueError(f"give a positive bound for {', '.join(unbound) or 'every output'}")
        return self

    def bound_of(self, output: str) -> float:
        """Largest |error| over the largest |expected| that is allowed."""
        return self.bound[output] if isinstance(self.bound, dict) else self.bound


class KernelCases(Wire):
    """A whole file; `folder` is where its relative paths start."""

    folder: Path
    reference: str
    devices: tuple[str, ...] = tuple(DEVICES)
    must_compile: tuple[str, ...] = ()
    pretend: str | None = None
    cases: tuple[KernelCase, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _known(self) -> Self:
        pretended = () if self.pretend is None else (self.pretend,)
        unknown = [name for name in (*self.devices, *self.must_compile, *pretended) if name not in DEVICES]
        if unknown:
            raise ValueError(f"unknown device {', '.join(unknown)}; known are {', '.join(DEVICES)}")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise ValueError("two cases have the same name")
        return self

    def place(self, text: str) -> tuple[Path, str]:
        """`file.py::function` as an existing file and a name; raises `UserError`."""
        return place(text, self.folder)


def place(text: str, folder: Path) -> tuple[Path, str]:
    """`file.py::name`, the file relative to `folder`, as an existing file and a name; raises `UserError`."""
    file, separator, name = text.rpartition("::")
    if not separator or not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{text}: write it as file.py::name")
    path = (folder / Path(file).expanduser()).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{text}: there is no Python file {path}")
    return path, name


def read(path: Path) -> KernelCases:
    """A file of cases. Raises `UserError` that names the file, the case and what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: a table was expected")
    defaults, given = data.pop("defaults", {}), data.pop("case", [])
    if not isinstance(defaults, dict) or not isinstance(given, list) or not all(isinstance(c, dict) for c in given):
        raise UserError(f"{path}: [defaults] is a table, [[case]] a list of tables")
    cases = [_merged(defaults, case) for case in given]
    try:
        return KernelCases(folder=path.resolve().parent, cases=tuple(KernelCase(**case) for case in cases), **data)
    except ValidationError as error:
        raise UserError(f"{path}: {_first(error, cases)}") from error
    except TypeError as error:
        raise UserError(f"{path}: {error}") from error


def _merged(defaults: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """A case over the defaults; tables of arguments, constants and parameters are joined."""
    joined = {name: {**defaults.get(name, {}), **case.get(name, {})} for name in ("arguments", "meta", "parameters")}
    return {**defaults, **case, **joined}


def _first(error: ValidationError, cases: list[dict[str, Any]]) -> str:
    """The first mistake in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    named = "case" if error.title == KernelCase.__name__ else ""
    return f"{named} {where}: {what}".strip(" :") if where else f"{named} {what}".strip()
