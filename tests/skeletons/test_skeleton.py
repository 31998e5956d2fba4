"""The format of a skeleton: conditions that execute, beliefs that evidence moves, expiry and scope."""

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from skeletons.amdahl import bound, log_gain, predicted_gain
from skeletons.skeleton import Condition, Evidence, Expiry, LaunchMove, Scope, Share, Skeleton, Speedup

DATE = datetime.date(2026, 1, 1)
SPEEDUP = Speedup(mean=0.5, sd=0.2, source="test")


def skeleton(**extra) -> Skeleton:
    given = {
        "name": "sample",
        "title": "t",
        "version": 1,
        "kind": "code",
        "cause": "c",
        "symptom": "s",
        "speedup": SPEEDUP,
    }
    return Skeleton(**(given | extra))


def evidence(effect: float = 1.2, **extra) -> Evidence:
    given = {
        "kind": "incremental",
        "supports": effect > 1,
        "effect": effect,
        "interval": (effect * 0.98, effect * 1.02),
        "share": 0.4,
        "environment": {"cpu": "x"},
        "workload": "w",
        "date": DATE,
    }
    return Evidence(**(given | extra))


@pytest.mark.parametrize(
    ("condition", "facts", "holds", "text"),
    [
        ({"fact": "a", "op": ">", "value": 2}, {"a": 3}, True, "a = 3 is > 2"),
        ({"fact": "a", "op": ">", "value": 2}, {"a": 2}, False, "a = 2 is not > 2"),
        ({"fact": "a", "op": ">", "value": 2}, {}, False, "a was not observed"),
        ({"fact": "a", "op": "==", "value": True}, {"a": True}, True, "a = True is == True"),
        ({"fact": "a", "op": "in", "value": ["x", "y"]}, {"a": "y"}, True, "is in"),
        ({"fact": "a", "op": ">=", "other": "b", "factor": 0.5}, {"a": 2, "b": 4}, True, "is >= 2 (b)"),
        ({"fact": "a", "op": ">=", "other": "b"}, {"a": 2}, False, "b was not observed"),
        ({"fact": "a", "op": "<", "value": 3}, {"a": "two"}, False, "cannot be compared"),
    ],
)
def test_conditions_answer_with_their_reason(condition, facts, holds, text):
    check = Condition(**condition, reason="because").check(facts)
    assert check.holds is holds
    assert text in check.text
    assert "because" in check.text


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
    )
)
def test_no_fact_makes_a_condition_raise(facts):
    for op in ("==", "!=", "<", "<=", ">", ">="):
        Condition(fact="a", op=op, value=1, reason="r").check(facts)
        Condition(fact="a", op=op, other="b", factor=2.0, reason="r").check(facts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fact": "a", "op": "==", "reason": "r"},
        {"fact": "a", "op": "==", "value": 1, "other": "b", "reason": "r"},
        {"fact": "a", "op": "in", "value": 3, "reason": "r"},
        {"fact": "a", "op": "~", "value": 3, "reason": "r"},
        {"fact": "a", "op": "==", "value": 3, "reason": ""},
    ],
)
def test_malformed_conditions_are_refused(wrong):
    with pytest.raises(ValidationError):
        Condition(**wrong)


@given(share=st.floats(0, 1), mean=st.floats(-1, 3), sd=st.floats(0.01, 1))
def test_a_predicted_gain_never_exceeds_amdahls_bound(share, mean, sd):
    gain, spread = predicted_gain(share, mean, sd)
    assert gain <= bound(share) + 1e-9
    assert spread >= 0
    assert (gain > 1e-12) <= (share > 0)


@given(share=st.floats(0.01, 1), log_speedup=st.floats(-1, 2))
def test_evidence_gives_back_the_local_speed_up(share, log_speedup):
    ratio = math.exp(log_gain(share, log_speedup))
    measured = evidence(ratio, share=share, interval=(ratio * 0.999, ratio * 1.001)).local_log_speedup()
    assert measured is not None
    assert measured[0] == pytest.approx(log_speedup, abs=1e-6)


def test_evidence_beyond_the_bound_is_bounded():
    measured = evidence(5.0, share=0.1, interval=(4.0, 6.0)).local_log_speedup()
    assert measured is not None
    assert measured[0] == pytest.approx(4.0)


def test_evidence_moves_the_belief_and_narrows_it():
    before = skeleton().belief()
    against = skeleton(evidence=[evidence(0.95), evidence(0.96)]).belief()
    support = skeleton(evidence=[evidence(1.4)] * 2).belief()
    assert against[0] < before[0] < support[0]
    assert max(against[1], support[1]) < before[1]


def test_evidence_without_share_or_interval_does_not():
    assert skeleton(evidence=[evidence(2.0, share=None), evidence(2.0, interval=None)]).belief() == (0.5, 0.2)


def test_a_skeleton_expires_by_date_and_by_refutations_in_a_row():
    dated = skeleton(expires=Expiry(after=DATE))
    assert dated.expired(DATE) is None
    assert "expired on 2026-01-01" in (dated.expired(DATE + datetime.timedelta(1)) or "")
    refuted = [evidence(0.9, date=DATE + datetime.timedelta(n)) for n in range(3)]
    assert "refuted 3 times in a row" in (skeleton(evidence=refuted).expired(DATE) or "")
    saved = [*refuted[:2], evidence(1.1, date=DATE + datetime.timedelta(9))]
    assert skeleton(evidence=saved).expired(DATE) is None


def test_scope_names_what_is_outside_it():
    scope = Scope(minimum={"torch": "2.4"}, below={"torch": "3"}, platforms=("linux",))
    assert scope.outside({"torch": "2.13.0+cpu"}, "linux") is None
    assert scope.outside({"torch": "2.3.9"}, "linux") == "torch 2.3.9 is older than 2.4"
    assert scope.outside({"torch": "3.0"}, "linux") == "torch 3.0 is not below 3"
    assert scope.outside({}, "linux") == "torch is not installed"
    assert scope.outside({"torch": "2.5"}, "win32") == "platform win32 is not one of linux"


def test_shares_are_sums_times_factors_and_unknown_when_nothing_was_seen():
    share = Share(facts=("a", "b"), times=("c",))
    assert share.of({"a": 0.2, "b": 0.4, "c": 0.5}) == pytest.approx(0.3)
    assert share.of({"a": 0.2, "c": 0.5}) == pytest.approx(0.1)
    assert share.of({"a": 0.2}) is None
    assert share.of({"c": 0.5}) is None
    assert Share(facts=("a",), otherwise=0.05).of({}) == 0.05
    assert share.of({"a": 0.9, "b": 0.9, "c": 1.0}) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "launch"},
        {"launch": LaunchMove(parameter=("p",), direction="up")},
        {"kind": "launch", "launch": LaunchMove(parameter=("p",), direction="up")},
        {"speedup": Speedup(mean=0.1, sd=0.1, per="doubling", source="s")},
        {"name": "Not a name"},
        {"colour": "blue"},
    ],
)
def test_a_skeleton_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValidationError):
        skeleton(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"direction": "to"}, {"direction": "up", "value": 1}, {"direction": "to", "value": 1, "fact": "f"}]
)
def test_a_launch_move_says_where_it_goes(wrong):
    with pytest.raises(ValidationError):
        LaunchMove(parameter=("p",), **wrong)


def test_an_interval_is_in_order():
    with pytest.raises(ValidationError):
        evidence(interval=(1.2, 1.1))
