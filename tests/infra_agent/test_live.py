"""The loop on a real target with real workers and probes: a small engine that gets faster with more slots."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from feedback.errors import UserError
from feedback.statistics import NoiseFloor
from feedback.verdict import Status
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.ledger import Ledger
from infra_agent.loop import run
from infra_agent.measurements import CandidateFailed, Remembered, Subject
from infra_agent.measurements.live import LiveMeasurements, opened
from infra_agent.measurements.openings import UserLibrary
from infra_agent.paths import RunPaths
from infra_agent.progress import Lines
from infra_agent.records import MoveRecord, Outcome, Ratio, RunRecord
from infra_agent.session import begin
from infra_agent.workspace import Workspace
from skeletons.view import Change, Site, TargetView
from tests.infra_agent import toy_target
from tests.quiet import skip_when_disturbed

START = """\
title = "Few slots"
complaint = "Users wait."
profile = "first"
"""

GOAL = f"""\
name = "toy"
adapter = "{toy_target.NAME}"
start = "START"

[objective]
metric = "output_throughput"
workload = "main"
held_out = "heldout"

[budget]
wall_seconds = 300
"""


@dataclass(frozen=True)
class Offer:
    """An opportunity, as the library would make it."""

    skeleton: str
    cause: str
    title: str
    change: Change
    kind: str = "code"
    gain_mean: float = math.log(1.5)
    gain_sd: float = 0.2
    share: float = 1.0
    operators: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ("because the test says so",)
    sites: tuple[Site, ...] = ()
    parts: tuple[Any, ...] = ()
    changes_numerics: bool = False
    repair: Any = None

    @property
    def launch(self) -> Mapping[str, Any]:
        return self.change.launch


class ToyLibrary:
    """More slots (right), fewer rounds of work that break the answer (wrong), a syntax error, a cheat, a slower
    engine.
    """

    def opportunities(self, view: TargetView) -> tuple[list[Any], list[Any]]:
        engine = view.sources["toyengine/engine.py"]
        found = [
            self._edit("wrong", engine, "return int(np.argmax(row(tokens)))", "return len(tokens) % VOCABULARY"),
            self._edit("unparsable", engine, "def burn(rounds):", "def burn(rounds:"),
            self._edit("slower", engine, "burn(WORK)", "burn(2 * WORK)"),
            self._edit("cheat", engine, "import time\n", "import time\ntime.monotonic = lambda: 0.0\n"),
        ]
        if view.config["max_batch"] < 8:
            slots = Change(launch={"max_batch": 8})
            found.append(Offer("slots", "too_few_slots", "8 slots, not 2", slots, "launch", math.log(3.0)))
        return found, []

    def looked_for(self) -> tuple[str, ...]:
        return ()

    def remember(self, move: Move, outcome: Remembered, workload: str) -> None:
        """Learns nothing."""

    @staticmethod
    def _edit(name: str, engine: str, old: str, new: str) -> Offer:
        if old not in engine:
            return Offer(name, name, f"the {name} move", Change({}))
        site = Site("toyengine/engine.py", 1, name, name)
        change = Change({"toyengine/engine.py": engine.replace(old, new)})
        return Offer(name, name, f"the {name} move", change, sites=(site,))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Goal, RunPaths]:
    root = toy_target.write(tmp_path / "site")
    monkeypatch.syspath_prepend(str(root))
    start = tmp_path / "start"
    start.mkdir()
    (start / "start.toml").write_text(START)
    file = tmp_path / "goal.toml"
    file.write_text(GOAL.replace("START", "./start"))
    goal, run = begin(Goal.load(file))
    return goal, run


def subject(world: LiveMeasurements, base: str, key: str) -> Subject:
    """A candidate made from what the library offers."""
    move = next(move for move in world.openings(base, {}).moves if move.key.startswith(key))
    made = world.candidate("m01", base, move, world.change(base, move, {}))
    return Subject(hypothesis="m01", base=base, candidate=made.commit, move=move, changed=made.changed)


def test_the_world_answers_without_a_clock(place: tuple[Goal, RunPaths]) -> None:
    goal, paths = place
    with opened(goal, paths, ToyLibrary()) as (world, ground):
        base = ground.workspace.base
        record = ground.record()
        assert record.base_commit == base
        assert "toyengine/adapter.py" in record.files
        assert ground.profile("production") == {"max_batch": 8}
        facts = world.profile(base).facts
        assert facts["launch.max_batch"] == 2
        assert float(facts["queue.waiting_mean"]) > 1
        offered = {move.key: move for move in world.openings(base, facts).moves}
        assert offered["slots:max_batch=8"].kind == "launch"
        assert offered["slots:max_batch=8"].launch == {"max_batch": 8}

        good = subject(world, base, "slots:max_batch=8")
        assert good.changed == ("toyengine/profiles/run.toml",)
        assert [world.ask(layer, good).status for layer in ("static", "smoke")] == [Status.CONFIRMED] * 2

        unparsable = world.ask("static", subject(world, base, "unparsable"))
        assert unparsable.status is Status.REFUTED
        assert "toyengine/engine.py" in unparsable.line()
        assert world.ask("static", subject(world, base, "cheat")).status is Status.REFUTED
        wrong = world.ask("smoke", subject(world, base, "wrong"))
        assert wrong.status is Status.REFUTED
        assert "oracle takes" in wrong.line()


def test_states_are_made_kept_and_taken_apart(place: tuple[Goal, RunPaths]) -> None:
    goal, paths = place
    with opened(goal, paths, ToyLibrary()) as (world, ground):
        base = ground.workspace.base
        first = subject(world, base, "slots:max_batch=8")
        made = world.candidate("m01", base, first.move, {"files": {}, "launch": {"max_batch": 8}})
        assert made.commit == first.candidate
        story = story_of(first.move)
        kept = world.keep(made, story)
        assert world.keep(made, story) == kept
        assert ground.workspace.kept()[0].trailers["Hypothesis"] == "because"
        slower = subject(world, kept, "slower")
        again = world.keep(world.candidate("m02", kept, slower.move, world.change(kept, slower.move, {})), story)
        apart = world.without(again, (kept,), "slots")
        assert ground.workspace.config(apart) == {"max_batch": 2}
        with pytest.raises(CandidateFailed, match="leaves every file as it was"):
            world.candidate("m03", kept, first.move, {"files": {}, "launch": {"max_batch": 8}})
        with pytest.raises(CandidateFailed, match="not a path inside"):
            world.candidate("m04", kept, first.move, {"files": {"../x": "y"}, "launch": {}})


def story_of(move: Move) -> MoveRecord:
    return MoveRecord.model_validate(
        {
            "id": "m01",
            "kind": move.kind,
            "title": move.title,
            "hypothesis": "because",
            "cause": move.cause,
            "predicted": {"mean": 1.5, "low": 1.2, "high": 1.8},
            "decision": Outcome.KEEP,
            "reason": "it pays",
        }
    )


def test_a_goal_that_cannot_begin_is_one_clear_line(place: tuple[Goal, RunPaths]) -> None:
    goal, paths = place
    latency = goal.model_copy(update={"objective": goal.objective.model_copy(update={"metric": "p95_ttft_ms"})})
    with pytest.raises(UserError, match="not yet be the objective"), opened(latency, paths, ToyLibrary()):
        pass
    lost = goal.model_copy(update={"objective": goal.objective.model_copy(update={"workload": "evening"})})
    with (
        pytest.raises(UserError, match="no workload 'evening'; it has heldout, main"),
        opened(lost, paths, ToyLibrary()),
    ):
        pass
    with pytest.raises(UserError, match="not yet be the objective"):
        begin(latency)
    assert list(paths.root.parent.iterdir()) == [paths.root]  # nothing was made for a goal that cannot begin


def test_a_bound_relative_to_the_start_finds_what_was_measured(
    place: tuple[Goal, RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    goal, paths = place
    bounded = Goal.model_validate({**goal.model_dump(), "constraints": {"peak_memory": "1.5x"}})
    monkeypatch.setattr("infra_agent.measurements.live.arm_figures", lambda runs: {})
    with opened(goal, paths, ToyLibrary()) as (world, ground):
        monkeypatch.setattr(world, "_floor", lambda tree, workload: (NoiseFloor(sd_log=0.01, n=4), ()))
        metrics = world.baseline(ground.workspace.base).metrics
    assert bounded.limits(metrics) == {"peak_memory_bytes": 1.5 * metrics["peak_memory_bytes"]}


def test_what_was_measured_is_left_to_later_runs_and_not_to_this_one(private_home: Path) -> None:
    move = Move(key="k", skeletons=("larger_batch",), kind="launch", cause="c", title="t", gain=0.1, spread=0.1)
    gain = Ratio(point=1.4, low=1.3, high=1.5)
    this = UserLibrary("run-1")
    this.remember(move, Remembered(kind="incremental", supports=True, gain=gain), "main")
    assert (private_home / "library" / "larger_batch" / "evidence.jsonl").is_file()

    def known(run: str) -> list[str | None]:
        return [e.run for s in UserLibrary(run).skeletons if s.name == "larger_batch" for e in s.evidence]

    assert "run-1" not in known("run-1")
    assert "run-1" in known("run-2")


@pytest.mark.timing
def test_a_run_keeps_the_move_that_pays(place: tuple[Goal, RunPaths]) -> None:
    goal, paths = place
    told = io.StringIO()
    with Ledger.open(paths.ledger) as ledger, opened(goal, paths, ToyLibrary()) as (world, ground):
        record = ledger.once("run", "run", {}, ground.record, RunRecord)
        end = run(goal, ledger, world, Lines(told), record.base_commit)
        decided = {row.payload["skeletons"][0]: row.payload for row in ledger.rows("decision", "result")}
    sys.stdout.write(told.getvalue())
    skip_when_disturbed(told.getvalue())
    assert end.status == "improved"
    assert decided["slots"]["decision"] == "keep"
    assert {name for name, story in decided.items() if story["decision"] == "keep"} == {"slots"}
    assert Workspace.open(paths).config(end.commit) == {"max_batch": 8}


#: What a killed process runs: the command line itself.
PROGRAM = "import sys; from infra_agent.cli import main; sys.exit(main(sys.argv[1:]))"


def rows_of(paths: RunPaths) -> list[tuple[str, str, str]]:
    """Every result row: kind, key and content."""
    with Ledger.read(paths.ledger) as ledger:
        return [(row.kind, row.key, json.dumps(row.payload, sort_keys=True)) for row in ledger.rows(phase="result")]


@pytest.mark.timing
@pytest.mark.slow
def test_a_live_run_killed_ten_times_loses_and_repeats_nothing(place: tuple[Goal, RunPaths], tmp_path: Path) -> None:
    _, paths = place
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-c", PROGRAM, "resume", paths.id]
    # `resume` needs a ledger to go on from; an empty one is a run that was cut off before its first row.
    Ledger.open(paths.ledger).close()
    seen: list[tuple[str, str, str]] = []
    kills, delay = 0, 1.5
    while kills < 10:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
        now = rows_of(paths)
        assert now[: len(seen)] == seen, "a row changed or vanished"
        if ("end", "end") in [(kind, key) for kind, key, _ in now]:
            break
        # The first effect takes several seconds: give each life a little more than the last.
        seen, delay = now, delay * 1.3
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    final = rows_of(paths)
    names = [(kind, key) for kind, key, _ in final]
    assert len(names) == len(set(names))
    assert ("end", "end") in names
    assert kills >= 3
