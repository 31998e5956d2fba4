"""The loop over recorded measurements: it keeps what pays, says why it rejects, survives cuts, and ends in time."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback.verdict import Verdict
from infra_agent.closing import reserve
from infra_agent.ledger import Ledger, Row
from infra_agent.loop import run
from infra_agent.measurements import Openings, Subject, Traffic
from infra_agent.measurements.recorded import START, RecordedMeasurements, StateFacts, Table, TableMove
from infra_agent.measurements.replay import table_of
from infra_agent.progress import Lines
from infra_agent.proposers.causes import Facts
from infra_agent.records import AblationRecord, EndStatus, FinalRecord, Outcome
from infra_agent.steps import END_SHARE, Steps
from tests.infra_agent.worlds import (
    LAYERS,
    SLOW,
    Silent,
    decisions,
    goal,
    healthy,
    kept,
    move,
    play,
    shuffled,
    typical,
)


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory where there is one: a ledger waits for the disk at every row, and some tests write many."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


GOOD = {"more_slots", "narrow", "native_decode", "pack"}


def results(path: Path, kind: str) -> list[dict]:
    ledger = Ledger.read(path)
    try:
        return [row.payload for row in ledger.rows(kind, "result")]
    finally:
        ledger.close()


def test_it_keeps_what_pays_and_rejects_the_rest_with_the_reason(quick_path: Path) -> None:
    end = play(typical(), quick_path / "ledger")
    assert end.status is EndStatus.IMPROVED
    assert set(kept(quick_path / "ledger")) == GOOD
    reasons = {record.skeletons[0]: record.reason for record in decisions(quick_path / "ledger")}
    assert "columns 0-25 wrong" in reasons["wrong"]
    assert "SIGSEGV in start" in reasons["crash"]
    assert "no such site" in reasons["unmade"]
    assert "below the margin" in reasons["slower"]
    assert "below the margin" in reasons["useless"]


def test_a_wrong_move_costs_no_load_pass(quick_path: Path) -> None:
    play(typical(), quick_path / "ledger")
    asked = [(r["move"], r["verdict"]["layer"]) for r in results(quick_path / "ledger", "verdict")]
    wrong = next(record.id for record in decisions(quick_path / "ledger") if record.skeletons == ("wrong",))
    assert (wrong, "operators") in asked
    assert (wrong, "load") not in asked


def test_the_end_compares_with_start_par_and_sequential_and_attributes_the_gain(quick_path: Path) -> None:
    table = typical()
    play(table, quick_path / "ledger")
    final = FinalRecord.model_validate(results(quick_path / "ledger", "final")[0])
    true = 1.7 * 1.5 * 1.3 * 1.12
    assert final.ratio.low <= true * 1.02
    assert final.ratio.high >= true * 0.98
    assert final.best / final.start == pytest.approx(final.ratio.point)
    against = {(c.against, c.held_out): c.ratio.point for c in final.comparisons}
    assert against["start", True] == pytest.approx(true, rel=0.05)
    assert against["par", False] == pytest.approx(true / table.par, rel=0.05)
    assert against["sequential", False] == pytest.approx(true / table.sequential, rel=0.05)
    ablation = {a.label: a for a in map(AblationRecord.model_validate, results(quick_path / "ledger", "ablation"))}
    gains = {
        m.skeletons[0]: ablation[m.id].gain for m in decisions(quick_path / "ledger") if m.decision is Outcome.KEEP
    }
    for name, effect in (("more_slots", 1.7), ("narrow", 1.5), ("native_decode", 1.3), ("pack", 1.12)):
        gain = gains[name]
        assert gain is not None
        assert gain.point == pytest.approx(effect, rel=0.04)
    assert ablation["launch"].gain is not None
    assert ablation["launch"].gain.point == pytest.approx(1.7 * 1.5, rel=0.04)
    assert ablation["code"].gain is not None
    assert ablation["code"].gain.point == pytest.approx(1.3 * 1.12, rel=0.04)


def test_a_move_that_cannot_be_taken_out_alone_keeps_its_incremental_gain(quick_path: Path) -> None:
    table = typical()
    moves = [m.model_copy(update={"tied": ("pack",)}) if m.move.key == "narrow" else m for m in table.moves]
    play(table.model_copy(update={"moves": tuple(moves)}), quick_path / "ledger")
    narrow = next(record for record in decisions(quick_path / "ledger") if record.skeletons == ("narrow",))
    record = next(r for r in results(quick_path / "ledger", "ablation") if r["label"] == narrow.id)
    assert "cannot be taken out alone" in record["note"]
    assert narrow.measured is not None
    assert record["gain"]["point"] == narrow.measured.point


def test_a_healthy_start_ends_with_no_patch(quick_path: Path) -> None:
    end = play(healthy(), quick_path / "ledger")
    assert end.status is EndStatus.NO_WIN
    assert end.commit == START
    assert kept(quick_path / "ledger") == []
    assert results(quick_path / "ledger", "final") == []


@pytest.mark.parametrize("seed", range(6))
def test_a_shuffled_library_gives_the_same_story(seed: int, quick_path: Path) -> None:
    play(typical(), quick_path / "one")
    play(shuffled(typical(), seed), quick_path / "other")
    assert decisions(quick_path / "one") == decisions(quick_path / "other")


def test_moves_that_pay_only_together_are_found_as_a_bundle(quick_path: Path) -> None:
    moves = (
        TableMove(move=move("left", cause="projections_apart", predicted=1.08), effect=1.012, together={"right": 1.06}),
        TableMove(move=move("right", "launch", "weights_repacked_every_call", predicted=1.08), effect=1.012),
    )
    table = typical().model_copy(update={"moves": moves, "noise": 0.002})
    end = play(table, quick_path / "ledger")
    assert end.status is EndStatus.IMPROVED
    story = [(record.kind, record.decision.value) for record in decisions(quick_path / "ledger")]
    assert story == [("code", "revise"), ("launch", "revise"), ("bundle", "keep")] or story == [
        ("launch", "revise"),
        ("code", "revise"),
        ("bundle", "keep"),
    ]


def test_a_change_that_needs_approval_is_set_aside_and_the_run_goes_on(quick_path: Path) -> None:
    play(typical(), quick_path / "ledger", goal(approval={"kinds": ["numerics"]}))
    outcome = {record.skeletons[0]: record.decision for record in decisions(quick_path / "ledger")}
    assert outcome["narrow"] is Outcome.ASK
    assert outcome["native_decode"] is Outcome.KEEP


def test_a_constraint_turns_down_a_gain(quick_path: Path) -> None:
    end = play(typical(), quick_path / "ledger", goal(constraints={"p95_ttft_ms": 500}))
    assert end.status is EndStatus.NO_WIN
    assert any("p95_ttft_ms is 900" in record.reason for record in decisions(quick_path / "ledger"))


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wall", [40.0, 90.0, 150.0, 200.0, 300.0, 1200.0])
def test_it_ends_within_its_budget_with_the_finals_done(wall: float, quick_path: Path) -> None:
    end = play(typical(), quick_path / "ledger", goal(wall))
    searching = sum(record.seconds for record in decisions(quick_path / "ledger"))
    assert searching <= wall
    # The comparison with the start is made in any case, in two rebuilt pairs.
    assert end.cost.wall_seconds <= max(wall * (1 + END_SHARE), searching + 2 * LAYERS["load"]) + LAYERS["load"]
    if end.status is EndStatus.IMPROVED:
        assert results(quick_path / "ledger", "final")


def test_a_budget_of_candidates_is_respected(quick_path: Path) -> None:
    end = play(typical(), quick_path / "ledger", goal(budget={"wall_seconds": 3000.0, "candidates": 2}))
    assert end.cost.candidates == 2
    assert "2 candidates" in end.reason


def test_more_kept_moves_need_more_time_at_the_end(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        steps = Steps(goal(), ledger, RecordedMeasurements(typical()), Silent())
        assert reserve(steps, 1) < reserve(steps, 2) < reserve(steps, 8)


# -- cuts --------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Not an `Exception`: nothing in the loop may catch it, as nothing catches SIGKILL."""


def test_killed_at_every_ledger_write_it_makes_the_same_decisions(quick_path: Path) -> None:
    rows = []
    play(typical(), quick_path / "whole", observer=rows.append)
    whole = decisions(quick_path / "whole")
    assert len(rows) > 100
    for cut in range(1, len(rows) + 1):
        path = quick_path / f"cut{cut}"
        seen = 0

        def kill(row: Row, cut: int = cut) -> None:
            nonlocal seen
            seen += 1
            if seen == cut:
                raise Killed

        with pytest.raises(Killed):
            play(typical(), path, observer=kill)
        play(typical(), path)
        assert decisions(path) == whole, f"cut at write {cut}"
        names = [row.key for row in _rows(path, "verdict")]
        assert len(names) == len(set(names)), "a verdict was recorded twice"


def test_killed_again_and_again_it_still_arrives(quick_path: Path) -> None:
    path = quick_path / "ledger"
    cuts = 0
    while True:
        seen = 0

        def kill(row: Row) -> None:
            nonlocal seen
            seen += 1
            if seen == 7:
                raise Killed

        try:
            play(typical(), path, observer=kill)
            break
        except Killed:
            cuts += 1
    play(typical(), quick_path / "whole")
    assert cuts > 10
    assert decisions(path) == decisions(quick_path / "whole")


class Cut(RecordedMeasurements):
    """A world that dies inside an effect: after it was done and before it could be recorded."""

    def __init__(self, table: Table, after: int) -> None:
        super().__init__(table)
        self._left = after

    def ask(self, layer: str, subject: Subject) -> Verdict:
        verdict = super().ask(layer, subject)
        self._left -= 1
        if self._left == 0:
            raise Killed
        return verdict


@pytest.mark.parametrize("after", [1, 4, 9])
def test_killed_inside_an_effect_the_effect_is_done_again(after: int, quick_path: Path) -> None:
    with pytest.raises(Killed), Ledger.open(quick_path / "ledger") as ledger:
        run(goal(), ledger, Cut(typical(), after), Silent(), START)
    play(typical(), quick_path / "ledger")
    play(typical(), quick_path / "whole")
    assert decisions(quick_path / "ledger") == decisions(quick_path / "whole")
    assert [row.phase for row in _rows(quick_path / "ledger", None) if row.phase == "interrupted"] == ["interrupted"]


def _rows(path: Path, kind: str | None) -> list[Row]:
    ledger = Ledger.read(path)
    try:
        return [
            row
            for row in ledger.rows()
            if (kind is None or row.kind == kind) and (kind is None or row.phase == "result")
        ]
    finally:
        ledger.close()


class Breaking(RecordedMeasurements):
    """A world whose probes raise for one candidate."""

    def ask(self, layer: str, subject: Subject) -> Verdict:
        if subject.move.key == "narrow" and layer == "smoke":
            raise RuntimeError("the worker pool\nfell over")
        return super().ask(layer, subject)


def test_a_probe_that_breaks_costs_one_candidate_not_the_run(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        end = run(goal(), ledger, Breaking(typical()), Silent(), START)
    assert end.status is EndStatus.IMPROVED
    narrow = next(record for record in decisions(quick_path / "ledger") if record.skeletons == ("narrow",))
    assert narrow.decision is Outcome.REJECT
    assert "the worker pool fell over" in narrow.reason


class Broken(RecordedMeasurements):
    """A world in which nothing can be timed."""

    def ask(self, layer: str, subject: Subject) -> Verdict:
        if layer == "load":
            raise OSError("no such device")
        return super().ask(layer, subject)


def test_a_run_that_could_judge_nothing_says_so_and_is_no_clean_ending(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        moves = tuple(entry for entry in typical().moves if not entry.refuted and not entry.fails)
        table = typical().model_copy(update={"moves": moves})
        end = run(goal(), ledger, Broken(table), Silent(), START)
    assert end.status is EndStatus.FAILED
    assert "no candidate could be judged" in end.reason


class Unsure(RecordedMeasurements):
    """A world whose accuracy layer breaks when it is asked about the final state, or whose end is slow to answer."""

    def __init__(self, table: Table, latency: float | None = None) -> None:
        super().__init__(table)
        self.latency = latency

    def ask(self, layer: str, subject: Subject) -> Verdict:
        if layer == "accuracy" and subject.hypothesis == "final" and self.latency is None:
            raise OSError("no such device")
        return super().ask(layer, subject)

    def compare(self, base: str, candidate: str, traffic: Traffic, label: str, n: int = 1) -> Verdict:
        verdict = super().compare(base, candidate, traffic, label, n)
        more = {} if self.latency is None else {"p95_ttft_ms": self.latency}
        return verdict.model_copy(update={"metrics": verdict.metrics | more})


def test_an_accuracy_that_was_not_confirmed_at_the_end_is_said(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        end = run(goal(), ledger, Unsure(typical()), Silent(), START)
    assert end.status is EndStatus.IMPROVED
    assert "accuracy of all kept moves together is not confirmed" in end.reason
    assert "no such device" in end.reason


def test_a_constraint_that_the_rebuilt_best_state_breaks_is_no_success(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        end = run(goal(constraints={"p95_ttft_ms": 1000}), ledger, Unsure(typical(), 1100.0), Silent(), START)
    assert end.status is EndStatus.FAILED
    assert "p95_ttft_ms is 1100, at most 1000" in end.reason


# -- any world ---------------------------------------------------------------------------------------------------------

kinds = st.sampled_from(["launch", "code"])
causes = st.sampled_from(["too_few_slots", "wide_weights", "blocks_gathered", "projections_apart"])


@st.composite
def worlds(draw: st.DrawFn) -> Table:
    moves = []
    for number in range(draw(st.integers(1, 6))):
        layer = draw(st.sampled_from([None, None, None, "static", "smoke", "operators"]))
        effect = draw(st.floats(0.7, 1.8))
        offered = move(f"k{number}", draw(kinds), draw(causes), draw(st.floats(1.02, 2.0)))
        moves.append(TableMove(move=offered, effect=effect, refuted={layer: f"{layer} is wrong"} if layer else {}))
    return Table(
        layers=LAYERS,
        metrics={"output_throughput": 50.0},
        states=(StateFacts(applied=(), facts=SLOW),),
        moves=tuple(moves),
        seed=draw(st.integers(0, 5)),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=worlds(), order=st.integers(0, 3))
def test_in_any_world_only_right_moves_that_pay_are_kept(table: Table, order: int, quick_path: Path) -> None:
    path = Path(tempfile.mkdtemp(dir=quick_path))
    play(table, path / "one")
    truth = {entry.move.key: entry for entry in table.moves}
    for record in decisions(path / "one"):
        if record.decision is not Outcome.KEEP or record.kind == "bundle":
            continue
        entry = truth[record.skeletons[0]]
        asked = {"static", "smoke", *(["operators"] if record.kind == "code" else [])}
        assert not asked & entry.refuted.keys()
        assert math.log(entry.effect) > math.log(1.02) - 4 * table.noise
    play(shuffled(table, order), path / "two")
    assert decisions(path / "one") == decisions(path / "two")


def test_the_story_is_told_in_lines_a_person_can_read(quick_path: Path) -> None:
    told = io.StringIO()
    with Ledger.open(quick_path / "ledger") as ledger:
        run(goal(), ledger, RecordedMeasurements(typical()), Lines(told), START)
    text = told.getvalue()
    for words in (
        "because   6.0 requests wait on average",
        "predicts  output_throughput 1.80x",
        "✓ load       confirmed",
        "✗ operators  refuted: columns 0-25 wrong",
        "best so far",
        "against par",
        "is worth",
        "improved after",
    ):
        assert words in text
    assert "\033" not in text


class Growing(RecordedMeasurements):
    """Offers a move only after another was kept: what a re-profile is for."""

    def openings(self, commit: str, facts: Facts) -> Openings:
        offered = super().openings(commit, facts)
        return offered if commit != START else offered.model_copy(update={"moves": offered.moves[:1]})


def test_a_kept_move_opens_new_ones(quick_path: Path) -> None:
    with Ledger.open(quick_path / "ledger") as ledger:
        run(goal(), ledger, Growing(typical()), Silent(), START)
    assert set(kept(quick_path / "ledger")) == GOOD


# -- replay -----------------------------------------------------------------------------------------------------------


def replayed(path: Path) -> Table:
    ledger = Ledger.read(path)
    try:
        return table_of(ledger.rows())
    finally:
        ledger.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_recorded_run_is_replayed_in_any_order_of_its_library(seed: int, quick_path: Path) -> None:
    play(typical(), quick_path / "run")
    table = replayed(quick_path / "run")
    play(shuffled(table, seed), quick_path / "again")
    assert kept(quick_path / "again") == kept(quick_path / "run")
    story = [(r.skeletons, r.decision) for r in decisions(quick_path / "run")]
    assert [(r.skeletons, r.decision) for r in decisions(quick_path / "again")] == story


def test_a_replay_knows_nothing_of_moves_that_were_not_tried(quick_path: Path) -> None:
    play(typical(), quick_path / "run", goal(budget={"wall_seconds": 1200.0, "candidates": 2}))
    play(replayed(quick_path / "run"), quick_path / "again")
    assert set(kept(quick_path / "again")) == set(kept(quick_path / "run"))
    assert any("not measured in the recorded run" in record.reason for record in decisions(quick_path / "again"))
