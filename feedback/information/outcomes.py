"""What was counted when each cause was planted: cause x probe x outcome, with seconds; and the likelihoods that follow.

The file format (`OutcomeTable.read`, `to_json`), which any experiment can write:

    {"schema": "feedback-outcomes", "version": 1,
     "about": {...},                                        optional: anything
     "prior": {"CAUSE": weight, ...},                       optional: uniform without it
     "probes": {"PROBE": {"outcomes": ["pass", "fail"]}},   optional: a probe that can answer nothing else
     "observations": [{"cause": "...", "probe": "...", "outcome": "...", "seconds": 1.5, "count": 3}, ...]}

`seconds` is the cost of one asking; `count` (1 when left out) says how often just that was seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedback.errors import UserError

SCHEMA, VERSION = "feedback-outcomes", 1

#: Stands for every outcome of an open probe that was not seen while planting.
OTHER = "(another outcome)"

#: Weight of what the other causes answer, in observations.
PSEUDO = 0.5

#: A probe costs something, even where its clock read nothing.
LEAST_SECONDS = 1e-6


@dataclass(frozen=True)
class Observed:
    """A probe asked with a cause planted: what it answered, `seconds` for each of `count` askings."""

    cause: str
    probe: str
    outcome: str
    seconds: float
    count: int = 1

    def __post_init__(self) -> None:
        names = (self.cause, self.probe, self.outcome)
        if not all(isinstance(name, str) and name for name in names) or self.outcome == OTHER:
            raise ValueError(f"an observation names its cause, its probe, and an outcome that is not {OTHER!r}: {self}")
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"seconds are finite and not negative: {self}")
        if not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"a count is a whole number from 1: {self}")


@dataclass(frozen=True)
class Likelihood:
    """What a probe answers under each cause: `matrix` [causes, outcomes] with rows that sum to one and no zero in it,
    `seconds` [causes] that one asking takes.
    """

    probe: str
    causes: tuple[str, ...]
    outcomes: tuple[str, ...]
    matrix: np.ndarray
    seconds: np.ndarray

    def column(self, outcome: str) -> np.ndarray:
        """P(outcome | cause) [causes]. An outcome that was never seen counts as `OTHER`; where the probe can answer
        nothing else, it is a `ValueError`.
        """
        if outcome not in self.outcomes and OTHER not in self.outcomes:
            raise ValueError(f"{self.probe} answers {', '.join(self.outcomes)}, not {outcome!r}")
        return self.matrix[:, self.outcomes.index(outcome if outcome in self.outcomes else OTHER)]

    def costing(self, seconds: float) -> Likelihood:
        """The same probe, were it to cost so much."""
        return replace(self, seconds=np.full(len(self.causes), max(LEAST_SECONDS, seconds)))


@dataclass(frozen=True)
class OutcomeTable:
    """Counts by (cause, probe), mean seconds by (cause, probe), the outcomes of probes that can answer nothing else
    (`closed`), and weights of the causes before anything is asked.
    """

    causes: tuple[str, ...]
    probes: tuple[str, ...]
    counts: Mapping[tuple[str, str], Mapping[str, int]]
    seconds: Mapping[tuple[str, str], float]
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prior: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        observations: Iterable[Observed],
        closed: Mapping[str, Sequence[str]] | None = None,
        prior: Mapping[str, float] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> OutcomeTable:
        """Counted; causes and probes in the order of their first observation. Raises `ValueError` for an empty table,
        for an outcome that its probe cannot answer, and for a prior that does not weigh the causes.
        """
        counts: dict[tuple[str, str], dict[str, int]] = {}
        spent: dict[tuple[str, str], float] = {}
        for seen in observations:
            cell = counts.setdefault((seen.cause, seen.probe), {})
            cell[seen.outcome] = cell.get(seen.outcome, 0) + seen.count
            spent[seen.cause, seen.probe] = spent.get((seen.cause, seen.probe), 0.0) + seen.seconds * seen.count
        if not counts:
            raise ValueError("a table without an observation says nothing")
        fixed = {probe: tuple(outcomes) for probe, outcomes in (closed or {}).items()}
        for (cause, probe), cell in counts.items():
            strange = set(cell) - set(fixed.get(probe, tuple(cell)))
            if strange:
                raise ValueError(f"{probe} answers {', '.join(fixed[probe])}, not {sorted(strange)[0]!r} ({cause})")
        causes = tuple(dict.fromkeys(cause for cause, _ in counts))
        weights = dict(prior or {})
        usable = all(math.isfinite(w) and w >= 0 for w in weights.values()) and sum(weights.values()) > 0
        if weights and (set(weights) != set(causes) or not usable):
            raise ValueError("a prior gives every planted cause, and nothing else, a weight of at least 0, not all 0")
        return cls(
            causes=causes,
            probes=tuple(dict.fromkeys(probe for _, probe in counts)),
            counts=counts,
            seconds={cell: spent[cell] / sum(found.values()) for cell, found in counts.items()},
            closed=fixed,
            prior=weights,
            about=dict(about or {}),
        )

    def planted(self, cause: str, probe: str) -> int:
        """How often the probe was asked with this cause."""
        return sum(self.counts.get((cause, probe), {}).values())

    def outcomes(self, probe: str) -> tuple[str, ...]:
        """What the probe can answer: the closed set, or what was seen of it, most frequent first, and `OTHER`."""
        if probe in self.closed:
            return self.closed[probe]
        total: dict[str, int] = {}
        for cause in self.causes:
            for outcome, count in self.counts.get((cause, probe), {}).items():
                total[outcome] = total.get(outcome, 0) + count
        return (*sorted(total, key=lambda outcome: (-total[outcome], outcome)), OTHER)

    def likelihood(self, probe: str, pseudo: float = PSEUDO) -> Likelihood:
        """P(outcome | cause), smoothed so that nothing is impossible.

        A cause's frequencies are drawn towards what the probe answers over all causes, with the weight of `pseudo`
        observations: (count + pseudo * base) / (n + pseudo). `base` is the pooled count with one added for every
        outcome, so it is never zero; a cause that was never planted under this probe has just `base`, and no outcome
        speaks for it or against it by much. Raises `ValueError` for an unknown probe and a weight that is not positive.
        """
        if probe not in self.probes or not pseudo > 0:
            raise ValueError(f"{probe!r} was not measured" if probe not in self.probes else "pseudo must be above 0")
        outcomes = self.outcomes(probe)
        cells = [self.counts.get((cause, probe), {}) for cause in self.causes]
        counts = np.array([[cell.get(outcome, 0) for outcome in outcomes] for cell in cells], np.float64)
        base = counts.sum(axis=0) + 1.0
        base /= base.sum()
        matrix = (counts + pseudo * base) / (counts.sum(axis=1, keepdims=True) + pseudo)
        known = [self.seconds[cause, probe] for cause in self.causes if (cause, probe) in self.seconds]
        usual = float(np.mean(known))
        seconds = [max(LEAST_SECONDS, self.seconds.get((cause, probe), usual)) for cause in self.causes]
        return Likelihood(probe, self.causes, outcomes, matrix, np.array(seconds))

    def likelihoods(self, probes: Iterable[str] | None = None, pseudo: float = PSEUDO) -> tuple[Likelihood, ...]:
        """Those of the named probes, of all when None."""
        return tuple(self.likelihood(probe, pseudo) for probe in (self.probes if probes is None else probes))

    def to_json(self) -> dict[str, Any]:
        """As the format of the module docstring."""
        rows = [
            {"cause": cause, "probe": probe, "outcome": outcome, "seconds": self.seconds[cause, probe], "count": count}
            for (cause, probe), cell in self.counts.items()
            for outcome, count in cell.items()
        ]
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "about": dict(self.about),
            **({"prior": dict(self.prior)} if self.prior else {}),
            "probes": {probe: {"outcomes": list(outcomes)} for probe, outcomes in self.closed.items()},
            "observations": rows,
        }

    @classmethod
    def parse(cls, value: Any, name: str = "the table") -> OutcomeTable:
        """From the JSON value; `UserError` says what is wrong with it and where."""
        if not isinstance(value, dict) or (value.get("schema"), value.get("version")) != (SCHEMA, VERSION):
            raise UserError(f"{name}: not a table of outcomes (schema {SCHEMA!r}, version {VERSION})")
        rows, probes = value.get("observations"), value.get("probes", {})
        if not isinstance(rows, list) or not isinstance(probes, dict):
            raise UserError(f"{name}: observations must be a list, and probes an object")
        observations = []
        for number, row in enumerate(rows, start=1):
            try:
                observations.append(Observed(**row))
            except (TypeError, ValueError) as error:
                raise UserError(f"{name}: observation {number}: {error}") from None
        try:
            closed = {probe: tuple(said["outcomes"]) for probe, said in probes.items() if said.get("outcomes")}
            return cls.of(observations, closed, value.get("prior"), value.get("about"))
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{name}: {error}") from None

    @classmethod
    def read(cls, file: Path) -> OutcomeTable:
        """From a file; `UserError` when it cannot be read or is no such table."""
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{file}: cannot be read as JSON: {error}") from None
        return cls.parse(value, str(file))
