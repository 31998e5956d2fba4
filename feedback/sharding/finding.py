"""What was seen of all cuts as a finding: operator, cut, step, inputs, growth, rounding or logic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedback.judging import Finding
from feedback.sharding.compare import ORDER
from feedback.sharding.cuts import Cut
from feedback.sharding.growth import Growth
from feedback.sharding.localise import Step, where_it_fails
from feedback.sharding.precision import Attribution
from feedback.sharding.trial import Outcome
from feedback.verdict import Confidence, Location, Status

#: What simulated ranks cannot show; part of every verdict of this layer.
NOT_SEEN = (
    "real ranks: processes, their collectives' order of sums, their time-outs",
    "overlap of computing and communicating, and streams of a GPU",
    "memory that ranks share by mistake when it is one machine's",
    "layers and requests together (sharded_model looks at those)",
)


@dataclass
class Record:
    """What was seen of one cut. `files` are the implementations of all operators, by operator."""

    cut: Cut
    files: Mapping[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    calls: int = 0
    growths: list[Growth] = field(default_factory=list)
    attribution: Attribution | None = None
    whole_is_wrong: bool | None = None
    sample: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.fault is not None]

    @property
    def worst(self) -> Outcome:
        """The deviation to explain: of the kind that explains the others, and the largest of these."""

        def weight(outcome: Outcome) -> tuple[int, float]:
            assert outcome.fault is not None
            return ORDER.index(outcome.fault.kind), -outcome.ratio

        return min(self.bad, key=weight)

    @property
    def step(self) -> Step:
        """The step that goes wrong first, in the order of the steps, in any condition that could tell."""
        order = {name: place for place, name in enumerate(self.cut.sharding.steps)}
        found = [outcome.step for outcome in self.bad if outcome.step is not None]
        return min(found, key=lambda step: (order[step.name], bool(step.unknown)))


def finding(
    records: Sequence[Record], left: Sequence[str], gaps: Sequence[str], whole: int, interpreted: Mapping[str, str]
) -> Finding:
    """The verdict's content. `left` are cuts that were not tried, without which nothing is confirmed; `whole` counts
    the operators of the plan that nothing cuts.
    """
    bad = [record for record in records if record.bad]
    conditions = sum(len(record.outcomes) for record in records)
    calls = sum(record.calls for record in records)
    metrics = {"cuts": float(len(records)), "conditions": float(conditions), "calls": float(calls)}
    left = [*left, *(f"{record.cut.name}, which no input can be cut for" for record in records if not record.outcomes)]
    data = {"cuts": [as_data(record) for record in records], "left": left, "interpreted": dict(interpreted)}
    confidence = Confidence.HEURISTIC if interpreted else Confidence.DIRECT
    unseen = (*left, *gaps, *NOT_SEEN)
    if bad:
        first = bad[0]
        others = ", ".join(record.cut.name for record in bad[1:4])
        more = f"; also {others}{' and more' if len(bad) > 4 else ''}" if others else ""
        return Finding(
            Status.REFUTED,
            f"{sentence(first)}{more}",
            confidence,
            at=tuple(location(record) for record in bad[:8]),
            gaps=unseen,
            next="kernels" if _rounds(first) else None,
            metrics=metrics
            | {"wrong_cuts": float(len(bad)), "worst_relative_error": first.worst.relative}
            | {"worst_error_ratio": max(outcome.ratio for record in bad for outcome in record.bad)},
            data=data,
            arrays=first.sample,
        )
    if left or not records:
        text = f"{len(records)} cuts are right as far as they were tried, but not tried: {'; '.join(left[:4])}"
        return Finding(Status.INCONCLUSIVE, text, confidence, gaps=unseen, metrics=metrics, data=data)
    worst = max(records, key=lambda record: max(outcome.ratio for outcome in record.outcomes))
    ratio = max(outcome.ratio for outcome in worst.outcomes)
    return Finding(
        Status.CONFIRMED,
        f"{len(records)} cuts of {len({record.cut.info.name for record in records})} operators equal the unsharded "
        f"ones in {conditions} conditions ({whole} more run whole on every rank); largest error {ratio:.0%} of what is "
        f"allowed ({worst.cut.name})",
        confidence,
        gaps=unseen,
        next="sharded_model",
        metrics=metrics | {"worst_error_ratio": ratio},
        data=data,
    )


def _rounds(record: Record) -> bool:
    return record.attribution is not None and record.attribution.cause == "precision"


def sentence(record: Record) -> str:
    """`kda_chunk: context over cp 4: out wrong on ranks 1-3 of 4; wrong in 5 of 60 conditions, first at step ...`."""
    worst, step = record.worst, record.step
    assert worst.fault is not None
    count = f"{worst.fault.text}; wrong in {len(record.bad)} of {len(record.outcomes)} conditions"
    where = where_it_fails([(outcome.condition, outcome.fault is not None) for outcome in record.outcomes])
    place = f"first at step {step.name}" + (f" ({step.tensor})" if step.tensor else "")
    if len(record.cut.sharding.steps) == 1 or worst.fault.kind in ("stale", "repeat", "mutation"):
        place = ""
    same = "its unsharded form deviates too: the implementation, not the cut" if record.whole_is_wrong else ""
    grows = [growth.words() for growth in record.growths if growth.grows or _rounds(record)]
    why = record.attribution.text if record.attribution else ""
    parts = [f"{record.cut.name}: {count}", place, where, *grows, why or None, same or None]
    return ", ".join(part for part in parts if part)


def location(record: Record) -> Location:
    """Where to look: the combining code, or the implementation that is to blame."""
    worst, step, info = record.worst, record.step, record.cut.info
    assert worst.fault is not None
    blamed = record.attribution.operators if record.attribution else ()
    file, operator = record.cut.sharding.file or None, info.name
    if record.whole_is_wrong:
        file = info.files.get(info.selected)
    elif len(blamed) == 1:
        file = record.files.get(blamed[0]) or file
    fault, line = worst.fault, None
    if fault.at is not None:
        file, line = fault.at.file, fault.at.line
    pattern = step.pattern or fault.pattern
    tensor = step.tensor or fault.tensor
    return Location(
        file=file,
        line=line,
        operator=operator,
        implementation=info.selected,
        condition=worst.condition.words,
        pattern=f"{tensor}: {pattern.text()}" if pattern and fault.kind == "error" else fault.text,
        phase=f"{record.cut.sharding.name} over {record.cut.sharding.axis} {worst.condition.ranks}, step {step.name}",
    )


def as_data(record: Record) -> dict[str, Any]:
    """One cut for the evidence folder; `localised` is what an experiment compares with what was planted."""
    cut = record.cut
    data: dict[str, Any] = {
        "operator": cut.info.name,
        "implementation": cut.info.selected,
        "sharding": cut.sharding.name,
        "axis": cut.sharding.axis,
        "ranks": cut.ranks,
        "roles": list(cut.roles),
        "conditions": [_outcome(outcome) for outcome in record.outcomes],
    }
    if record.bad:
        step, worst = record.step, record.worst
        data["localised"] = {
            "operator": cut.info.name,
            "sharding": cut.sharding.name,
            "axis": cut.sharding.axis,
            "step": step.name,
            "step_unknown": step.unknown,
            "ranks": list(step.ranks or (worst.fault.ranks if worst.fault else ())),
            "condition": worst.condition.words,
        }
        data["growth"] = [
            {"noun": g.noun, "points": [list(p) for p in g.points], "exponent": g.exponent, "scatter": g.scatter}
            for g in record.growths
        ]
        if record.attribution is not None:
            found = record.attribution
            measured = [[name, _finite(ratio)] for name, ratio in found.measured]
            data["attribution"] = {"cause": found.cause, "operators": list(found.operators), "measured": measured}
        data["unsharded_is_wrong"] = record.whole_is_wrong
    return data


def _outcome(outcome: Outcome) -> dict[str, Any]:
    condition, fault, step = outcome.condition, outcome.fault, outcome.step
    return {
        "case": condition.case.model_dump(mode="json"),
        "ranks": condition.ranks,
        "cut": condition.cut,
        "error_ratio": _finite(outcome.ratio),
        "relative_error": _finite(outcome.relative),
        "fault": {"kind": fault.kind, "text": fault.text, "ranks": list(fault.ranks)} if fault else None,
        "step": {"name": step.name, "ranks": list(step.ranks), "tensor": step.tensor} if step else None,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
