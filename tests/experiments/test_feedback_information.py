"""The laboratory: the kernel's faults leave the traces that they must, and claims hold only for what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.feedback_information import experiment, measured
from experiments.feedback_information.kernel import SHAPES, TILE, Fault, Inputs, Shape, run
from experiments.feedback_information.laboratory import Kernel, generator, plant
from experiments.feedback_information.lecture import figures
from experiments.feedback_information.policies import BESIDE, P4, P5, P7, SEVEN, score
from experiments.feedback_information.tools import PROBES, TOLERANCE, Bench
from experiments.feedback_information.trace import CHECKS, follow
from feedback.errors import UserError
from feedback.information.diagnosis import Stopping
from feedback.information.outcomes import OutcomeTable
from infra_agent.experiments import Context, execute, find

TIDY, EDGE, LONG = SHAPES


def bench(fault: Fault, shape: Shape = EDGE, seed: int = 0) -> Bench:
    rng = generator("test", fault, shape.name, seed)
    return Bench(Inputs.random(shape, rng), fault, rng)


def ask(probe: str, fault: Fault, number: int = 0) -> str:
    return Kernel(fault, 0).outcome(probe, number)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 100), st.integers(0, 9))
def test_without_a_fault_it_is_the_product_on_any_shape(m: int, n: int, k: int, seed: int) -> None:
    made = bench(Fault.NONE, Shape("any", m, n, k), seed)
    assert np.allclose(made.first.c, made.inputs.expected, atol=1e-4)
    assert (made.first.read_outside, made.first.written_outside, made.first.race) == (False, False, False)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(Fault)), st.integers(1, 70), st.integers(1, 70), st.integers(1, 70))
def test_no_fault_runs_out_of_the_emulated_memory(fault: Fault, m: int, n: int, k: int) -> None:
    assert bench(fault, Shape("any", m, n, k)).first.c.shape == (m, n)


@pytest.mark.parametrize(
    ("fault", "tidy", "edge", "long"),
    [
        (Fault.NONE, "pass", "pass", "pass"),
        (Fault.K_TAIL, "pass", "nearly all, large", "pass"),
        (Fault.K_SHORT, "nearly all, large", "nearly all, large", "nearly all, large"),
        (Fault.GRID, "pass", "whole rows and columns, large", "pass"),
        (Fault.STORE, "pass", "whole columns, large", "pass"),
        (Fault.HALF, "pass", "pass", "scattered, small"),
        (Fault.TRANSPOSED, "nearly all, large", "nearly all, large", "nearly all, large"),
    ],
)
def test_each_fault_leaves_its_trace(fault: Fault, tidy: str, edge: str, long: str) -> None:
    assert tuple(ask(f"detailed/{shape.name}", fault) for shape in SHAPES) == (tidy, edge, long)
    assert ask("twice/edge", fault) != "two results"


def test_an_overflowing_store_spoils_the_next_rows_first_columns() -> None:
    made = bench(Fault.STORE)
    rows, columns = np.nonzero(made.wrong)
    assert set(columns) <= set(range(3 * TILE - EDGE.n))
    # A row of blocks repairs the first row that the one before it spoiled.
    assert set(rows) == set(range(EDGE.m)) - {0, 32, 64, 96}
    assert made.first.written_outside
    assert not made.first.read_outside
    assert "columns 0-25 nearly wholly wrong" in PROBES["detailed/edge"].tool.ask(made).line


def test_a_grid_that_is_rounded_down_leaves_the_rest_unwritten() -> None:
    made = bench(Fault.GRID)
    held = made.inputs.c.data[: made.inputs.c.size].reshape(EDGE.m, EDGE.n)
    assert np.array_equal(made.first.c[96:], held[96:])
    assert np.array_equal(made.first.c[:, 64:], held[:, 64:])
    assert not made.wrong[:96, :64].any()


def test_only_a_missing_barrier_races_and_differs_between_runs() -> None:
    for fault in Fault:
        made = bench(fault, TIDY)
        assert made.first.race == (fault is Fault.SYNC)
        assert np.array_equal(made.first.c, made.second.c) == (fault is not Fault.SYNC)
    assert ask("racecheck/tidy", Fault.SYNC) == "race"
    assert ask("twice/tidy", Fault.SYNC) == "two results"


def test_memory_is_checked_where_the_tail_is() -> None:
    assert ask("memcheck/edge", Fault.K_TAIL) == "read outside"
    assert ask("memcheck/edge", Fault.STORE) == "write outside"
    assert {ask("memcheck/tidy", fault) for fault in Fault} == {"clean"}


def test_exercise_4_the_rank_of_the_error_tells_what_random_inputs_do_not() -> None:
    short, transposed = bench(Fault.K_SHORT, TIDY), bench(Fault.TRANSPOSED, TIDY)
    detailed = PROBES["detailed/tidy"].tool
    assert detailed.ask(short).outcome == detailed.ask(transposed).outcome
    assert short.rank == (TILE, 128)
    rank, full = transposed.rank
    assert rank is not None
    assert 115 <= rank <= full
    # Independent of our noise model: what is missing is A's last tile times B's.
    a = short.inputs.a.data[: 128 * 128].reshape(128, 128)[:, -TILE:].astype(np.float64)
    b = short.inputs.b.data[: 128 * 128].reshape(128, 128)[-TILE:].astype(np.float64)
    assert np.allclose(short.inputs.expected - short.first.c, a @ b, atol=1e-3)


def test_the_identity_tells_the_pair_apart() -> None:
    assert ask("identity/tidy", Fault.TRANSPOSED) == "pass"
    assert ask("identity/tidy", Fault.K_SHORT) == "whole columns, large"
    with pytest.raises(ValueError, match="an identity is square"):
        Inputs.identity(EDGE, generator("x"))
    assert "identity/edge" not in PROBES


def test_half_width_sums_are_rounded_in_every_step() -> None:
    made = bench(Fault.HALF, LONG)
    assert np.array_equal(made.first.c, made.first.c.astype(np.float16).astype(np.float32))
    once = np.abs(made.inputs.expected.astype(np.float16) - made.inputs.expected).max()
    assert np.abs(made.first.c - made.inputs.expected).max() > 3 * once
    assert TOLERANCE.reason


def test_what_is_asked_does_not_depend_on_what_was_asked_before() -> None:
    one, other = Kernel(Fault.SYNC, 3), Kernel(Fault.SYNC, 3)
    first = [one.ask(probe, 0) for probe in PROBES]
    assert [other.ask(probe, 0) for probe in reversed(PROBES)] == first[::-1]
    assert one.ask("detailed/edge", 0) != one.ask("detailed/edge", 1)
    clock = generator("x")
    inputs = Inputs.random(EDGE, clock)
    assert not np.array_equal(run(inputs, Fault.SYNC, clock).c, run(inputs, Fault.SYNC, clock).c)


PLANTINGS, SEEDS = 6, 1


@pytest.fixture(scope="module")
def found() -> experiment.Found:
    planted = plant(PLANTINGS, 0, lambda line: None)
    kernels = [Kernel(fault, seed) for fault in Fault for seed in range(SEEDS)]
    stopping = Stopping()
    scores = {p.name: score(p, planted.table, kernels, stopping) for p in (*SEVEN, *BESIDE)}
    trace = follow(P5, planted.table, Fault.STORE, 0, stopping)
    return experiment.Found(planted, scores, trace, figures(planted, scores, trace, 0), stopping)


def failing(found: experiment.Found) -> list[str]:
    return [claim for claim, holds in experiment.told(found).claims.items() if not holds]


def test_the_three_conclusions_hold(found: experiment.Found) -> None:
    told = experiment.told(found)
    assert failing(found) == []
    assert [row[0] for row in told.rows] == [policy.name for policy in (*SEVEN, *BESIDE)]
    assert told.picture is not None
    assert told.picture.render(standalone=True).startswith("<svg")
    json.dumps(told.to_json("feedback_information"))


def test_claims_fail_for_what_was_not_found(found: experiment.Found) -> None:
    def with_score(name: str, other: str) -> list[str]:
        return failing(replace(found, scores={**found.scores, name: found.scores[other]}))

    assert any(claim.startswith("1:") for claim in with_score("P3", "P1"))
    assert any(claim.startswith("1:") for claim in with_score("P1", "P2"))
    assert any(claim.startswith("2:") for claim in with_score("P7", "P5"))
    assert any(claim.startswith("3: most") for claim in with_score("P4", "P6"))
    assert any(claim.startswith("3: where") for claim in with_score("P5 dear", "P4 dear"))
    assert any(claim.startswith("the rank") for claim in with_score("P7 rank", "P7"))
    unranked = replace(found, planted=replace(found.planted, ranks={}))
    assert any(claim.startswith("the rank") for claim in failing(unranked))
    broken = replace(found, trace=replace(found.trace, repaired=False))
    assert any(claim.startswith("the trace") for claim in failing(broken))


def test_the_trace_thinks_acts_observes_and_adds_up(found: experiment.Found) -> None:
    text = "\n".join(found.trace.lines)
    assert text.startswith("[1] Thought: 8 possible; detailed/edge: ")
    for words in (
        "Action: detailed/edge",
        "columns 0-25 nearly wholly wrong",
        "mask the store of C",
        "memcheck: clean",
    ):
        assert words in text
    checks = sum(PROBES[probe].tool.seconds for probe in CHECKS)
    assert found.trace.seconds == 2 * 30 + checks + sum(PROBES[name].tool.seconds for name in found.trace.asked)


def test_a_trace_that_is_not_sure_asks_a_person(found: experiment.Found) -> None:
    trace = follow(P7, found.planted.table, Fault.K_SHORT, 0, Stopping(calls=3))
    assert not trace.repaired
    assert "A person is asked" in trace.lines[-1]


def test_all_policies_meet_the_same_kernels(found: experiment.Found) -> None:
    def answers(name: str) -> dict[tuple[int, str], str]:
        return {
            (number, call.worth.probe): call.outcome
            for number, episode in enumerate(found.scores[name].episodes)
            for call in episode.diagnosis.calls[:1]
        }

    assert answers(P4.name) == answers(P5.name) == answers(P7.name)


def test_the_lecture_stands_beside(found: experiment.Found) -> None:
    ours = {figure.what: (figure.lecture, figure.ours) for figure in found.figures}
    assert ours["store overflow: last wrong column"] == (25, 25)
    assert ours["rank of the error, K loop one short, 128^3"] == (32, 32)
    assert all(figure.why for figure in found.figures)


def table_file(found: experiment.Found, folder: Path) -> Path:
    file = folder / "outcomes.json"
    file.write_text(json.dumps(found.planted.table.to_json()))
    return file


def test_a_table_measured_elsewhere_is_read(found: experiment.Found, tmp_path: Path) -> None:
    file = table_file(found, tmp_path)
    options = {"table": str(file), "draws": "2"}
    result, folder = execute(find("feedback_information"), tmp_path / "out", lambda line: None, options=options)
    assert all(result.claims.values())
    assert {row[0] for row in result.rows} == set(PROBES)
    rates = [row[-1] for row in result.rows]
    assert rates == sorted(rates, reverse=True)
    assert (folder / "picture.svg").exists()
    assert any("no probe tells apart: 0" in note for note in result.notes)


def test_a_table_with_gaps_and_one_planting_each_is_played_to_the_end() -> None:
    rows = [("a", "static", "refuted"), ("b", "operators", "refuted"), ("b", "static", "held"), ("c", "load", "held")]
    table = OutcomeTable.parse(
        {
            "schema": "feedback-outcomes",
            "version": 1,
            "observations": [{"cause": c, "probe": p, "outcome": o, "seconds": 1.0} for c, p, o in rows],
        }
    )
    scores = measured.played(table, 0, 2, Stopping())
    assert all(len(each.episodes) == 6 for each in scores)
    told = measured.told(table, scores)
    assert all(told.claims.values())
    cheapest = next(each for each in scores if each.name == "cheapest first")
    assert all(len(set(e.diagnosis.asked)) == len(e.diagnosis.asked) for e in cheapest.episodes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plantings": "many"}, "plantings=many: a number from 1"),
        ({"confidence": "2"}, "confidence=2: a number from 0.5 to 1"),
        ({"calls": "nan"}, "calls=nan"),
        ({"table": "/nowhere.json"}, "/nowhere.json: cannot be read"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        experiment.run(Context(tmp_path, lambda line: None, options=options))
