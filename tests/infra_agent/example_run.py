"""A run on the small target of `target_files`: two kept moves and a rejected one, written as the loop writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedback.target import FileEntry
from infra_agent.ledger import Ledger
from infra_agent.paths import RunPaths, new_run
from infra_agent.records import (
    BaselineRecord,
    CandidateRecord,
    CostRecord,
    EndRecord,
    EndStatus,
    FinalRecord,
    MoveRecord,
    Outcome,
    Prediction,
    ProposalRecord,
    Ratio,
    RunRecord,
)
from infra_agent.start import Start
from infra_agent.targetfiles import file_digests, read_target
from infra_agent.workspace import Workspace
from tests.infra_agent.target_files import PROFILE_PATH, SLOW_START, write_start
from tests.infra_agent.test_workspace import Edit

PREDICTED = Prediction(mean=1.5, low=1.2, high=1.9)
MOVES = (
    ("m01", "launch", Edit(launch={"max_batch": 16}), Ratio(point=2.0, low=1.9, high=2.1), Outcome.KEEP),
    ("m02", "code", Edit({"engine/scheduler.py": "broken\n"}), None, Outcome.REJECT),
    (
        "m03",
        "code",
        Edit({"engine/ops/linear/packed.py": "my packed\n"}, {"operators.linear": "packed"}),
        Ratio(point=1.5, low=1.4, high=1.6),
        Outcome.KEEP,
    ),
)


def begin(root: Path, entries: Sequence[FileEntry], folder: Path) -> tuple[RunPaths, Workspace, RunRecord]:
    """A new run in $INFRA_AGENT_HOME whose workspace is made from the target at `root`."""
    start_folder = folder / "slow"
    if not start_folder.exists():
        write_start(start_folder, SLOW_START, {"engine/scheduler.py": "def schedule():\n    return [1]\n"})
    start = Start.load(start_folder)
    run = new_run("throughput", "20260102-030405")
    workspace = Workspace.create(run, root, entries, PROFILE_PATH, start)
    record = RunRecord(
        run=run.id,
        goal="throughput",
        goal_digest="g",
        goal_text="",
        start=start.name,
        start_digest=start.digest,
        adapter="engine.adapter",
        metric="output_throughput",
        direction="maximize",
        workload="main",
        seed=0,
        base_commit=workspace.base,
        files=file_digests(read_target(root, entries)),
        started_at="2026-01-02T03:04:05Z",
    )
    return run, workspace, record


def write_run(
    root: Path, entries: Sequence[FileEntry], folder: Path, moves: Sequence[tuple] = MOVES, ended: bool = True
) -> RunPaths:
    """The whole run; without its end rows when not `ended`, and with one move still open."""
    run, workspace, record = begin(root, entries, folder)
    with Ledger.open(run.ledger) as ledger:
        ledger.note("run", "run", record)
        baseline = BaselineRecord(label="start", commit=workspace.base, metrics={"output_throughput": 50.0})
        ledger.once("baseline", "start", {}, lambda: baseline)
        for name, kind, change, measured, outcome in moves:
            base = workspace.kept_tip
            candidate = workspace.commit(base, change)
            common = {
                "id": name, "kind": kind, "title": f"Move {name}", "hypothesis": f"because {name}",
                "cause": "batching", "predicted": PREDICTED,
            }  # fmt: skip
            ledger.note("proposal", name, ProposalRecord(base=base, change={}, **common))
            made = CandidateRecord(move=name, commit=candidate.commit, base=base, changed=candidate.changed)
            ledger.once("candidate", name, {}, lambda made=made: made)
            commit = candidate.commit
            if outcome is Outcome.KEEP:
                commit = workspace.keep(commit, f"Move {name}", {"Hypothesis": f"because {name}", "Verdict": "abc"})
            story = MoveRecord(measured=measured, decision=outcome, reason=f"reason {name}", commit=commit, **common)
            ledger.note("decision", name, story)
        if ended:
            tip = workspace.kept_tip
            ratio = Ratio(point=2.9, low=2.7, high=3.1)
            final = FinalRecord(commit=tip, metric="output_throughput", start=50.0, best=145.0, ratio=ratio)
            ledger.once("final", tip, {}, lambda: final)
            cost = CostRecord(wall_seconds=12.5, candidates=len(moves))
            end = EndRecord(status=EndStatus.IMPROVED, reason="nothing left to try", cost=cost, commit=tip)
            ledger.note("end", "end", end)
        else:
            ledger.note(
                "proposal",
                "m09",
                ProposalRecord(
                    id="m09",
                    kind="launch",
                    title="Open",
                    hypothesis="h",
                    cause="c",
                    predicted=PREDICTED,
                    base="b",
                    change={},
                ),
            )
    return run
