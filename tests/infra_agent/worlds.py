"""Small synthetic worlds for the loop: moves that multiply the speed, some wrong, some slow, some that pay only
together.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ledger import Ledger
from infra_agent.loop import run
from infra_agent.measurements.recorded import START, RecordedMeasurements, StateFacts, Table, TableMove
from infra_agent.progress import Lines
from infra_agent.records import EndRecord, MoveRecord, Outcome

LAYERS = {"static": 0.4, "smoke": 4.0, "operators": 3.0, "microbench": 6.0, "accuracy": 8.0, "load": 30.0}

#: Facts of an engine with many things wrong with it.
SLOW = {
    "launch.threads": 1.0,
    "launch.max_batch": 4.0,
    "machine.cores": 2.0,
    "machine.bf16": True,
    "queue.waiting_mean": 6.0,
    "decode.rows_mean": 3.8,
    "decode.occupancy": 0.95,
    "prefix.repeat_share": 0.4,
    "prefix.hit_share": 0.0,
    "prefill.tokens_per_step": 200.0,
    "share.phase.prefill": 0.25,
    "share.phase.decode": 0.6,
    "share.phase.prepare": 0.05,
    "share.op.qkv_projection": 0.12,
    "share.op.gate_up_projection": 0.2,
    "share.op.linear": 0.15,
    "share.op.lm_head": 0.1,
    "share.op.attention_decode": 0.25,
    "share.op.rms_norm": 0.05,
    "weights.bytes_per_param": 4.0,
}

#: Facts of an engine with nothing wrong.
HEALTHY = {
    **SLOW,
    "launch.threads": 2.0,
    "queue.waiting_mean": 0.0,
    "decode.occupancy": 0.4,
    "prefix.hit_share": 0.4,
    "share.op.attention_decode": 0.08,
    "weights.bytes_per_param": 2.0,
}


def move(key: str, kind: Any = "code", cause: str = "blocks_gathered", predicted: float = 1.2, **more: Any) -> Move:
    """A move that its skeleton predicts to bring `predicted`."""
    fields: dict[str, Any] = {
        "key": key,
        "skeletons": (key,),
        "kind": kind,
        "cause": cause,
        "title": key.replace("_", " "),
        "gain": math.log(predicted),
        "spread": 0.1,
        "operators": () if kind == "launch" else (f"op_{key}",),
        "launch": {key: 1} if kind == "launch" else {},
    }
    return Move(**{**fields, **more})


def typical(seed: int = 0) -> Table:
    """A slow engine: four moves pay, one is wrong, one crashes, one cannot be made, one is slower, one useless."""
    moves = (
        TableMove(move=move("more_slots", "launch", "too_few_slots", 1.8), effect=1.7),
        TableMove(move=move("narrow", "launch", "wide_weights", 1.6, changes_numerics=True), effect=1.5),
        TableMove(move=move("native_decode", predicted=1.25), effect=1.3),
        TableMove(
            move=move("pack", cause="weights_repacked_every_call", predicted=1.15), effect=1.12, needs=("narrow",)
        ),
        TableMove(move=move("wrong", predicted=1.5), effect=1.6, refuted={"operators": "columns 0-25 wrong"}),
        TableMove(move=move("crash", predicted=1.4), effect=1.4, refuted={"smoke": "SIGSEGV in start"}),
        TableMove(move=move("unmade", predicted=1.3), effect=1.3, fails="ops/x.py: no such site"),
        TableMove(move=move("slower", predicted=1.3), effect=0.9),
        TableMove(move=move("useless", cause="projections_apart", predicted=1.1), effect=1.0),
    )
    return Table(
        layers=LAYERS,
        metrics={"output_throughput": 65.0, "p95_ttft_ms": 900.0},
        states=(StateFacts(applied=(), facts=SLOW),),
        moves=moves,
        seed=seed,
    )


def healthy(seed: int = 0) -> Table:
    """Nothing pays; the library still offers a few things."""
    moves = (
        TableMove(move=move("more_slots", "launch", "too_few_slots", 1.3), effect=1.0),
        TableMove(move=move("native_decode", predicted=1.06), effect=1.0),
    )
    return typical(seed).model_copy(update={"moves": moves, "states": (StateFacts(applied=(), facts=HEALTHY),)})


def goal(wall_seconds: float | None = 1200.0, **more: Any) -> Goal:
    """A throughput goal."""
    fields: dict[str, Any] = {
        "name": "test",
        "adapter": "none.adapter",
        "objective": {"metric": "output_throughput", "held_out": "heldout"},
        "budget": {"wall_seconds": wall_seconds},
    }
    return Goal.model_validate({**fields, **more})


def shuffled(table: Table, seed: int) -> Table:
    """The same world with its library in another order."""
    moves = list(table.moves)
    random.Random(seed).shuffle(moves)
    return table.model_copy(update={"moves": tuple(moves)})


class Silent(Lines):
    """Says nothing."""

    def _line(self, text: str, style: str = "") -> None:
        pass


def play(table: Table, path: Path, a_goal: Goal | None = None, observer: Any = None) -> EndRecord:
    """Run the loop over a table, with a ledger at `path`; called again, it resumes."""
    with Ledger.open(path, observer) as ledger:
        return run(a_goal or goal(), ledger, RecordedMeasurements(table), Silent(), START)


def decisions(path: Path) -> list[MoveRecord]:
    """The decided moves of a ledger, in order."""
    ledger = Ledger.read(path)
    try:
        return [MoveRecord.model_validate(row.payload) for row in ledger.rows("decision", "result")]
    finally:
        ledger.close()


def kept(path: Path) -> list[str]:
    """Families of the kept moves, in order."""
    return ["+".join(record.skeletons) for record in decisions(path) if record.decision is Outcome.KEEP]
