"""A recorded run as a world that can be asked again, also in another order.

What was measured of a move is taken to be true of it wherever it is made; what a state showed and offered is what the
nearest recorded state did. A move that was offered and never tried has no measurement: asked about it, the world says
so and refutes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from infra_agent.hypothesis import Move
from infra_agent.ledger_store import Row
from infra_agent.measurements import Openings
from infra_agent.measurements.recorded import StateFacts, Table, TableMove
from infra_agent.records import BaselineRecord, CandidateRecord, MoveRecord, Outcome, ProfileRecord

UNKNOWN = "this move was not measured in the recorded run"


def table_of(rows: Iterable[Row]) -> Table:
    """The table of a run. `ValueError` when the run has not even measured its start."""
    done = list(rows)
    results = {(row.kind, row.key): row.payload for row in done if row.phase == "result"}
    keys = {row.key: str(row.payload["key"]) for row in done if row.kind == "change" and row.phase == "intent"}
    if ("baseline", "start") not in results:
        raise ValueError("the run has no measured start: nothing can be replayed")
    start = BaselineRecord.model_validate(results["baseline", "start"])
    decided = {
        r.id: r for r in (MoveRecord.model_validate(p) for (kind, _), p in results.items() if kind == "decision")
    }
    states = _states(results, start.commit, decided, keys)
    tried = {keys[name]: record for name, record in decided.items() if name in keys}
    offered = {move.key: move for state in states for move in state.offered or ()}
    costs: dict[str, list[float]] = {}
    refuted: dict[str, dict[str, str]] = {}
    for (kind, key), payload in results.items():
        if kind == "verdict":
            verdict = payload["verdict"]
            costs.setdefault(verdict["layer"], []).append(verdict["cost_seconds"])
            name = key.split("/")[0]
            if verdict["status"] == "refuted" and verdict["layer"] != "load" and name in keys:
                refuted.setdefault(keys[name], {})[verdict["layer"]] = verdict["observed"]
    moves = [_entry(move, tried.get(key), refuted.get(key, {}), results, keys) for key, move in sorted(offered.items())]
    return Table(
        layers={layer: sum(spent) / len(spent) for layer, spent in costs.items()} or {"load": 1.0},
        metrics={name: value for name, value in start.metrics.items() if name != "noise_floor"},
        states=tuple(states),
        moves=tuple(moves),
        noise=max(1e-4, math.log1p(start.metrics.get("noise_floor", 0.01))),
    )


def _states(
    results: dict[tuple[str, str], dict], start: str, decided: dict[str, MoveRecord], keys: dict[str, str]
) -> list[StateFacts]:
    """The start and every kept state, with what each showed and offered."""
    kept = [record for record in decided.values() if record.decision is Outcome.KEEP and record.commit]
    applied: dict[str, tuple[str, ...]] = {start: ()}
    before = start
    for record in kept:
        assert record.commit is not None
        applied[record.commit] = (*applied[before], *_parts(keys[record.id]))
        before = record.commit
    states = []
    for commit, made in applied.items():
        if ("profile", commit) in results and ("openings", commit) in results:
            profile = ProfileRecord.model_validate(results["profile", commit])
            openings = Openings.model_validate(results["openings", commit])
            states.append(StateFacts(applied=made, facts=profile.facts, offered=openings.moves))
    return states


def _parts(key: str) -> tuple[str, ...]:
    return tuple(key.removeprefix("bundle:").split("+")) if key.startswith("bundle:") else (key,)


def _entry(
    move: Move,
    record: MoveRecord | None,
    refuted: dict[str, str],
    results: dict[tuple[str, str], dict],
    keys: dict[str, str],
) -> TableMove:
    if record is None:
        return TableMove(move=move, effect=1.0, refuted={"static": UNKNOWN})
    made = any(CandidateRecord.model_validate(p).move == record.id for (k, _), p in results.items() if k == "candidate")
    if not made:
        return TableMove(move=move, effect=1.0, fails=record.reason)
    if record.measured is None:
        return TableMove(move=move, effect=1.0, refuted=refuted or {"load": record.reason})
    half = max(1e-6, math.log(record.measured.high / record.measured.low) / 2)
    return TableMove(move=move, effect=record.measured.point, refuted=refuted, half=half)
