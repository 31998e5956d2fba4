"""Worlds recorded from a measured start: its facts and what was offered are real, what each move would bring is drawn
from what its skeleton believes. In them the loop can be run many times, in any order of the library.
"""

from __future__ import annotations

import io
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ledger import Ledger
from infra_agent.ledger_store import Row
from infra_agent.loop import run
from infra_agent.measurements.recorded import START, RecordedMeasurements, StateFacts, Table, TableMove
from infra_agent.measurements.replay import table_of
from infra_agent.progress import Lines
from infra_agent.proposers.causes import Facts
from infra_agent.records import EndRecord, MoveRecord, Outcome

#: Seconds of the layers, as they cost on two cores.
LAYERS = {"static": 0.5, "smoke": 4.0, "operators": 5.0, "microbench": 12.0, "accuracy": 8.0, "load": 30.0}

#: One in so many code moves is wrong, and the operators layer finds it.
WRONG_ONE_IN = 5


def table_from(facts: Facts, offered: Sequence[Move], seed: int, healthy: bool = False) -> Table:
    """A world in which every offered move has one true effect: drawn from its belief, or none at all when `healthy`."""
    draws = {move.key: random.Random(f"{seed}:{move.key}") for move in offered}
    entries = []
    for move in offered:
        drawn = draws[move.key]
        gain = 0.0 if healthy else move.gain + move.spread * drawn.gauss(0.0, 1.0)
        wrong = not healthy and move.kind == "code" and drawn.randrange(WRONG_ONE_IN) == 0
        excludes = tuple(other.key for other in offered if other.key != move.key and _same_thing(move, other))
        refuted = {"operators": "rows 3-5 wrong"} if wrong else {}
        entries.append(TableMove(move=move, effect=math.exp(gain), refuted=refuted, excludes=excludes))
    return Table(
        layers=LAYERS,
        metrics={"output_throughput": 60.0},
        states=(StateFacts(applied=(), facts=dict(facts)),),
        moves=tuple(entries),
        noise=0.006,
        seed=seed,
    )


def _same_thing(one: Move, other: Move) -> bool:
    """Whether a move leaves nothing to do for another: values of one parameter, or a skeleton's whole and parts."""
    same_parameter = bool(set(one.launch) & set(other.launch))
    return same_parameter or (one.kind == "code" and one.skeletons == other.skeletons)


def replayed(ledger: Path) -> Table:
    """The world of a recorded run."""
    with Ledger.read(ledger) as opened:
        rows: list[Row] = list(opened.rows())
    return table_of(rows)


def shuffled(table: Table, order: int) -> Table:
    """The same world with its moves listed in another order."""
    moves = list(table.moves)
    random.Random(order).shuffle(moves)
    return table.model_copy(update={"moves": tuple(moves)})


def play(table: Table, goal: Goal) -> tuple[EndRecord, tuple[str, ...]]:
    """Run the loop in a world; returns its end and the kept moves, sorted."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "ledger.sqlite"
        with Ledger.open(path) as ledger:
            end = run(goal, ledger, RecordedMeasurements(table), Lines(io.StringIO()), START)
        with Ledger.read(path) as ledger:
            decided = [MoveRecord.model_validate(row.payload) for row in ledger.rows("decision", "result")]
    return end, tuple(sorted(record.title for record in decided if record.decision is Outcome.KEEP))
