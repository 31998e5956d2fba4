"""What a skeleton is: conditions, a transformation with holes, constraints, scope, expiry, and evidence for and
against.

The models here are the format on disk (`library/<name>/skeleton.toml`, `evidence.jsonl`). They are strict: an unknown
field is an error that names it. Everything that decides is pure: facts in, an answer with its reason out.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Facts = Mapping[str, Any]

#: Replaced, in fact names and values, by the launch parameter that a launch skeleton found in the target's launch
#: space.
PARAMETER = "{parameter}"


class Strict(BaseModel):
    """Frozen, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(Strict):
    """The answer of one condition: whether it holds, and a line a person can read."""

    holds: bool
    text: str


class Condition(Strict):
    """A predicate over observed facts. Compares `fact` with `value`, or with `factor` times the fact named by `other`.

    A fact that was not observed makes the condition fail: silence is never a pass.
    """

    fact: str
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    value: Any = None
    other: str | None = None
    factor: float = 1.0
    reason: str = Field(min_length=1, description="why the skeleton needs this, in words")

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.value is None) == (self.other is None):
            raise ValueError(f"condition on {self.fact}: give exactly one of value and other")
        if self.op == "in" and not isinstance(self.value, (list, tuple)):
            raise ValueError(f"condition on {self.fact}: `in` needs a list as value")
        return self

    def bind(self, parameter: str) -> Condition:
        """The same condition about a named launch parameter."""
        other = self.other.replace(PARAMETER, parameter) if self.other else None
        return self.model_copy(update={"fact": self.fact.replace(PARAMETER, parameter), "other": other})

    def check(self, facts: Facts) -> Check:
        """Evaluate against facts. Never raises: what cannot be compared does not hold, and the text says so."""
        for name in filter(None, (self.fact, self.other)):
            if facts.get(name) is None:
                return Check(holds=False, text=f"{name} was not observed ({self.reason})")
        got = facts[self.fact]
        try:
            wanted = self.value if self.other is None else _scaled(facts[self.other], self.factor)
            holds = _compare(got, self.op, wanted)
        except (TypeError, ValueError):
            return Check(holds=False, text=f"{self.fact} is {got!r}, which cannot be compared ({self.reason})")
        shown = _show(wanted) + (f" ({self.other})" if self.other else "")
        verb = "is" if holds else "is not"
        return Check(holds=holds, text=f"{self.fact} = {_show(got)} {verb} {self.op} {shown}: {self.reason}")


def _scaled(value: Any, factor: float) -> Any:
    return value if factor == 1.0 else value * factor


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _compare(got: Any, op: str, wanted: Any) -> bool:
    match op:
        case "==":
            return bool(got == wanted)
        case "!=":
            return bool(got != wanted)
        case "in":
            return got in wanted
        case "<":
            return bool(got < wanted)
        case "<=":
            return bool(got <= wanted)
        case ">":
            return bool(got > wanted)
        case _:
            return bool(got >= wanted)


class Share(Strict):
    """Which part of the engine's busy time a move acts on: the sum of `facts`, times each fact in `times`.

    For a code skeleton an empty `facts` means: the time of the operators whose files its sites stand in.
    """

    facts: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    otherwise: float | None = Field(default=None, ge=0, le=1, description="taken when none of the facts was observed")

    def of(self, facts: Facts, names: Sequence[str] = ()) -> float | None:
        """The share in [0, 1], or None when nothing it is made of was observed. `names` replaces `facts` when given."""
        names = tuple(names) or self.facts
        seen = [float(facts[name]) for name in names if facts.get(name) is not None]
        factors = [facts.get(name) for name in self.times]
        if not seen:
            return self.otherwise
        if any(factor is None for factor in factors):
            return None
        return min(max(math.prod([sum(seen), *(float(f) for f in factors if f is not None)]), 0.0), 1.0)


class Speedup(Strict):
    """Prior belief about the speed-up on the share: log(time before / time after) ~ Normal(mean, sd).

    `per = "doubling"`: for every doubling (or halving) of a launch parameter, `mean` and `sd` hold; over n doublings
    both scale with n.
    """

    mean: float = Field(ge=-3.0, le=4.0)
    sd: float = Field(gt=0.0, le=3.0)
    per: Literal["move", "doubling"] = "move"
    source: str = Field(min_length=1, description="where it was measured, or that it was assumed")


class Repair(Strict):
    """What a skeleton that mends a deviation expects of one way to fill its holes: the error shrinks by `bits` bits,
    Normal(bits, sd), and the kernels take `slowdown` longer (log).
    """

    variant: str
    bits: float = Field(gt=0.0, le=64.0)
    sd: float = Field(gt=0.0, le=32.0)
    slowdown: float = Field(ge=0.0, le=4.0)
    source: str = Field(min_length=1, description="where it was measured, or what it follows from")


class LaunchMove(Strict):
    """A change of one start parameter to a value of the target's launch space.

    `parameter`: names the parameter goes by in engines; the first that the launch space has is meant. `direction`:
    `up` and `down` try the values on that side of the current one, `to` tries `value` (or the values nearest to the
    fact named by `fact`).
    `limit`: facts whose sum bounds how much of the change can have an effect (twice as many slots as there are
    requests is no gain).
    """

    parameter: tuple[str, ...] = Field(min_length=1)
    direction: Literal["up", "down", "to"]
    value: Any = None
    fact: str | None = None
    limit: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _target(self) -> Self:
        given = (self.value is not None) + (self.fact is not None)
        if given != (1 if self.direction == "to" else 0):
            raise ValueError("direction `to` needs value or fact, the other directions neither")
        return self


class Hole(Strict):
    """Something the transformation leaves open. `filled` says when and from what it is filled."""

    name: str
    filled: Literal["rewrite", "first use"]
    doc: str


class Scope(Strict):
    """Where the skeleton was seen to be right: versions of distributions as [at least, below) and platforms."""

    minimum: dict[str, str] = Field(default_factory=dict)
    below: dict[str, str] = Field(default_factory=dict)
    platforms: tuple[str, ...] = ()

    def outside(self, versions: Mapping[str, str], platform: str) -> str | None:
        """Why this environment is outside the scope, or None. A distribution that is not installed is outside."""
        if self.platforms and platform not in self.platforms:
            return f"platform {platform} is not one of {', '.join(self.platforms)}"
        for name in {**self.minimum, **self.below}:
            have = versions.get(name)
            if have is None:
                return f"{name} is not installed"
            if name in self.minimum and _version(have) < _version(self.minimum[name]):
                return f"{name} {have} is older than {self.minimum[name]}"
            if name in self.below and _version(have) >= _version(self.below[name]):
                return f"{name} {have} is not below {self.below[name]}"
        return None


def _version(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0). Anything after the release number is ignored."""
    release = text.split("+")[0]
    numbers: list[int] = []
    for part in release.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


class Expiry(Strict):
    """When the skeleton stops being offered: after a date, or once its latest runs all refuted it."""

    after: datetime.date | None = None
    refuted_in_a_row: int = Field(default=3, ge=1)


class Evidence(Strict):
    """One measured run of the skeleton's transformation, for or against it. One line of `evidence.jsonl`.

    `effect` is the end-to-end ratio after / before (above 1 is better) with its `interval`; `share` is the share of
    time the move acted on at the time, so that the effect can be turned into a speed-up on that share. For what mends
    results it is the deviation before / after, and there is no share. `cannot`: where it cannot be used, a line each.
    """

    kind: Literal["incremental", "ablation", "transfer"]
    supports: bool
    effect: float = Field(gt=0)
    interval: tuple[float, float] | None = None
    share: float | None = Field(default=None, gt=0, le=1)
    environment: dict[str, str]
    workload: str
    date: datetime.date
    run: str | None = None
    note: str = ""
    cannot: tuple[str, ...] = ()

    @field_validator("interval")
    @classmethod
    def _ordered(cls, interval: tuple[float, float] | None) -> tuple[float, float] | None:
        if interval is not None and not 0 < interval[0] <= interval[1]:
            raise ValueError(f"an interval is two positive numbers in order, not {interval}")
        return interval

    def local_log_speedup(self) -> tuple[float, float] | None:
        """(log speed-up on the share, its sd), inverted through Amdahl's law; None without share and interval."""
        if self.share is None or self.interval is None:
            return None
        low, middle, high = (_local(ratio, self.share) for ratio in (self.interval[0], self.effect, self.interval[1]))
        return middle, max((high - low) / 3.92, 0.02)  # a 95 % interval is 3.92 sd wide

    def line(self) -> str:
        """One line for a person."""
        span = f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]" if self.interval else ""
        side = "for" if self.supports else "against"
        return f"{self.date} {self.kind} {side}: {self.effect:.3f}{span} on {self.workload}"


def _local(ratio: float, share: float) -> float:
    """Log speed-up on `share` that makes the whole `ratio` times faster; bounded beyond Amdahl's limit."""
    remaining = max(1.0 / ratio - (1.0 - share), share * math.exp(-4.0))
    return math.log(share / remaining)


class Skeleton(Strict):
    """A remembered transformation.

    `kind = "launch"` carries `launch`; `kind = "code"` has a `transform.py` beside its TOML.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    title: str
    version: int = Field(ge=1)
    kind: Literal["launch", "code"]
    cause: str = Field(description="id of the fault it cures, for the diagnosis")
    symptom: str = Field(description="what a person sees when the cause is there")
    conditions: tuple[Condition, ...] = ()
    roles: tuple[str, ...] = Field(default=(), description="operator roles it is about; empty: any")
    share: Share = Share()
    speedup: Speedup
    changes_numerics: bool = False
    launch: LaunchMove | None = None
    repairs: tuple[Repair, ...] = Field(default=(), description="for skeletons that mend results instead of speed")
    holes: tuple[Hole, ...] = ()
    constraints: tuple[str, ...] = Field(default=(), description="what it costs and needs: memory, registers, compiler")
    scope: Scope = Scope()
    expires: Expiry = Expiry()
    evidence: tuple[Evidence, ...] = Field(default=(), exclude=True)

    @model_validator(mode="after")
    def _kind(self) -> Self:
        if (self.kind == "launch") != (self.launch is not None):
            raise ValueError(f"skeleton {self.name}: a launch skeleton has a [launch] table, a code skeleton has none")
        if self.kind == "launch" and not self.share.facts:
            raise ValueError(f"skeleton {self.name}: a launch skeleton names the facts its share is made of")
        if self.repairs and (self.kind != "code" or len({r.variant for r in self.repairs}) < len(self.repairs)):
            raise ValueError(f"skeleton {self.name}: repairs belong to code skeletons, and each has its own variant")
        if self.speedup.per == "doubling" and self.launch is None:
            raise ValueError(f"skeleton {self.name}: a speed-up per doubling needs a launch parameter")
        return self

    def repair(self, variant: str) -> Repair | None:
        """What is expected of a way to fill the holes, where the skeleton mends results."""
        return next((repair for repair in self.repairs if repair.variant == variant), None)

    def expired(self, today: datetime.date) -> str | None:
        """Why it is no longer offered, or None."""
        if self.expires.after is not None and today > self.expires.after:
            return f"expired on {self.expires.after}: verify it again and set a new date"
        recent = sorted(self.evidence, key=lambda e: e.date)[-self.expires.refuted_in_a_row :]
        if len(recent) == self.expires.refuted_in_a_row and not any(e.supports for e in recent):
            return f"refuted {len(recent)} times in a row, last on {recent[-1].date} ({recent[-1].workload})"
        return None

    def belief(self) -> tuple[float, float]:
        """Mean and sd of the log speed-up on the share (per doubling where the prior is): the prior, updated with the
        evidence.

        Normal with known variances. Environments differ, so one measurement is never worth more than a quarter of the
        prior's variance: the spread between machines does not shrink with the length of one run.
        """
        mean, sd = self.speedup.mean, self.speedup.sd
        if self.speedup.per == "doubling":
            return mean, sd  # evidence is about a move, not about a doubling
        precision, total = 1 / sd**2, mean / sd**2
        for measured in filter(None, (e.local_log_speedup() for e in self.evidence)):
            weight = 1 / max(measured[1], sd / 2) ** 2
            precision, total = precision + weight, total + weight * measured[0]
        return total / precision, precision**-0.5
