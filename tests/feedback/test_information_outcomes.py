"""Counted outcomes: smoothing rules nothing out, files read themselves back, and bad ones are one clear line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.information.belief import Belief
from feedback.information.choice import alike, choose, ranked, worth
from feedback.information.diagnosis import Stopping, diagnose
from feedback.information.outcomes import OTHER, Observed, OutcomeTable

rows = st.lists(
    st.builds(
        Observed,
        st.sampled_from(["tail", "sync", "none"]),
        st.sampled_from(["test", "race"]),
        st.sampled_from(["pass", "fail", "columns"]),
        st.floats(0, 100),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=20,
)


@given(rows, st.floats(1e-3, 10))
def test_nothing_is_impossible_and_rows_are_distributions(seen: list, pseudo: float) -> None:
    table = OutcomeTable.of(seen)
    for likelihood in table.likelihoods(pseudo=pseudo):
        assert np.all(likelihood.matrix > 0)
        assert np.allclose(likelihood.matrix.sum(axis=1), 1)
        assert np.all(likelihood.seconds > 0)


@given(rows, st.lists(st.tuples(st.sampled_from(["test", "race"]), st.sampled_from(["pass", "new"])), max_size=12))
def test_no_answer_rules_a_cause_out(seen: list, answers: list) -> None:
    table = OutcomeTable.of(seen)
    belief = Belief.before(table)
    for probe, outcome in answers:
        if probe in table.probes:
            belief = belief.after(table.likelihood(probe), outcome)
    assert all(p > 0 for p in belief.probabilities)
    assert sum(belief.probabilities) == pytest.approx(1)


@given(rows)
def test_a_probe_is_worth_at_most_what_is_unknown_and_what_it_can_say(seen: list) -> None:
    table = OutcomeTable.of(seen)
    belief = Belief.before(table)
    for likelihood in table.likelihoods():
        found = worth(belief, likelihood)
        assert 0 <= found.bits <= min(belief.entropy, math.log2(len(likelihood.outcomes))) + 1e-9


@given(rows)
def test_a_file_reads_back(seen: list) -> None:
    table = OutcomeTable.of(seen, about={"seed": 3})
    again = OutcomeTable.parse(json.loads(json.dumps(table.to_json())))
    assert again.counts == table.counts
    assert (again.causes, again.probes, again.about) == (table.causes, table.probes, table.about)
    assert again.seconds == pytest.approx(table.seconds)


def test_counts_prevail_over_the_smoothing() -> None:
    table = OutcomeTable.of([Observed("a", "p", "x", 1.0, 1000), Observed("b", "p", "y", 3.0, 1000)])
    likelihood = table.likelihood("p")
    assert likelihood.matrix[0, likelihood.outcomes.index("x")] > 0.998
    assert likelihood.seconds.tolist() == [1.0, 3.0]
    assert worth(Belief.before(table), likelihood).bits == pytest.approx(1.0, abs=0.02)
    assert worth(Belief.before(table), likelihood).seconds == 2.0


def test_an_outcome_that_was_never_seen_says_nothing_where_all_were_planted_as_often() -> None:
    table = OutcomeTable.of([Observed("a", "p", "x", 1.0, 5), Observed("b", "p", "y", 1.0, 5)])
    belief = Belief.weighted({"a": 3.0, "b": 1.0})
    assert belief.after(table.likelihood("p"), "new").probabilities == pytest.approx((0.75, 0.25))
    assert OTHER in table.outcomes("p")


def test_a_cause_that_was_never_planted_under_a_probe_has_what_the_others_have() -> None:
    table = OutcomeTable.of([Observed("a", "p", "x", 2.0, 99), Observed("b", "q", "y", 1.0)])
    likelihood = table.likelihood("p")
    assert likelihood.matrix[1, likelihood.outcomes.index("x")] > 0.95
    assert likelihood.seconds.tolist() == [2.0, 2.0]


CLOSED = {"test": ("pass", "fail")}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9))
def test_pass_or_fail_stays_within_a_bit_however_it_was_counted(counts: list) -> None:
    seen = [
        Observed(f"c{number}", "test", outcome, 1.0, count)
        for number, pair in enumerate(counts)
        for outcome, count in zip(CLOSED["test"], pair, strict=True)
        if count
    ]
    if seen:
        table = OutcomeTable.of(seen, CLOSED)
        assert worth(Belief.before(table), table.likelihood("test")).bits <= 1 + 1e-9


def test_a_closed_probe_answers_nothing_else() -> None:
    with pytest.raises(ValueError, match="answers pass, fail, not 'columns'"):
        OutcomeTable.of([Observed("a", "test", "columns", 1.0)], CLOSED)
    table = OutcomeTable.of([Observed("a", "test", "pass", 1.0)], CLOSED)
    with pytest.raises(ValueError, match="answers pass, fail, not 'maybe'"):
        Belief.before(table).after(table.likelihood("test"), "maybe")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "not a table of outcomes"),
        ({"schema": "feedback-outcomes", "version": 9}, "not a table of outcomes"),
        ({"observations": 3}, "must be a list"),
        ({"observations": []}, "without an observation"),
        ({"observations": [{"cause": "a"}]}, "observation 1: "),
        ({"observations": [{"cause": "a", "probe": "p", "outcome": "x", "seconds": -1}]}, "1: seconds are finite"),
        ({"observations": [{"cause": "a", "probe": "p", "outcome": "x", "seconds": "1"}]}, "observation 1: "),
        ({"observations": [{"cause": "a", "probe": "p", "outcome": "", "seconds": 1}]}, "1: an observation names"),
        ({"observations": [{"cause": 3, "probe": "p", "outcome": "x", "seconds": 1}]}, "1: an observation names"),
        ({"observations": [{"cause": "a", "probe": "p", "outcome": "x", "seconds": 1, "count": 0}]}, "1: a count"),
        ({"observations": [{"cause": "a", "probe": "p", "outcome": "x", "seconds": 1, "size": 0}]}, "observation 1: "),
        ({"prior": {"b": 1.0}}, "a prior gives every planted cause"),
        ({"prior": {"a": 0.0}}, "a prior gives every planted cause"),
        ({"probes": {"p": {"outcomes": ["y"]}}}, "p answers y, not 'x'"),
        ({"probes": {"p": 3}}, "the file: "),
    ],
)
def test_a_bad_file_is_one_clear_line(value: object, words: str) -> None:
    good = {
        "schema": "feedback-outcomes",
        "version": 1,
        "observations": [{"cause": "a", "probe": "p", "outcome": "x", "seconds": 1.5}],
    }
    with pytest.raises(UserError, match=words) as caught:
        OutcomeTable.parse({**good, **value} if isinstance(value, dict) else value, "the file")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    for name in ("x.json", "y.json"):
        with pytest.raises(UserError, match=f"{name}: cannot be read as JSON"):
            OutcomeTable.read(tmp_path / name)


def separating() -> OutcomeTable:
    """Two cheap probes that halve four causes, a dear one that tells all; `twin` is like `d` in all of them."""
    seen = []
    for number, cause in enumerate(["a", "b", "c", "d", "twin"]):
        place = min(number, 3)
        seen.append(Observed(cause, "high", str(place // 2), 1.0, 40))
        seen.append(Observed(cause, "low", str(place % 2), 1.0, 40))
        seen.append(Observed(cause, "all", str(place), 50.0, 40))
    return OutcomeTable.of(seen)


def answers(table: OutcomeTable, cause: str) -> dict[str, str]:
    return {probe: next(iter(table.counts[cause, probe])) for probe in table.probes}


def test_bits_per_second_takes_the_cheap_ones_and_bits_the_one_that_tells_all() -> None:
    table = separating()
    belief = Belief.before(table)
    assert [w.probe for w in ranked(belief, table.likelihoods())][-1] == "all"
    assert ranked(belief, table.likelihoods(), "bits")[0].probe == "all"
    assert choose(belief, table.likelihoods(), least_bits=5.0) is None
    free = [each.costing(1.0) for each in table.likelihoods()]
    assert ranked(belief, free)[0].probe == "all"


def test_causes_that_nothing_tells_apart_are_named_and_never_found() -> None:
    table = separating()
    assert alike(table.likelihoods()) == [("d", "twin")]
    assert alike([]) == []
    for cause in table.causes:
        said = answers(table, cause)
        found = diagnose(Belief.before(table), table.likelihoods(), lambda probe, n, said=said: said[probe])
        assert found.found == (None if cause in ("d", "twin") else cause)
        assert len(found.calls) == (8 if found.found is None else 2)
        assert found.seconds == pytest.approx(sum(call.worth.seconds for call in found.calls))


def test_it_stops_when_sure_when_out_of_calls_and_when_nothing_is_worth_asking() -> None:
    table = separating()
    said = answers(table, "d")
    belief = Belief.before(table)

    def calls(stopping: Stopping) -> int:
        return len(diagnose(belief, table.likelihoods(), lambda probe, n: said[probe], stopping).calls)

    assert calls(Stopping(confidence=0.3)) == 1
    assert calls(Stopping(calls=1)) == 1
    assert calls(Stopping(least_bits=0.2)) == 2


def test_a_call_knows_how_often_its_probe_was_called() -> None:
    table = OutcomeTable.of([Observed("a", "p", "x", 1.0, 6), Observed("b", "p", "x", 1.0, 5)])
    asked: list[tuple[str, int]] = []

    def ask(probe: str, number: int) -> str:
        asked.append((probe, number))
        return "x"

    diagnose(Belief.before(table), table.likelihoods(), ask, Stopping(calls=3))
    assert asked == [("p", 0), ("p", 1), ("p", 2)]
