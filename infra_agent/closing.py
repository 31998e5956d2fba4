"""The end of a run: the start against the best state in rebuilt instances, the held-out workload, par, and the
ablation.

The search counts on the time that this takes (`reserve`), from what load passes have cost. What time does not allow
after all is left out and said so; the comparison with the start is never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feedback.verdict import Status, Verdict
from infra_agent.decision import Rules, broken_limit, pooled, refutes
from infra_agent.hypothesis import Move
from infra_agent.measurements import PAR, SEQUENTIAL, Remembered, Subject, Traffic
from infra_agent.records import (
    AblationRecord,
    Comparison,
    CostRecord,
    EndRecord,
    EndStatus,
    FinalRecord,
    MoveRecord,
    Ratio,
)
from infra_agent.steps import MARGIN, SPELLING, Steps

#: Fresh pairs of instances in which the start and the best state are compared: placement in memory alone can make 12 %.
REBUILDS = 2


def reserve(steps: Steps, kept: int) -> float:
    """Seconds that the end of the run will need, when `kept` moves are kept by then."""
    first, latest = _load_costs(steps)
    held_out = first if steps.goal.objective.held_out else 0.0
    accuracy = steps.experience.cost("accuracy") if "accuracy" in steps.world.guesses else 0.0
    references = latest + first  # par, and sequential on short traffic
    ablation = kept * latest + (first + latest if kept > 1 else 0.0)
    return REBUILDS * first + held_out + accuracy + references + ablation


def _load_costs(steps: Steps) -> tuple[float, float]:
    """What a load pass cost while one arm was the start, and what it costs now."""
    latest = steps.experience.cost("load")
    return (steps.loads[0] if steps.loads else latest), latest


def close(
    steps: Steps, rules: Rules, start: str, best: str, kept: list[MoveRecord], moves: Mapping[str, Move], reason: str
) -> EndRecord:
    """Measure the outcome, attribute it, and write the end row. `moves` are the kept ones by id."""
    steps.show.closing(reason)
    status = EndStatus.NO_WIN
    if steps.candidates and not steps.judged:
        status, reason = EndStatus.FAILED, f"no candidate could be judged: the probes broke each time; {reason}"
    if kept:
        status, why = _final(steps, rules, start, best, kept, moves)
        reason = f"{reason}; {why}" if why else reason
    end = EndRecord(
        status=status,
        reason=reason,
        cost=CostRecord(wall_seconds=steps.spent, candidates=steps.candidates),
        commit=best,
    )
    steps.ledger.note("end", "end", end)
    steps.show.ended(end)
    return end


def _final(
    steps: Steps, rules: Rules, start: str, best: str, kept: list[MoveRecord], moves: Mapping[str, Move]
) -> tuple[EndStatus, str]:
    metric = steps.goal.objective.metric
    passes = [steps.compare(start, best, "main", "start", n) for n in range(1, REBUILDS + 1)]
    ratio = pooled(passes)
    wrong = next((verdict for verdict in passes if refutes(verdict)), None)
    if ratio is None or wrong is not None:
        return EndStatus.FAILED, f"the final comparison did not stand: {(wrong or passes[-1]).line()}"
    comparisons = _comparisons(steps, start, best)
    accuracy = _accuracy(steps, rules, start, best, kept)
    metrics = {**(accuracy.metrics if accuracy else {}), **passes[-1].metrics}
    value = metrics.get(metric, 0.0)
    final = FinalRecord(
        commit=best,
        metric=metric,
        start=value / ratio.point if steps.goal.direction == "maximize" else value * ratio.point,
        best=value,
        ratio=ratio,
        comparisons=tuple(comparisons),
        constraints={name: metrics[spelt] for name, spelt in _spelt(steps) if spelt in metrics},
        verdicts=tuple(verdict.id for verdict in (*passes, *([accuracy] if accuracy else []))),
    )
    steps.ledger.note("final", best, final)
    steps.show.final(final)
    for record in _ablation(steps, best, kept, ratio):
        steps.ledger.note("ablation", record.label, record)
        steps.show.ablated(record)
        if record.label in moves and record.gain is not None and record.verdict is not None:
            remembered = Remembered(kind="ablation", supports=record.gain.low > 1, gain=record.gain)
            steps.remember(record.label, moves[record.label], remembered)
    if accuracy is not None and accuracy.status is Status.REFUTED:
        return EndStatus.FAILED, f"the kept moves together break a constraint: {accuracy.line()}"
    broken = broken_limit([*passes, *([accuracy] if accuracy else [])], rules.limits)
    if broken is not None:
        return EndStatus.FAILED, f"in the final comparison the best state {broken}"
    if ratio.low <= 1 + MARGIN:
        return EndStatus.NO_WIN, f"the gain was not confirmed in rebuilt instances: {ratio.point:.3f}x"
    if accuracy is not None and accuracy.status is not Status.CONFIRMED:
        return EndStatus.IMPROVED, f"the accuracy of all kept moves together is not confirmed: {accuracy.line()}"
    return EndStatus.IMPROVED, ""


def _spelt(steps: Steps) -> list[tuple[str, str]]:
    """The goal's bounds, each with the name that verdicts give to what it bounds."""
    return [(bound.name, SPELLING.get(bound.name, bound.name)) for bound in steps.goal.bounds]


def _comparisons(steps: Steps, start: str, best: str) -> list[Comparison]:
    """Best against the start on held-out traffic, against par, and against one request at a time, as time allows."""
    first, latest = _load_costs(steps)
    goal = steps.goal.objective
    wanted: list[tuple[str, str, Traffic, str, float]] = [
        ("par", PAR, "main", goal.workload, latest),
        ("sequential", SEQUENTIAL, "short", goal.workload, first),
    ]
    if goal.held_out:
        wanted.insert(0, ("start", start, "held_out", goal.held_out, first))
    found = []
    for label, base, traffic, workload, seconds in wanted:
        if steps.seconds_to_end() < seconds:
            steps.show.skipped(f"{label} on {traffic} traffic: {seconds:.0f} s needed")
            continue
        verdict = steps.compare(base, best, traffic, label)
        ratio = pooled([verdict])
        if ratio is not None:
            held_out = traffic == "held_out"
            found.append(
                Comparison(against=label, workload=workload, held_out=held_out, ratio=ratio, verdict=verdict.id)
            )
    return found


def _accuracy(steps: Steps, rules: Rules, start: str, best: str, kept: Sequence[MoveRecord]) -> Verdict | None:
    """Accuracy of the best state, when a kept move changed numbers."""
    if "accuracy" not in steps.world.guesses or not any(record.changes_numerics for record in kept):
        return None
    together = Move(
        key="final",
        skeletons=("final",),
        kind="bundle",
        cause="",
        title="all kept moves together",
        gain=0.0,
        spread=0.0,
        changes_numerics=True,
    )
    return steps.ask(
        "accuracy",
        Subject(
            hypothesis="final",
            base=start,
            candidate=best,
            move=together,
            changes_numerics=True,
            limits={limit.name: limit.bound for limit in rules.limits},
        ),
    )


def _ablation(steps: Steps, best: str, kept: list[MoveRecord], whole: Ratio) -> Iterator[AblationRecord]:
    """Each kept move taken out of the best state by itself, then all launch and all code moves."""
    for record in kept:
        yield _taken_out(steps, best, record.id, [record], kept, whole)
    for family, moves in (
        ("launch", [record for record in kept if record.kind == "launch"]),
        ("code", [record for record in kept if record.kind != "launch"]),
    ):
        if len(moves) > 1 or (moves and len(moves) == len(kept)):
            yield _taken_out(steps, best, family, moves, kept, whole)


def _taken_out(
    steps: Steps, best: str, label: str, moves: list[MoveRecord], kept: list[MoveRecord], whole: Ratio
) -> AblationRecord:
    ids = tuple(record.id for record in moves)
    if len(moves) == len(kept):
        return AblationRecord(label=label, moves=ids, gain=whole, note="the start itself: the final comparison")
    alone = moves[0].measured if len(moves) == 1 else None
    latest = _load_costs(steps)[1]
    if steps.seconds_to_end() < latest:
        return AblationRecord(label=label, moves=ids, gain=alone, note="no time was left; the gain when it was kept")
    tree = steps.without(best, tuple(record.commit or "" for record in moves), label)
    if tree.commit is None:
        note = f"cannot be taken out alone ({tree.failed})" + ("; the gain when it was kept" if alone else "")
        return AblationRecord(label=label, moves=ids, gain=alone, note=note)
    verdict = steps.compare(tree.commit, best, "main", label)
    gain = pooled([verdict])
    note = "" if gain else f"no effect was measured: {verdict.line()}"
    return AblationRecord(label=label, moves=ids, gain=gain, note=note, verdict=verdict.id)
