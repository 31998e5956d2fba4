"""Experiments: found by their folder, run, shown as a table and a picture.

An experiment is a folder with `experiment.py`: its docstring begins with the question it asks, and `run(context) ->
Result` answers it. Shipped ones stand in the package `experiments`; a folder given by path works as well. Listing
reads the docstrings and imports nothing.

    infra-agent experiment list
    infra-agent experiment run NAME [--json] [--out DIR]
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from feedback.errors import UserError
from infra_agent import paths
from infra_agent.report.svg import Canvas
from infra_agent.wording import did_you_mean

FILE = "experiment.py"
PACKAGE = "experiments"


@dataclass(frozen=True)
class Context:
    """What an experiment gets: a folder of its own for what it leaves behind, a way to say what it is doing, a seed,
    and options (`--option name=value`) that it may know.
    """

    out: Path
    say: Callable[[str], None]
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def option(self, name: str, default: str) -> str:
        """An option, or its default."""
        return self.options.get(name, default)


@dataclass(frozen=True)
class Result:
    """The answer. `rows` in the order of `columns`; `claims` are what the experiment set out to show, each true or
    false; `data` is everything else worth keeping (JSON values).
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    picture: Canvas | None = None
    notes: tuple[str, ...] = ()
    claims: Mapping[str, bool] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells under {len(self.columns)} columns: {row!r}")

    def to_json(self, name: str) -> dict[str, Any]:
        """As a JSON value; rows become objects."""
        return {
            "experiment": name,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "claims": dict(self.claims),
            "notes": list(self.notes),
            "data": dict(self.data),
        }


@dataclass(frozen=True)
class Found:
    """An experiment folder and the question it asks."""

    name: str
    folder: Path
    question: str


def shipped_folder() -> Path:
    """Where the shipped experiments stand."""
    return paths.shipped("evolution").parent


def discover(folder: Path | None = None) -> list[Found]:
    """All experiments below a folder (the shipped ones), by name. Imports nothing."""
    found = (folder or shipped_folder()).glob(f"*/{FILE}")
    return [Found(path.parent.name, path.parent, _question(path)) for path in sorted(found)]


def find(name: str) -> Found:
    """A shipped experiment by name, or any by its folder; `UserError` when there is none."""
    as_path = Path(name).expanduser()
    if "/" in name or as_path.suffix == ".py":
        folder = as_path.parent if as_path.name == FILE else as_path
        if not (folder / FILE).is_file():
            raise UserError(f"there is no experiment in {folder} (no {FILE})")
        return Found(folder.absolute().name, folder.absolute(), _question(folder / FILE))
    known = {experiment.name: experiment for experiment in discover()}
    if name not in known:
        hint = did_you_mean(name, known) or "; there are " + ", ".join(sorted(known))
        raise UserError(f"no experiment is called {name!r}{hint}")
    return known[name]


def execute(
    experiment: Found,
    out: Path | None = None,
    say: Callable[[str], None] = print,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
) -> tuple[Result, Path]:
    """Run one and leave `result.json`, `table.txt` and `picture.svg` in `out` (by default a new folder of the
    user's).
    """
    folder = paths.make_dir(out.expanduser().absolute() if out else _own_folder(experiment.name))
    run = getattr(_module(experiment), "run", None)
    if not callable(run):
        raise UserError(f"{experiment.folder / FILE} defines no run(context)")
    result = run(Context(folder, say, seed, dict(options or {})))
    if not isinstance(result, Result):
        raise UserError(f"{experiment.folder / FILE}: run returned {type(result).__name__}, not a Result")
    told = json.dumps(result.to_json(experiment.name), indent=1, ensure_ascii=False, default=str)
    (folder / "result.json").write_text(told + "\n", encoding="utf-8")
    (folder / "table.txt").write_text(table(result), encoding="utf-8")
    if result.picture is not None:
        (folder / "picture.svg").write_text(result.picture.render(standalone=True), encoding="utf-8")
    return result, folder


def options_of(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping; `UserError` for another shape."""
    pairs = [item.partition("=") for item in given]
    wrong = next((item for item, (name, equals, _) in zip(given, pairs, strict=True) if not (name and equals)), None)
    if wrong is not None:
        raise UserError(f"--option {wrong}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def run_experiment(
    name: str, as_json: bool = False, out: Path | None = None, seed: int = 0, options: Mapping[str, str] | None = None
) -> int:
    """Run one for a person: what it is doing on standard error, its table (or JSON) on standard output, and where the
    rest lies. Returns the exit code: 1 when something that it set out to show does not hold.
    """
    experiment = find(name)
    print(experiment.question, file=sys.stderr)
    result, folder = execute(experiment, out, _say, seed, options)
    if as_json:
        print(json.dumps(result.to_json(experiment.name), indent=1, ensure_ascii=False, default=str))
    else:
        print(table(result), end="")
    print(f"picture, table and data: {folder}", file=sys.stderr)
    return 0 if all(result.claims.values()) else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(result: Result) -> str:
    """The rows as aligned text, then the claims and the notes."""
    cells = [list(result.columns), *([_cell(value) for value in row] for row in result.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(result.columns))]
    numeric = [all(isinstance(row[i], int | float | None) for row in result.rows) for i in range(len(result.columns))]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += ["", *(f"{'holds' if holds else 'FAILS'}: {claim}" for claim, holds in result.claims.items())]
    lines += list(result.notes)
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def _question(file: Path) -> str:
    """The first paragraph of the module's docstring, on one line."""
    try:
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"
    return " ".join(said.split("\n\n")[0].split()) or "(its docstring does not say)"


def _module(experiment: Found) -> ModuleType:
    """Import it: a shipped one as part of its package, another from its file."""
    if experiment.folder.parent == shipped_folder():
        return importlib.import_module(f"{PACKAGE}.{experiment.name}.experiment")
    name = f"_experiment_{experiment.name}"
    spec = importlib.util.spec_from_file_location(name, experiment.folder / FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _own_folder(name: str) -> Path:
    parent = paths.home() / "experiments"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tries: Sequence[Path] = [parent / f"{stamp}-{name}{'' if n == 1 else f'-{n}'}" for n in range(1, 100)]
    return next(path for path in tries if not path.exists())
