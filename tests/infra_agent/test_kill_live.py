"""A live run on a tiny model, killed with `kill -9` ten times and resumed: nothing recorded is lost or recorded twice,
and no decision changes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feedback.probe import discover
from infra_agent.goal import Goal
from infra_agent.ledger import Ledger, Row
from infra_agent.loop import run
from infra_agent.paths import RunPaths, list_runs
from infra_agent.records import EndRecord, RunRecord
from tests.experiments.small import tiny, write_goal
from tests.infra_agent.worlds import Silent

KILLS = 10
LIFE_SECONDS = 300.0

#: The command line, where nothing counts as disturbance: what is measured here is worth nothing anyway.
PROGRAM = """
import sys
import feedback.units
from infra_agent.measurements import quiet
feedback.units.DISTURBED_SHARE = quiet.DISTURBED_SHARE = 1.0
from infra_agent.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def rows_of(place: RunPaths) -> list[Row]:
    with Ledger.read(place.ledger) as ledger:
        return list(ledger.rows())


def live_until(process: subprocess.Popen[bytes], known: int, more: int) -> list[Row] | None:
    """The rows when the run has written `more` beyond the `known` ones; None when it ended before that."""
    deadline = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return None
        places = list_runs()
        rows = rows_of(places[0]) if places else []
        if len(rows) >= known + more:
            return rows
        time.sleep(0.05)
    raise AssertionError(f"no {more} new rows in {LIFE_SECONDS:.0f} s")


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(1800)
def test_killed_ten_times_and_resumed_it_keeps_its_record(tmp_path: Path, private_home: Path) -> None:
    goal = write_goal(tmp_path, tiny(tmp_path / "model"), candidates=4)
    rng = random.Random(5)
    process, known, snapshots = start("run", str(goal)), 0, []
    for _ in range(KILLS):
        rows = live_until(process, known, rng.randint(1, 4))
        assert rows is not None, f"it ended after {len(snapshots)} kills: {process.communicate()[1].decode()[-500:]}"
        time.sleep(rng.random() * 0.4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        place = list_runs()[0]
        snapshots.append(rows_of(place))
        known = len(snapshots[-1])
        process = start("resume", place.id)
    told = process.communicate()[1].decode()
    assert process.returncode in (0, 1), told[-800:]
    assert len(list_runs()) == 1

    rows = rows_of(list_runs()[0])
    for snapshot in snapshots:
        assert rows[: len(snapshot)] == snapshot, "what was recorded before a kill was changed by what came after"
    results = Counter((row.kind, row.key) for row in rows if row.phase == "result")
    assert set(results.values()) == {1}, "something was recorded twice"
    announced = Counter((row.kind, row.key) for row in rows if row.phase == "intent")
    assert set(announced.values()) == {1}
    assert set(announced) <= set(results), "an effect was begun and never finished"
    verdicts = [row.payload["verdict"]["id"] for row in rows if row.kind == "verdict" and row.phase == "result"]
    assert len(verdicts) == len(set(verdicts)) > 3
    assert sum(row.phase == "interrupted" for row in rows) >= 3, "no kill hit anything that was going on"
    replayed(list_runs()[0], rows)


class PaidTwice(BaseException):
    """Not an `Exception`: the loop makes a verdict of those."""


class Nothing:
    """A world that has answered everything: whatever it is asked was paid for already."""

    @property
    def guesses(self) -> Mapping[str, float]:
        return {name: probe.cost_prior for name, probe in discover().items() if name != "profile"}

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **named: Any) -> None:
            raise PaidTwice(f"{name} was asked again")

        return asked


def replayed(place: RunPaths, rows: list[Row]) -> None:
    """The loop over the finished record alone: the same end and decisions, and nothing asked of the world."""
    with Ledger.open(place.ledger) as ledger:
        first = RunRecord.model_validate(ledger.result("run", "run"))
        end = run(Goal.load(place.goal), ledger, Nothing(), Silent(), first.base_commit)
        assert end == EndRecord.model_validate(ledger.result("end", "end"))
        assert list(ledger.rows()) == rows
