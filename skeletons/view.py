"""What a transformation sees of a target, and what it gives back.

Data only; nothing here touches a file or a module of the target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedback.target import OperatorInfo, Parameter


@dataclass(frozen=True)
class TargetView:
    """A state of the target as text and numbers.

    `sources`: editable files, path relative to the target's root -> text. `operators`: those that run under `config`.
    `facts`: observations of a profiled run and of the machine, flat names. `launch_space`: the start parameters and
    their sensible values.
    """

    sources: Mapping[str, str]
    operators: tuple[OperatorInfo, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    launch_space: tuple[Parameter, ...] = ()

    def operator_of(self, path: str) -> OperatorInfo | None:
        """The operator whose selected implementation stands in `path`."""
        return next((op for op in self.operators if op.files.get(op.selected) == path), None)

    def selected_file(self, operator: OperatorInfo) -> str | None:
        """The file of the implementation that runs, when it is among the sources."""
        path = operator.files.get(operator.selected)
        return path if path in self.sources else None

    def live_files(self) -> tuple[str, ...]:
        """Python files worth transforming, sorted: all but implementations that no operator selects."""
        idle = {path for op in self.operators for name, path in op.files.items() if name != op.selected}
        idle -= {op.files.get(op.selected) for op in self.operators}
        return tuple(sorted(path for path in self.sources if path.endswith(".py") and path not in idle))


@dataclass(frozen=True)
class Change:
    """What a move does: new texts of files (None deletes one) and start parameters.

    A dotted parameter name addresses an entry of a table: `{"operators.attention": "native"}` sets that one entry.
    """

    files: Mapping[str, str | None] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files or self.launch)


@dataclass(frozen=True)
class Site:
    """One place where a transformation applies.

    `roles`: roles of the operators it stands in (empty outside operators). `share_facts`: facts whose sum is the
    share it acts on, where the file does not tell. `assumes`: what the analysis could not prove and a probe must
    check. `payload`: private to the transformation. `variant`: which of several ways to fill the holes this is; a move
    takes sites of one.
    """

    path: str
    line: int
    symbol: str
    detail: str
    roles: tuple[str, ...] = ()
    share_facts: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    changes_numerics: bool = False
    payload: tuple[str, ...] = ()
    variant: str = ""

    @property
    def label(self) -> str:
        """`path:line Class.method: detail`."""
        return f"{self.path}:{self.line} {self.symbol}: {self.detail}"


@dataclass(frozen=True)
class Decline:
    """A place that looks right and is not, or a whole target where nothing is (`path` empty): with the reason."""

    reason: str
    path: str = ""
    line: int = 0
    symbol: str = ""

    @property
    def label(self) -> str:
        """`path:line Class.method: reason`, or the reason alone."""
        return f"{self.path}:{self.line} {self.symbol}: {self.reason}" if self.path else self.reason


def digest(value: Any) -> str:
    """SHA-256 over canonical JSON, first 16 hex digits: the same content has the same key in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
