"""The embedded proposer: pure, bounded by arithmetic, taught by what came of earlier moves, and blind to the order of
a library.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_agent.hypothesis import Move, amdahl_ceiling
from infra_agent.ladder import Experience
from infra_agent.proposers.causes import CAUSES, HEALTHY, diagnosis, observation, presence, with_found
from infra_agent.proposers.embedded import Aim, Proposal, Stop, Trial, bundles, propose, skill
from infra_agent.records import Outcome, Ratio
from tests.infra_agent import worlds
from tests.infra_agent.worlds import LAYERS, SLOW, move

AIM = Aim("output_throughput", 0.02)
FRESH = Experience(LAYERS)


def ratio(point: float, half: float = 0.01) -> Ratio:
    return Ratio(point=point, low=point - half, high=point + half)


def ask(
    openings: list[Move],
    history: list[Trial] | None = None,
    facts: Any = SLOW,
    seconds_left: float = math.inf,
    seed: int = 0,
) -> Proposal | Stop:
    return propose(AIM, history or [], openings, facts, FRESH, seconds_left, seed, "now")


def chosen(answer: Proposal | Stop) -> str:
    assert isinstance(answer, Proposal), answer
    return answer.hypothesis.move.key


moves = st.lists(
    st.builds(
        move,
        key=st.text("abcdef", min_size=1, max_size=6),
        kind=st.sampled_from(["launch", "code"]),
        cause=st.sampled_from([cause.name for cause in CAUSES]),
        predicted=st.floats(1.01, 3.0),
        share=st.floats(0.05, 1.0),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda m: m.key,
)


@given(moves, st.integers(0, 10))
def test_the_order_of_the_library_does_not_matter(openings: list[Move], seed: int) -> None:
    other = list(openings)
    random.Random(seed).shuffle(other)
    first, second = ask(openings, seed=seed), ask(other, seed=seed)
    assert first == second


@given(moves)
def test_no_prediction_is_above_what_arithmetic_allows(openings: list[Move]) -> None:
    answer = ask(openings)
    if isinstance(answer, Proposal):
        ceiling = amdahl_ceiling(answer.hypothesis.move.share)
        assert math.log(answer.hypothesis.predicted.high) <= ceiling + 1e-9
        assert answer.estimate.gain <= ceiling + 1e-9


def test_the_same_gain_for_less_time_is_better() -> None:
    cheap, costly = (
        move("a", "launch", "wide_weights", 1.3),
        move("b", "launch", "wide_weights", 1.3, changes_numerics=True),
    )
    assert chosen(ask([costly, cheap])) == "a"


def test_a_move_against_a_likelier_cause_is_better() -> None:
    likely = move("a", "launch", "too_few_slots", 1.2)
    unlikely = move("b", "launch", "prompts_in_small_pieces", 1.25)
    assert chosen(ask([unlikely, likely])) == "a"


def test_it_stops_when_nothing_is_left_and_says_so() -> None:
    answer = ask([])
    assert isinstance(answer, Stop)
    assert "no move is left" in answer.reason


def test_it_stops_when_the_gain_is_not_worth_the_verification() -> None:
    answer = ask([move("tiny", predicted=1.005, spread=0.005)])
    assert isinstance(answer, Stop)
    assert "tiny" in answer.reason


def test_it_stops_when_there_is_no_time_for_the_best_move() -> None:
    answer = ask([move("a", predicted=1.5)], seconds_left=5.0)
    assert isinstance(answer, Stop)
    assert "5 s are left" in answer.reason


def test_a_rejected_move_is_not_proposed_again_on_the_same_state() -> None:
    tried = move("a", predicted=1.3)
    for outcome in (Outcome.REJECT, Outcome.ASK, Outcome.REVISE, Outcome.KEEP):
        assert isinstance(ask([tried], [Trial(tried, outcome, ratio(0.99), None, "now")]), Stop)


def test_a_rejected_move_comes_back_when_the_state_promises_much_more() -> None:
    tried = move("a", predicted=1.1)
    before = [Trial(tried, Outcome.REVISE, ratio(1.01), None, "then")]
    assert isinstance(ask([move("a", predicted=1.12)], before), Stop)
    assert chosen(ask([move("a", predicted=1.4)], before)) == "a"


def test_a_move_that_computes_the_wrong_thing_does_not_come_back() -> None:
    wrong = [Trial(move("a", predicted=1.1), Outcome.REJECT, None, "operators", "then")]
    assert isinstance(ask([move("a", predicted=1.9)], wrong), Stop)


def test_predictions_are_corrected_by_what_was_measured() -> None:
    promised = move("a8", predicted=1.5, skeletons=("grow",))
    delivered = [Trial(promised, Outcome.KEEP, ratio(1.1), None, "then")]
    again, stranger = move("a16", predicted=1.5, skeletons=("grow",)), move("other", "launch", predicted=1.5)
    assert skill(again, delivered) < skill(stranger, delivered) == 1.0
    answer = ask([again], delivered)
    assert isinstance(answer, Proposal)
    assert answer.hypothesis.predicted.mean < 1.35


def test_a_disappointment_lowers_the_belief_in_its_cause() -> None:
    openings = [move("b", "launch", "too_few_slots", 1.2), move("c", "launch", "wide_weights", 1.19)]
    assert chosen(ask(openings)) == "b"
    failed = [Trial(move("a", "launch", "too_few_slots", 1.5), Outcome.REJECT, ratio(1.0), None, "now")]
    assert chosen(ask(openings, failed)) == "c"


def test_two_near_misses_with_different_causes_are_tried_together() -> None:
    one, two = move("a", cause="projections_apart"), move("b", "launch", cause="weights_repacked_every_call")
    near = [Trial(m, Outcome.REVISE, ratio(1.018, 0.004), None, "now") for m in (one, two)]
    answer = ask([one, two], near)
    assert isinstance(answer, Proposal)
    assert answer.hypothesis.move.parts == ("a", "b")
    assert answer.hypothesis.move.kind == "bundle"
    together = answer.hypothesis.move
    assert bundles([*near, Trial(together, Outcome.REVISE, ratio(1.0), None, "now")], [one, two]) == []


def test_near_misses_that_set_the_same_parameter_are_not_bundled() -> None:
    one = move("a", "launch", "too_few_slots", launch={"max_batch": 8})
    two = move("b", "launch", "wide_weights", launch={"max_batch": 16})
    assert bundles([Trial(m, Outcome.REVISE, ratio(1.01), None, "now") for m in (one, two)], [one, two]) == []


def test_a_hypothesis_says_because_what_how_much_and_what_would_refute_it() -> None:
    answer = ask([move("more slots", "launch", "too_few_slots", 1.5)])
    assert isinstance(answer, Proposal)
    sentence = answer.hypothesis.sentence()
    assert "6.0 requests wait" in sentence
    assert "more slots" in sentence
    assert "1.50x" in sentence
    assert "would refute it" in sentence


# -- causes ------------------------------------------------------------------------------------------------------------

SEARCHED = with_found(worlds.HEALTHY, [], [cause.name for cause in CAUSES])

PLANTED = {
    "too_few_slots": {
        "queue.waiting_mean": 6.0,
        "decode.rows_mean": 1.0,
        "decode.occupancy": 1.0,
        "launch.max_batch": 1.0,
    },
    "wide_weights": {"weights.bytes_per_param": 4.0},
    "blocks_gathered": {"share.op.attention_decode": 0.4, "found.blocks_gathered": 1.0},
    "prefixes_recomputed": {"prefix.hit_share": 0.0, "prefix.repeat_share": 0.6, "share.phase.prefill": 0.4},
    "threads_do_not_match_cores": {"launch.threads": 1.0},
    "prompts_in_small_pieces": {
        "prefill.tokens_per_step": 16.0,
        "launch.prefill_chunk": 16.0,
        "share.phase.prefill": 0.6,
        "share.phase.decode": 0.3,
    },
    "kv_heads_repeated": {"share.op.attention_prefill": 0.25, "found.kv_heads_repeated": 1.0},
    "norm_in_pieces": {"share.op.rms_norm": 0.15, "found.norm_in_pieces": 1.0},
    "work_repeated": {"share.phase.prepare": 0.2, "found.work_repeated": 1.0},
    "tensors_regrown": {"found.tensors_regrown": 2.0},
    "projections_apart": {"found.projections_apart": 2.0},
    "weights_repacked_every_call": {"found.weights_repacked_every_call": 4.0},
}


def test_a_healthy_engine_is_found_healthy() -> None:
    assert diagnosis(SEARCHED)[0][0] == HEALTHY


@pytest.mark.parametrize("cause", sorted(PLANTED))
def test_a_planted_cause_is_the_first_diagnosis(cause: str) -> None:
    assert diagnosis({**SEARCHED, **PLANTED[cause]})[0][0] == cause


@given(
    st.dictionaries(
        st.sampled_from([*SLOW, "found.projections_apart", "share.phase.mixed"]),
        st.one_of(st.floats(0, 1e6, allow_nan=False), st.booleans(), st.just("torch")),
    )
)
def test_any_facts_give_a_distribution(facts: dict[str, float | bool | str]) -> None:
    ranked = diagnosis(facts)
    assert sum(probability for _, probability in ranked) == pytest.approx(1.0)
    assert [p for _, p in ranked] == sorted((p for _, p in ranked), reverse=True)
    assert all(0 <= probability <= 1 for probability in presence(facts).values())
    assert all(observation(cause.name, facts) for cause in CAUSES)


def test_nothing_observed_is_no_evidence() -> None:
    assert presence({}) == pytest.approx({cause.name: cause.prior for cause in CAUSES})


def test_a_cause_that_only_a_library_knows_is_judged_by_what_it_found() -> None:
    found = with_found({}, ["cache_concatenated"], ["cache_concatenated"])
    absent = with_found({}, [], ["cache_concatenated"])
    assert presence(found)["cache_concatenated"] > 0.7
    assert presence(absent)["cache_concatenated"] < 0.05
    assert "1 place" in observation("cache_concatenated", found)
