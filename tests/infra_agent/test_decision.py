"""What is done with a move follows from its verdicts alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_agent.decision import Limit, Rules, closed, decide, pooled
from infra_agent.records import Outcome
from tests.infra_agent.verdicts import Location, Status, load, verdict
from tests.infra_agent.worlds import move

RULES = Rules(margin=0.02)
LAUNCH = move("slots", "launch")
CODE = move("fuse", "code")
RIGHT = [verdict("static"), verdict("smoke"), verdict("operators")]


def test_a_confirmed_effect_above_the_margin_is_kept() -> None:
    decision = decide(CODE, [*RIGHT, load(1.2)], RULES, False)
    assert decision is not None
    assert decision.outcome is Outcome.KEEP
    assert decision.measured is not None
    assert decision.measured.point == 1.2


def test_without_load_nothing_is_decided() -> None:
    assert decide(CODE, RIGHT, RULES, True) is None


@pytest.mark.parametrize("layer", ["static", "smoke", "operators", "accuracy", "microbench"])
def test_a_refutation_rejects_with_its_line(layer: str) -> None:
    wrong = verdict(layer, Status.REFUTED, "columns 0-25 wrong", at=(Location(file="ops/x.py", line=3),))
    decision = decide(CODE, [verdict("static"), wrong], RULES, True)
    assert decision is not None
    assert decision.outcome is Outcome.REJECT
    assert "columns 0-25 wrong" in decision.reason
    assert "ops/x.py:3" in decision.reason


def test_a_fast_candidate_with_wrong_outputs_is_rejected_for_the_outputs() -> None:
    wrong = load(1.5, status=Status.REFUTED).model_copy(update={"observed": "request r3 token 17 is wrong"})
    decision = decide(CODE, [*RIGHT, wrong], RULES, True)
    assert decision is not None
    assert decision.outcome is Outcome.REJECT
    assert "token 17" in decision.reason


def test_a_broken_constraint_rejects_a_gain() -> None:
    rules = Rules(margin=0.02, limits=(Limit("p95_ttft_ms", "p95_ttft_ms", 900.0),))
    decision = decide(LAUNCH, [*RIGHT, load(1.4, metrics={"p95_ttft_ms": 1200.0})], rules, True)
    assert decision is not None
    assert decision.outcome is Outcome.REJECT
    assert "p95_ttft_ms is 1200, at most 900" in decision.reason


def test_a_constraint_that_nothing_measured_is_not_kept() -> None:
    rules = Rules(margin=0.02, limits=(Limit("p95_itl_ms", "p95_itl_ms", 900.0),))
    decision = decide(LAUNCH, [*RIGHT, load(1.4, metrics={"p95_ttft_ms": 100.0})], rules, True)
    assert decision is not None
    assert decision.outcome is Outcome.REJECT
    assert "a constraint was not measured: p95_itl_ms" in decision.reason


def test_a_lower_bound_is_read_as_one() -> None:
    rules = Rules(margin=0.02, limits=(Limit("greedy_agreement", "greedy_agreement", 0.9, at_most=False),))
    accuracy = verdict("accuracy", metrics={"greedy_agreement": 0.95})
    decision = decide(LAUNCH, [*RIGHT, accuracy, load(1.4)], rules, True)
    assert decision is not None
    assert decision.outcome is Outcome.KEEP


def test_an_open_interval_asks_for_another_pass_and_then_closes() -> None:
    first = load(1.03, half=0.02)
    assert decide(LAUNCH, [*RIGHT, first], RULES, another_pass=True) is None
    unaffordable = decide(LAUNCH, [*RIGHT, first], RULES, another_pass=False)
    assert unaffordable is not None
    assert unaffordable.outcome is Outcome.REVISE
    second = decide(LAUNCH, [*RIGHT, first, load(1.035, half=0.02)], RULES, another_pass=True)
    assert second is not None
    assert second.outcome in (Outcome.KEEP, Outcome.REVISE)


def test_a_small_gain_is_revised_and_a_loss_rejected() -> None:
    small = decide(LAUNCH, [*RIGHT, load(1.01, half=0.005)], RULES, True)
    slower = decide(LAUNCH, [*RIGHT, load(0.9)], RULES, True)
    assert small is not None
    assert small.outcome is Outcome.REVISE
    assert slower is not None
    assert slower.outcome is Outcome.REJECT


def test_a_code_move_whose_operators_were_not_confirmed_is_not_kept() -> None:
    unsure = [verdict("static"), verdict("smoke"), verdict("operators", Status.INCONCLUSIVE), load(1.3)]
    decision = decide(CODE, unsure, RULES, True)
    assert decision is not None
    assert decision.outcome is Outcome.REJECT


def test_what_a_target_cannot_show_is_named_and_something_must_have_checked_it() -> None:
    blind = verdict("operators", Status.UNSUPPORTED)
    seen = decide(CODE, [verdict("static"), verdict("smoke"), blind, load(1.3)], RULES, True)
    assert seen is not None
    assert seen.outcome is Outcome.KEEP
    assert "not checked here: operators" in seen.reason
    unseen = decide(CODE, [verdict("static"), verdict("smoke", Status.UNSUPPORTED), blind, load(1.3)], RULES, True)
    assert unseen is not None
    assert unseen.outcome is Outcome.REJECT


def test_a_change_that_needs_approval_is_set_aside() -> None:
    numerics = move("narrow", "launch", changes_numerics=True)
    rules = Rules(margin=0.02, approvals=frozenset({"numerics"}))
    decision = decide(numerics, [*RIGHT, verdict("accuracy"), load(1.4)], rules, True)
    assert decision is not None
    assert decision.outcome is Outcome.ASK
    assert "numerics" in decision.reason


def test_a_probe_that_broke_twice_cannot_lead_to_a_keep() -> None:
    decision = closed(LAUNCH, [verdict("static"), verdict("smoke"), load(1.4, status=Status.INVALID)])
    assert decision.outcome is Outcome.REJECT
    assert "could not be judged" in decision.reason


def test_passes_that_disagree_do_not_make_a_narrow_interval() -> None:
    ratio = pooled([load(1.10, half=0.01), load(1.30, half=0.01)])
    assert ratio is not None
    assert ratio.low < 1.08
    assert ratio.high > 1.32


@given(
    effect=st.floats(0.7, 1.6),
    half=st.floats(0.001, 0.1),
    statuses=st.fixed_dictionaries(
        {layer: st.sampled_from([None, *Status]) for layer in ("static", "smoke", "operators", "accuracy")}
    ),
    numerics=st.booleans(),
    another=st.booleans(),
)
def test_nothing_is_kept_without_proof(
    effect: float, half: float, statuses: dict[str, Status | None], numerics: bool, another: bool
) -> None:
    tried = move("fuse", "code", changes_numerics=numerics)
    asked = [verdict(layer, status) for layer, status in statuses.items() if status is not None]
    decision = decide(tried, [*asked, load(effect, half=half)], RULES, another)
    if decision is None or decision.outcome is not Outcome.KEEP:
        return
    assert effect - half > 1.02
    assert Status.REFUTED not in statuses.values()
    assert any(statuses[layer] is Status.CONFIRMED for layer in ("smoke", "operators", "accuracy"))
    needed = ["static", "smoke", "operators", *(["accuracy"] if numerics else [])]
    assert all(statuses[layer] in (Status.CONFIRMED, Status.UNSUPPORTED) for layer in needed)
