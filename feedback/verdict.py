"""The verdict: what one probe answers to one predicate. This is a frozen contract (schema version 1).

Every room above reads verdicts, so their meaning must not drift:

* The predicate is fixed and hashed before the probe runs (`Predicate.digest`), so that a probe cannot choose its
  question after seeing the answer.
* Silence is never a pass. What a layer cannot see is named in `gaps`; what it cannot do is `unsupported` with the
  reason in `gaps`; a check that broke is `invalid`, never `confirmed`.
* A timing verdict without an A/A noise floor from the same session cannot be anything but `invalid` or `unsupported`:
  without the floor nobody knows which differences this machine invents by itself.
* A verdict is small (`line()` is a few dozen tokens); everything needed to repeat it is in the evidence folder that
  `evidence` names, relative to the evidence store.

The identity of a verdict is the hash of its content: two equal verdicts are one verdict, and an edited one is another.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

SCHEMA_VERSION = 1

#: Layers whose predicate is about time; rule 3 of the module docstring binds them.
TIMING_LAYERS = frozenset({"microbench", "timeline", "scenarios", "load"})


class Status(StrEnum):
    """What the probe says about its predicate."""

    CONFIRMED = "confirmed"  # the predicate holds as far as this layer can see
    REFUTED = "refuted"  # the predicate does not hold; `at` and `observed` say where and how
    INCONCLUSIVE = "inconclusive"  # the probe ran, and its resolution does not decide
    INVALID = "invalid"  # the probe broke or was disturbed; its numbers must not be used
    UNSUPPORTED = "unsupported"  # this layer cannot answer here; `gaps` says why


class Confidence(StrEnum):
    """What kind of support the status has."""

    PROOF = "proof"  # follows from the text or the types alone
    DIRECT = "direct"  # observed on the very object in question
    STATISTICAL = "statistical"  # an estimate with an interval
    HEURISTIC = "heuristic"  # an indication; needs another probe


class Location(BaseModel):
    """Where something was seen. All fields optional; at least one must be given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str | None = None
    line: int | None = None
    operator: str | None = None
    implementation: str | None = None
    condition: str | None = None  # the input condition, for example "batch=4 context=97"
    pattern: str | None = None  # for example "columns 0-25 wrong, rank 32 of 126"
    span: str | None = None
    thread: str | None = None
    parameter: str | None = None  # a launch parameter
    request: str | None = None
    phase: str | None = None  # prefill, decode, start, ...

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("an empty location says nothing: give at least one field")
        return self

    def label(self) -> str:
        """One short phrase: `rms_norm/torch.py:14 batch=4 columns 0-25`."""
        where = self.file or ""
        if self.file and self.line is not None:
            where += f":{self.line}"
        parts = [where, self.operator and f"op {self.operator}", self.implementation, self.parameter, self.span]
        parts += [self.thread and f"thread {self.thread}", self.request and f"request {self.request}", self.phase]
        parts += [self.condition, self.pattern]
        return " ".join(p for p in parts if p)


class Predicate(BaseModel):
    """The question, fixed before the probe runs.

    `statement` is what the probe would confirm, in words; `parameters` are the numbers that decide it (tolerances,
    margins, seeds, case names): JSON values only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: str
    statement: str
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the predicate, first 16 hex digits."""
        return digest_of(self.model_dump(mode="json"))


class Verdict(BaseModel):
    """One probe's answer; see the module docstring for the rules that the validator enforces.

    `effect` is a ratio candidate / base of the metric named in the predicate (1.0 = no change; above 1 is better),
    `interval` its confidence interval, `margin` the ratio that had to be beaten, `minimal_detectable_effect` the
    smallest |ratio - 1| this measurement could resolve, `noise_floor` the A/A spread of |ratio - 1| in the same
    session, `n` the number of paired units or passes. `metrics` carries further measured figures by name with the unit
    in the name (`output_throughput_tok_s`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    hypothesis: str
    layer: str
    status: Status
    predicate: str
    predicate_digest: str
    observed: str
    at: tuple[Location, ...] = ()
    confidence: Confidence
    gaps: tuple[str, ...] = ()
    cost_seconds: float = Field(ge=0, allow_inf_nan=False)
    next: str | None = None
    evidence: str | None = None
    effect: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    interval: tuple[float, float] | None = None
    margin: float | None = Field(default=None, allow_inf_nan=False)
    minimal_detectable_effect: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    noise_floor: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    n: int | None = Field(default=None, ge=0)
    metrics: dict[str, float] = Field(default_factory=dict)

    @computed_field
    @property
    def id(self) -> str:
        """Content identity: SHA-256 over everything else, first 16 hex digits."""
        return digest_of(self.model_dump(mode="json", exclude={"id"}))

    @model_validator(mode="before")
    @classmethod
    def _accept_own_id(cls, data: Any) -> Any:
        # `id` is derived; a stored one is compared in `parse`, not trusted here.
        if isinstance(data, dict) and "id" in data:
            data = {k: v for k, v in data.items() if k != "id"}
        return data

    @model_validator(mode="after")
    def _status_and_fields_agree(self) -> Self:
        if not self.observed.strip():
            raise ValueError("observed must say what was seen; silence is never a pass")
        if "\n" in self.observed:
            raise ValueError("observed is one line; longer material belongs in the evidence folder")
        if self.status is Status.UNSUPPORTED and not self.gaps:
            raise ValueError("an unsupported verdict must name in gaps what it cannot do")
        if self.interval is not None:
            low, high = self.interval
            if not low <= high:
                raise ValueError(f"interval is reversed: {low} > {high}")
            if self.effect is not None and not low <= self.effect <= high:
                raise ValueError(f"effect {self.effect} lies outside its own interval {self.interval}")
        judged = self.status in (Status.CONFIRMED, Status.REFUTED, Status.INCONCLUSIVE)
        if self.layer in TIMING_LAYERS and judged and self.effect is not None:
            missing = [
                name
                for name in ("interval", "margin", "minimal_detectable_effect", "noise_floor", "n")
                if getattr(self, name) is None
            ]
            if missing:
                raise ValueError(f"a {self.layer} verdict with an effect needs {', '.join(missing)}")
        timed_without_effect = self.layer in TIMING_LAYERS and self.status is Status.CONFIRMED and self.effect is None
        if timed_without_effect and not self.metrics:
            raise ValueError(f"a confirmed {self.layer} verdict must carry what it measured")
        return self

    def line(self) -> str:
        """The verdict as one line for a person or a model: status, layer, where, how much, next."""
        parts = [f"{self.status.value} [{self.layer}] {self.observed}"]
        if self.effect is not None and self.interval is not None:
            parts.append(f"{self.effect:.3f}x [{self.interval[0]:.3f}, {self.interval[1]:.3f}]")
        if self.at:
            parts.append("at " + "; ".join(place.label() for place in self.at[:3]))
        if self.gaps:
            parts.append("cannot see: " + "; ".join(self.gaps[:2]))
        if self.next:
            parts.append(f"next: {self.next}")
        return " | ".join(parts)

    def to_json(self) -> str:
        """Canonical JSON with the derived id."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, text: str) -> Verdict:
        """Read `to_json` back.

        A stored id that does not match the content raises `ValueError` (tampering or corruption).
        """
        data = json.loads(text)
        verdict = cls.model_validate(data)
        if data.get("id") not in (None, verdict.id):
            raise ValueError(f"verdict id {data['id']} does not match its content ({verdict.id}): edited or damaged")
        return verdict


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text per value, so that hashes are stable."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`, first 16 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
