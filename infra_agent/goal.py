"""The goal: what a run is for, what it may touch, what it may cost. A TOML file, refused before any work when wrong.

name = "throughput"
adapter = "target_engine.adapter"     # the module that speaks for the target
start = "../starts/first_run"         # a folder (relative to this file), or the name of a shipped start

[objective]
metric = "output_throughput"
workload = "main"                     # a workload of the target, or a file
held_out = "heldout"

[constraints]                         # a number, or a multiple of the start's value
nll_increase_relative = 0.005
p95_ttft_ms = "1.5x"
peak_memory_bytes = "2 GiB"           # or as a multiple, "1.2x"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from feedback.errors import UserError
from feedback.globs import matches_any
from feedback.verdict import digest_of
from infra_agent import paths, tomltext, validation
from infra_agent.metrics import DEVIATIONS, METRICS, OBJECTIVES, Direction, find
from infra_agent.wording import did_you_mean

ApprovalKind = Literal["launch", "code", "numerics", "concurrency"]

_BYTES = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Objective(_Section):
    """What is to get better, on which traffic. `held_out` is a second workload that no proposal is made from."""

    metric: str
    direction: Direction | None = None
    workload: str = "main"
    held_out: str | None = None

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        found = find(metric)
        if found is None or not found.objective:
            hint = did_you_mean(metric, OBJECTIVES) or "; known: " + ", ".join(OBJECTIVES[:6]) + ", ..."
            raise ValueError(f"{metric!r} is not a figure to optimise{hint}")
        return found.name

    @model_validator(mode="after")
    def _way(self) -> Self:
        better = METRICS[self.metric].better
        if self.direction not in (None, better):
            raise validation.misfit("direction", f"{self.metric} is one to {better}; say {better!r} or leave it out")
        return self


class Constraint(_Section):
    """One bound on a metric (`metrics.METRICS`). `relative`: a multiple of the start's value."""

    name: str
    bound: float
    relative: bool

    @property
    def at_most(self) -> bool:
        """Whether the bound is an upper one."""
        return METRICS[self.name].better == "minimize"

    def limit(self, start: float | None) -> float:
        """The bound as an absolute number, given the start's value (needed when relative)."""
        if not self.relative:
            return self.bound
        if start is None:
            raise UserError(f"the bound on {self.name} is relative, and its value at the start was not measured")
        return self.bound * start

    def met(self, value: float, start: float | None = None) -> bool:
        """Whether a measured value keeps the bound."""
        limit = self.limit(start)
        return value <= limit if self.at_most else value >= limit


class Scope(_Section):
    """What may be changed: files (patterns, within what the target itself allows) and launch parameters.

    `values` narrows single launch parameters to a list, for example `dtype = ["float32"]`.
    """

    editable: tuple[str, ...] = ("**",)
    launch: tuple[str, ...] = ("*",)
    values: dict[str, list[Any]] = Field(default_factory=dict)


class Budget(_Section):
    """Where a run ends at the latest; what is left out has no limit, but for the wall time.

    Tokens and money are a language model's; the embedded proposer needs none.
    """

    wall_seconds: float = Field(default=600.0, gt=0)
    candidates: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=0)
    usd: float | None = Field(default=None, ge=0)


class Approval(_Section):
    """Which kinds of moves need a person: they are tried and measured, and set aside with the decision `ask`."""

    kinds: tuple[ApprovalKind, ...] = ()


class Goal(_Section):
    """A validated goal. `load` resolves `start`, `model` and workload files to absolute paths."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    adapter: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    start: str = "production"
    model: str | None = None
    seed: int = Field(default=0, ge=0)
    objective: Objective
    constraints: dict[str, float | str] = Field(default_factory=dict)
    scope: Scope = Scope()
    budget: Budget = Budget()
    approval: Approval = Approval()

    @field_validator("constraints")
    @classmethod
    def _bounds(cls, constraints: dict[str, float | str]) -> dict[str, float | str]:
        seen: dict[str, str] = {}
        for name, bound in constraints.items():
            try:
                canonical = _constraint(name, bound).name
            except ValueError as error:
                raise validation.misfit(name, str(error)) from error
            if canonical in seen:
                raise validation.misfit(name, f"bounds the same figure as {seen[canonical]}; keep one of them")
            seen[canonical] = name
        return constraints

    @classmethod
    def load(cls, name: str | Path) -> Goal:
        """Read a goal by path or shipped name; `UserError` with file, line and key when anything is wrong."""
        path = _find(name)
        return cls.parse(tomltext.read(path), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Goal:
        """A goal from the text of the file at `path`, which need not be written yet."""
        goal = validation.validated(cls, text, str(path))
        return goal.model_copy(update=_resolved(goal, path, text))

    @property
    def direction(self) -> Direction:
        """Which way the objective is better."""
        return METRICS[self.objective.metric].better

    @property
    def bounds(self) -> tuple[Constraint, ...]:
        """The constraints, parsed."""
        return tuple(_constraint(name, bound) for name, bound in self.constraints.items())

    def limits(self, start: dict[str, float]) -> dict[str, float]:
        """Every constraint as an absolute number by name, given what was measured of the start."""
        return {bound.name: bound.limit(start.get(bound.name)) for bound in self.bounds}

    def may_edit(self, path: str) -> bool:
        """Whether a file is in the goal's edit scope (the target's own scope comes on top)."""
        return matches_any(path, self.scope.editable)

    def may_launch(self, parameter: str, value: Any) -> bool:
        """Whether a launch parameter may be set to a value."""
        allowed = self.scope.values.get(parameter)
        return matches_any(parameter, self.scope.launch) and (allowed is None or value in allowed)

    @property
    def digest(self) -> str:
        """Identity of what the goal says. Files count by name: their content is digested where it is used."""
        data = self.model_dump(mode="json")
        data["start"] = Path(self.start).name
        data["model"] = self.model and Path(self.model).name
        data["objective"]["direction"] = self.direction
        for key in ("workload", "held_out"):
            named = data["objective"][key]
            data["objective"][key] = named and Path(named).name
        return digest_of(data)

    def approved(self, kinds: Iterable[str]) -> Goal:
        """The same goal with some kinds of moves approved beforehand."""
        left = tuple(kind for kind in self.approval.kinds if kind not in set(kinds))
        return self.model_copy(update={"approval": Approval(kinds=left)})

    def overridden(self, wall_seconds: float | None = None, seed: int | None = None, start: str | None = None) -> Goal:
        """The same goal with another budget, seed or start (a shipped name or a folder); `UserError` when they are not
        valid.
        """
        if wall_seconds is not None and not 0 < wall_seconds < float("inf"):
            raise UserError(f"--wall-seconds must be above 0, not {wall_seconds}")
        if seed is not None and seed < 0:
            raise UserError(f"--seed must not be negative, as {seed} is")
        budget = self.budget if wall_seconds is None else self.budget.model_copy(update={"wall_seconds": wall_seconds})
        update: dict[str, Any] = {"budget": budget, "seed": self.seed if seed is None else seed}
        if start is not None:
            from infra_agent.start import Start

            update["start"] = str(Start.load(start).folder.resolve())
        return self.model_copy(update=update)

    def to_toml(self) -> str:
        """The goal as a file that `load` reads back."""
        data = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        head = ("name", "adapter", "start", "model", "seed")
        order = [*(key for key in head if key in data), *(key for key in data if key not in head)]
        return tomltext.document({key: data[key] for key in order})


def shipped_goals() -> list[str]:
    """Names of the shipped goals."""
    return sorted(path.stem for path in paths.shipped("goals").glob("*.toml"))


def _find(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if isinstance(name, Path) or name.endswith(".toml") or "/" in name:
        if not path.is_file():
            raise UserError(f"there is no goal file {name}")
        return path
    found = paths.shipped("goals") / f"{name}.toml"
    if found.is_file():
        return found
    known = shipped_goals()
    hint = did_you_mean(name, known) or "; shipped goals: " + ", ".join(known)
    raise UserError(f"no goal is called {name!r}{hint} (or give a .toml file; `infra-agent init` writes one)")


def _resolved(goal: Goal, path: Path, text: str) -> dict[str, Any]:
    folder = path.absolute().parent

    def problem(key: tuple[str, ...], what: str) -> UserError:
        return validation.at(text, str(path), key, what)

    update: dict[str, Any] = {}
    if "/" in goal.start or goal.start.startswith("."):
        start = (folder / Path(goal.start).expanduser()).resolve()
    else:
        start = paths.shipped("starts") / goal.start
    if not (start / "start.toml").is_file():
        known = sorted(each.parent.name for each in paths.shipped("starts").glob("*/start.toml"))
        hint = did_you_mean(goal.start, known) or "; shipped starts: " + ", ".join(known)
        raise problem(("start",), f"there is no starting state {goal.start!r} (no {start / 'start.toml'}){hint}")
    update["start"] = str(start)
    if goal.model is not None:
        model = folder / Path(goal.model).expanduser()
        if model.exists():
            update["model"] = str(model.resolve())
        elif goal.model.startswith((".", "/", "~")) or model.suffix in (".gguf", ".safetensors"):
            raise problem(("model",), f"there are no weights at {model}")
    files = {}
    for key in ("workload", "held_out"):
        named = getattr(goal.objective, key)
        if named is not None and ("/" in named or named.endswith(".jsonl")):
            file = (folder / Path(named).expanduser()).resolve()
            if not file.is_file():
                raise problem(("objective", key), f"there is no workload file {file}")
            files[key] = str(file)
    if files:
        update["objective"] = goal.objective.model_copy(update=files)
    return update


def _constraint(name: str, bound: float | str) -> Constraint:
    metric = find(name)
    if metric is not None and metric.name in DEVIATIONS:
        raise ValueError("can be the objective of a run, and not a bound of another one")
    if metric is None:
        hint = did_you_mean(name, METRICS) or "; known: " + ", ".join(sorted(METRICS))
        raise ValueError(f"not a figure that can be bounded{hint}")
    relative = False
    number: float
    if isinstance(bound, str):
        multiple = re.fullmatch(r"\s*([0-9.]+)\s*x\s*", bound)
        size = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", bound)
        try:
            if multiple:
                number, relative = float(multiple[1]), True
            elif size and metric.unit == "bytes" and size[2].lower() in _BYTES:
                number = float(size[1]) * _BYTES[size[2].lower()]
            else:
                raise ValueError
        except ValueError:
            forms = 'a number or a multiple such as "1.5x"' if metric.relative else "a number"
            forms += ' or a size such as "2 GiB"' if metric.unit == "bytes" else ""
            raise ValueError(f"must be {forms}, not {bound!r}") from None
        if relative and not metric.relative:
            raise ValueError(f"is measured against the reference already; give a number, not {bound!r}")
    else:
        number = float(bound)
    if number < 0 or (relative and number == 0):
        raise ValueError(f"must not be {'zero' if number == 0 else 'negative'}, as {bound!r} is")
    return Constraint(name=metric.name, bound=number, relative=relative)
