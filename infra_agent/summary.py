"""A run in one JSON value, made from its ledger's rows alone. Pure; `show --json` prints it, `runs` reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from infra_agent.ledger_store import Row
from infra_agent.metrics import METRICS
from infra_agent.records import (
    AblationRecord,
    BaselineRecord,
    CandidateRecord,
    EndRecord,
    FinalRecord,
    MoveRecord,
    Outcome,
    ProposalRecord,
    Ratio,
    RunRecord,
    VerdictRecord,
)

SCHEMA_VERSION = 1

State = Literal["running", "interrupted"]


def summary(rows: Iterable[Row], running: bool = False) -> dict[str, Any]:
    """The run as a JSON value.

    `running` says whether a process is at work on it, which the rows cannot know. `status` is how it ended
    (`records.EndStatus`) once it did, else `running` or `interrupted`. `objective.ratio` is best over start, above 1
    better; its `basis` says where it is from: `final` (both measured side by side at the end), `moves` (the product of
    what each kept move gained over its own base), or `none`.
    """
    done = [row for row in rows if row.phase == "result"]
    by_kind: dict[str, list[Row]] = {}
    for row in done:
        by_kind.setdefault(row.kind, []).append(row)

    def records(kind: str, model: type[Any]) -> list[Any]:
        return [model.model_validate(row.payload) for row in by_kind.get(kind, [])]

    run: RunRecord | None = next(iter(records("run", RunRecord)), None)
    end: EndRecord | None = next(iter(records("end", EndRecord)), None)
    final: FinalRecord | None = next(iter(records("final", FinalRecord)[-1:]), None)
    decided: dict[str, MoveRecord] = {move.id: move for move in records("decision", MoveRecord)}
    proposed: dict[str, ProposalRecord] = {move.id: move for move in records("proposal", ProposalRecord)}
    candidates: dict[str, CandidateRecord] = {each.move: each for each in records("candidate", CandidateRecord)}
    verdicts: list[VerdictRecord] = records("verdict", VerdictRecord)
    baselines: list[BaselineRecord] = records("baseline", BaselineRecord)
    moves = [_decided(decided[key]) for key in decided]
    moves += [_open(move, candidates.get(key), verdicts) for key, move in proposed.items() if key not in decided]
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.run if run else None,
        "goal": run.goal if run else None,
        "start": run.start if run else None,
        "status": end.status.value if end else ("running" if running else "interrupted"),
        "reason": end.reason if end else None,
        "objective": _objective(run, baselines, final, list(decided.values())),
        "moves": moves,
        "final": final.model_dump(mode="json") if final else None,
        "ablation": [record.model_dump(mode="json") for record in records("ablation", AblationRecord)],
        "cost": _cost(end, by_kind, proposed),
        "started_at": run.started_at if run else None,
    }


def _decided(move: MoveRecord) -> dict[str, Any]:
    return {
        "id": move.id,
        "kind": move.kind,
        "title": move.title,
        "hypothesis": move.hypothesis,
        "cause": move.cause,
        "predicted": move.predicted.model_dump(),
        "measured": move.measured.model_dump() if move.measured else None,
        "decision": move.decision.value,
        "reason": move.reason,
        "verdicts": list(move.verdicts),
        "commit": move.commit,
        "skeletons": list(move.skeletons),
        "seconds": move.seconds,
        "kept": move.decision is Outcome.KEEP or bool(move.needs),
        "needs": list(move.needs),
        "applies": list(move.applies),
        "regression": move.regression,
    }


def _open(move: ProposalRecord, candidate: CandidateRecord | None, verdicts: list[VerdictRecord]) -> dict[str, Any]:
    """A move that was being tried when the rows end."""
    own = [record.verdict for record in verdicts if record.move == move.id]
    return {
        "id": move.id,
        "kind": move.kind,
        "title": move.title,
        "hypothesis": move.hypothesis,
        "cause": move.cause,
        "predicted": move.predicted.model_dump(),
        "measured": None,
        "decision": "open",
        "reason": "being tried",
        "verdicts": [verdict["id"] for verdict in own],
        "commit": candidate.commit if candidate else None,
        "skeletons": list(move.skeletons),
        "seconds": sum(verdict["cost_seconds"] for verdict in own),
        "kept": False,
        "needs": [],
        "applies": [],
        "regression": None,
    }


def _objective(
    run: RunRecord | None, baselines: list[BaselineRecord], final: FinalRecord | None, moves: list[MoveRecord]
) -> dict[str, Any]:
    metric = run.metric if run else None
    at_start = next((record.metrics for record in baselines if record.label == "start"), {})
    start = at_start.get(metric) if metric else None
    if final is not None:
        return {
            "metric": final.metric,
            "direction": run.direction if run else METRICS[final.metric].better,
            "start": final.start,
            "best": final.best,
            "ratio": final.ratio.model_dump(),
            "basis": "final",
        }
    gains = [move.measured for move in moves if move.decision is Outcome.KEEP and move.measured is not None]
    ratio = product(gains)
    better = run.direction if run else None
    best = None if start is None else start * ratio.point if better == "maximize" else start / ratio.point
    return {
        "metric": metric,
        "direction": better,
        "start": start,
        "best": best,
        "ratio": ratio.model_dump(),
        "basis": "moves" if gains else "none",
    }


def product(ratios: list[Ratio]) -> Ratio:
    """The product of independent ratios; half-widths of their logarithms add in squares."""
    point = sum(math.log(ratio.point) for ratio in ratios)
    below = math.sqrt(sum((math.log(ratio.point) - math.log(ratio.low)) ** 2 for ratio in ratios))
    above = math.sqrt(sum((math.log(ratio.high) - math.log(ratio.point)) ** 2 for ratio in ratios))
    return Ratio(point=math.exp(point), low=math.exp(point - below), high=math.exp(point + above))


def _cost(end: EndRecord | None, by_kind: dict[str, list[Row]], proposed: dict[str, ProposalRecord]) -> dict[str, Any]:
    if end is not None:
        return end.cost.model_dump()
    seconds = sum(row.seconds for rows in by_kind.values() for row in rows)
    return {"wall_seconds": seconds, "candidates": len(proposed), "tokens": 0, "usd": 0.0}
