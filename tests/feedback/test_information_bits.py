"""Information is never negative, and bounded by what is unknown and what can be answered; exercises 1 to 3."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedback.information.belief import Belief
from feedback.information.bits import entropy, information, least_calls, posterior
from feedback.information.choice import Worth, choose, worth
from feedback.information.outcomes import Likelihood

weights = st.floats(0, 1) | st.just(0.0)


@st.composite
def distributions(draw: st.DrawFn, least: int = 1, most: int = 9) -> np.ndarray:
    values = draw(hnp.arrays(np.float64, st.integers(least, most), elements=weights))
    return values / values.sum() if values.sum() > 1e-3 else np.full(values.size, 1 / values.size)


@st.composite
def problems(draw: st.DrawFn, outcomes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    prior = draw(distributions())
    width = outcomes or draw(st.integers(1, 7))
    rows = [draw(distributions(width, width)) for _ in prior]
    return prior, np.stack(rows)


@given(distributions())
def test_entropy_lies_between_nothing_and_all_equal(p: np.ndarray) -> None:
    assert 0 <= entropy(p) <= math.log2(p.size) + 1e-9


@given(st.integers(1, 64))
def test_equal_causes_take_their_logarithm(n: int) -> None:
    assert entropy(np.full(n, 1 / n)) == pytest.approx(math.log2(n))


@given(problems())
def test_information_is_never_negative_and_never_more_than_is_unknown_or_can_be_said(problem: tuple) -> None:
    prior, likelihood = problem
    told = information(prior, likelihood)
    assert 0 <= told <= min(entropy(prior), math.log2(likelihood.shape[1])) + 1e-9


@given(problems(outcomes=2))
def test_pass_or_fail_tells_at_most_one_bit(problem: tuple) -> None:
    assert information(*problem) <= 1 + 1e-9


@given(problems())
def test_it_is_the_expected_fall_of_the_entropy(problem: tuple) -> None:
    prior, likelihood = problem
    expected = prior @ likelihood
    left = [chance * entropy(posterior(prior, likelihood[:, o])) for o, chance in enumerate(expected) if chance > 1e-12]
    assert information(prior, likelihood) == pytest.approx(entropy(prior) - sum(left), abs=1e-6)


@given(problems(), st.data())
def test_names_do_not_matter(problem: tuple, data: st.DataObject) -> None:
    prior, likelihood = problem
    rows, columns = (data.draw(st.permutations(range(size))) for size in likelihood.shape)
    again = information(prior[rows], likelihood[rows][:, columns])
    assert again == pytest.approx(information(prior, likelihood), abs=1e-9)


@given(problems())
def test_a_coarser_answer_never_tells_more(problem: tuple) -> None:
    prior, likelihood = problem
    coarse = np.stack([likelihood[:, 0], likelihood[:, 1:].sum(axis=1)], axis=1)
    assert information(prior, coarse) <= information(prior, likelihood) + 1e-9


@given(problems(), st.data())
def test_bayes_gives_a_distribution(problem: tuple, data: st.DataObject) -> None:
    prior, likelihood = problem
    outcome = data.draw(st.integers(0, likelihood.shape[1] - 1))
    if not np.any((prior > 0) & (likelihood[:, outcome] > 0)):
        with pytest.raises(ValueError, match="no cause can make"):
            posterior(prior, likelihood[:, outcome])
        return
    after = posterior(prior, likelihood[:, outcome])
    assert after.sum() == pytest.approx(1)
    assert np.all(after[prior == 0] == 0)
    assert np.all(after >= 0)


def sure(fails: int, causes: int = 8) -> np.ndarray:
    """A deterministic test that fails on so many causes."""
    return np.array([[0.0, 1.0]] * fails + [[1.0, 0.0]] * (causes - fails))


UNIFORM = np.full(8, 1 / 8)


def test_exercise_1_a_test_that_fails_on_three_of_eight() -> None:
    expected = 3 - (3 / 8 * math.log2(3) + 5 / 8 * math.log2(5))
    assert information(UNIFORM, sure(3)) == pytest.approx(expected)
    assert information(UNIFORM, sure(3)) == pytest.approx(entropy(np.array([3, 5]) / 8))
    assert information(UNIFORM, sure(3)) == pytest.approx(0.954, abs=5e-4)


def named(probe: str, matrix: np.ndarray, seconds: float) -> Likelihood:
    causes, outcomes = (tuple(f"{kind}{i}" for i in range(n)) for kind, n in zip("co", matrix.shape, strict=True))
    return Likelihood(probe, causes, outcomes, matrix, np.full(len(causes), seconds))


def test_exercise_2_two_bits_in_3_s_before_three_bits_in_120_s() -> None:
    a = named("A", np.kron(np.eye(4), np.ones((2, 1))), 3.0)
    b = named("B", np.eye(8), 120.0)
    belief = Belief.uniform(a.causes)
    assert worth(belief, a) == Worth("A", pytest.approx(2.0), 3.0)
    assert worth(belief, b) == Worth("B", pytest.approx(3.0), pytest.approx(120.0))
    assert worth(belief, a).rate == pytest.approx(0.67, abs=5e-3)
    assert worth(belief, b).rate == pytest.approx(0.025)
    assert choose(belief, [a, b]) == worth(belief, a)
    # What A can tell is used up: only B is left.
    later = belief.after(a, "o0")
    assert later.entropy == pytest.approx(1.0)
    chosen = choose(later, [a, b])
    assert chosen is not None
    assert chosen.probe == "B"
    # Time does not matter: B first.
    chosen = choose(belief, [a, b], by="bits")
    assert chosen is not None
    assert chosen.probe == "B"


def test_exercise_3_a_bound_from_below() -> None:
    assert least_calls(8, 2) == 3
    assert least_calls(8, 4) == 2
    assert least_calls(1, 2) == 0
    assert least_calls(9, 2) == 4


@given(st.integers(1, 10**6), st.integers(2, 12))
def test_the_bound_is_tight(causes: int, outcomes: int) -> None:
    calls = least_calls(causes, outcomes)
    assert outcomes**calls >= causes
    assert calls == 0 or outcomes ** (calls - 1) < causes


@pytest.mark.parametrize("wrong", [[], [0.5, 0.4], [1.5, -0.5], [[1.0]]])
def test_what_is_no_distribution_is_refused(wrong: list) -> None:
    with pytest.raises(ValueError, match="distribution"):
        entropy(np.array(wrong))


def test_a_likelihood_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="rows that sum to one"):
        information(UNIFORM, sure(3, causes=7))
    with pytest.raises(ValueError, match="rows that sum to one"):
        information(UNIFORM, np.full((8, 2), 0.4))
    with pytest.raises(ValueError, match="at least two outcomes"):
        least_calls(8, 1)
