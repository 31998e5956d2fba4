"""The ladder asks what can refute a move soonest, and never less than a kept move needs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.information.outcomes import Observed, OutcomeTable
from infra_agent.ladder import (
    SOUND,
    Experience,
    asking,
    belief,
    expected_seconds,
    next_probe,
    optional,
    order,
    refuting_probe,
    required,
    worths,
)
from tests.infra_agent.verdicts import Status, load, verdict
from tests.infra_agent.worlds import LAYERS, move

LAUNCH = move("slots", "launch")
CODE = move("fuse", "code")
NUMERICS = move("narrow", "launch", changes_numerics=True)
FRESH = Experience(LAYERS)

layers = st.sampled_from(["static", "smoke", "operators", "microbench", "accuracy", "load"])
answers = st.lists(st.tuples(layers, st.sampled_from([Status.CONFIRMED, Status.REFUTED])), max_size=30)


def learnt(taught: list[tuple[str, Status]]) -> Experience:
    experience = FRESH
    for layer, status in taught:
        said = load(1.2 if status is Status.CONFIRMED else 0.9) if layer == "load" else None
        experience = experience.learn("code", said or verdict(layer, status, metrics={"seconds": 1.0}))
    return experience


def test_what_a_move_needs_follows_from_what_it_changes() -> None:
    assert required(LAUNCH) == {"static", "smoke", "load"}
    assert required(CODE) == {"static", "smoke", "operators", "load"}
    assert required(NUMERICS) == {"static", "smoke", "accuracy", "load"}
    assert optional(move("hoist", "code", operators=())) == frozenset()


@given(answers, st.sampled_from([LAUNCH, CODE, NUMERICS, move("both", "bundle")]))
def test_static_is_first_load_is_last_and_nothing_needed_is_left_out(taught: list, tried) -> None:
    steps = order(tried, learnt(taught))
    assert steps[0] == "static"
    assert steps[-1] == "load"
    assert required(tried) <= set(steps)
    assert len(steps) == len(set(steps))


@given(answers)
def test_no_other_order_finds_a_bad_move_in_less_time(taught: list) -> None:
    experience = learnt(taught)
    steps = order(CODE, experience)
    best = expected_seconds(CODE, experience, steps)
    for middle in itertools.permutations(steps[1:-1]):
        assert best <= expected_seconds(CODE, experience, [steps[0], *middle, steps[-1]]) + 1e-9


def test_an_optional_layer_is_asked_when_it_saves_more_than_it_costs() -> None:
    refuting = learnt([("microbench", Status.REFUTED)] * 10)
    harmless = learnt([("microbench", Status.CONFIRMED)] * 30)
    assert "microbench" in order(CODE, refuting)
    assert "microbench" not in order(CODE, harmless)


def test_counts_and_costs_are_learnt() -> None:
    before = FRESH.refutes("code", "operators")
    after = FRESH.learn("code", verdict("operators", Status.REFUTED, cost_seconds=20.0))
    assert after.refutes("code", "operators") > before
    assert after.cost("operators") == 20.0
    assert FRESH.refutes("code", "operators") == before
    assert after.learn("code", verdict("operators", cost_seconds=10.0)).cost("operators") == pytest.approx(16.0)


def test_a_probe_that_broke_teaches_nothing_about_moves() -> None:
    assert FRESH.learn("code", verdict("smoke", Status.INVALID)).refutes("code", "smoke") == FRESH.refutes(
        "code", "smoke"
    )


def test_a_broken_probe_is_asked_again_once() -> None:
    broken = verdict("smoke", Status.INVALID)
    asked = [verdict("static"), verdict("operators"), verdict("microbench", metrics={"x": 1.0})]
    assert next_probe(CODE, [*asked, broken], FRESH) == "smoke"
    assert next_probe(CODE, [*asked, broken, broken], FRESH) == "load"


def test_load_is_asked_again_while_the_decision_is_open() -> None:
    asked = [verdict("static"), verdict("smoke"), load(1.02)]
    assert next_probe(LAUNCH, asked, FRESH) == "load"


def test_the_ladder_ends_when_load_keeps_breaking() -> None:
    broken = load(1.0, status=Status.INVALID)
    assert next_probe(LAUNCH, [verdict("static"), verdict("smoke"), broken, broken], FRESH) is None


def test_the_refuting_probe_is_one_that_the_move_needs() -> None:
    assert refuting_probe(CODE, learnt([("operators", Status.REFUTED)] * 5)) == "operators"
    assert refuting_probe(LAUNCH, FRESH) in required(LAUNCH)


@given(answers, st.sampled_from([LAUNCH, CODE, NUMERICS]), st.sets(layers))
def test_what_has_held_makes_a_move_more_likely_sound_and_never_proves_it(taught: list, tried, held: set) -> None:
    experience = learnt(taught)
    before, after = belief(tried, experience).of(SOUND), belief(tried, experience, held).of(SOUND)
    assert before <= after + 1e-12
    assert after < 1


@given(answers, st.sets(st.sampled_from(["static", "smoke", "operators"])))
def test_what_is_left_is_asked_in_the_order_that_is_quickest_after_what_has_held(taught: list, held: set) -> None:
    experience = learnt(taught)
    steps = order(NUMERICS, experience, frozenset(held), held)
    middle = [layer for layer in steps if layer not in ("static", "load")]
    ends = [layer for layer in steps if layer == "static"], [layer for layer in steps if layer == "load"]
    best = expected_seconds(NUMERICS, experience, steps, held)
    for other in itertools.permutations(middle):
        assert best <= expected_seconds(NUMERICS, experience, [*ends[0], *other, *ends[1]], held) + 1e-9


def test_a_layer_that_held_lowers_the_worth_of_those_that_look_for_the_same() -> None:
    def told(*held: str) -> dict[str, float]:
        answered = [verdict(layer) for layer in held]
        return {each.probe: each.bits for each in worths(CODE, answered, FRESH)}

    assert told("static", "operators")["smoke"] < told("static")["smoke"]
    assert all(bits >= 0 for bits in told().values())
    assert all(bits <= 1 for bits in told().values())


def test_planted_flaws_replace_what_was_assumed() -> None:
    rows = [Observed("smoke", "operators", "refuted", 1.0, 9), Observed("smoke", "operators", "confirmed", 1.0)]
    planted = OutcomeTable.of([*rows, Observed("sound", "operators", "confirmed", 1.0, 10)])
    measured = Experience(LAYERS, planted=planted)
    assert measured.sees("smoke", "operators") == pytest.approx(0.87, abs=0.05)
    assert measured.sees("sound", "operators") < 0.1
    assert measured.sees("smoke", "load") == FRESH.sees("smoke", "load")
    assert measured.learn("code", verdict("smoke")).planted is planted
    after = belief(CODE, measured, ["operators"]).of("smoke")
    assert 0 < after < belief(CODE, FRESH, ["operators"]).of("smoke")


def test_a_flaw_that_has_been_looked_for_is_known_by_what_others_miss() -> None:
    assert belief(CODE, FRESH, ["smoke"]).of("smoke") < 0.01
    # A crash can be in what no operator is asked about, so it stays possible after `operators`.
    assert belief(CODE, FRESH, ["operators"]).of("smoke") > 0.3 * belief(CODE, FRESH).of("smoke")


def test_what_asking_tells_is_said_in_the_order_of_asking() -> None:
    one = move("x", operators=("x",))
    experience = Experience(LAYERS)
    said = asking(one, experience)
    names = [part.split()[0] for part in said.removeprefix("asks in this order: ").split(", ")]
    assert names == order(one, experience)
    assert said.count("bits (") == len(names)
