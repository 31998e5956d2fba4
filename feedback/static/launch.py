"""Validity of a launch configuration, as the trusted tree sees it, for a tree that may hold other implementations.

The trusted tree knows which parameters exist and what they may be. Which implementations exist is a matter of the
candidate's own files: it may have one more (it wrote it) or one less (a starting state left it out).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from feedback.oracle import Oracle
from feedback.static.flaws import Flaw
from feedback.target import OperatorInfo


def launch_flaws(config: dict[str, Any], root: Path, oracle: Oracle) -> list[Flaw]:
    """One hard flaw per reason why `config` cannot start on the tree at `root`: `parameter: message`."""
    operators = oracle.operators(config)
    profile = oracle.description().profile_path
    flaws = []
    for problem in oracle.problems(config):
        if not implemented_here(problem.parameter, config, root, operators):
            flaws.append(Flaw(profile, None, "launch", f"{problem.parameter}: {problem.message}"))
    for operator in operators:
        file = operator.files.get(operator.selected)
        if file is not None and not (root / file).is_file():
            text = f"operators.{operator.name}: {operator.selected!r} has no file {file} in this tree"
            flaws.append(Flaw(profile, None, "launch", text))
    return flaws


def implemented_here(
    parameter: str, config: Mapping[str, Any], root: Path, operators: tuple[OperatorInfo, ...]
) -> bool:
    """Whether a choice that the trusted tree does not know names a file that this tree has in the operator's folder."""
    value: Any = config
    for part in parameter.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    operator = next((o for o in operators if o.name == parameter.split(".")[-1]), None)
    if operator is None or not isinstance(value, str) or "/" in value:
        return False
    folders = {PurePosixPath(file).parent for file in operator.files.values()}
    return any((root / folder / f"{value}.py").is_file() for folder in folders)
