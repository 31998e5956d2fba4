"""What pairs say: variance components, bias, and when the method is held to be sound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.noise import experiment
from experiments.noise.experiment import INTERLEAVED, WHOLE
from experiments.noise.measuring import METHODS, Taken
from experiments.noise.moves import known_moves
from experiments.noise.pairs import Pair, bias, spread


def drawn(seed: int, within: float, between: float, mean: float, instances: int = 60, each: int = 8) -> list[Pair]:
    rng = np.random.default_rng(seed)
    offsets = rng.normal(mean, between, instances)
    return [Pair(i, float(rng.normal(offset, within))) for i, offset in enumerate(offsets) for _ in range(each)]


def test_the_spread_is_split_into_what_made_it() -> None:
    found = spread(drawn(1, within=0.02, between=0.01, mean=0.3))
    assert found.within == pytest.approx(0.02, rel=0.1)
    assert found.between == pytest.approx(0.01, rel=0.25)
    assert found.sd == pytest.approx(math.hypot(0.02, 0.01), rel=0.1)
    assert abs(found.mean - 0.3) <= found.half


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    held = 0
    for seed in range(400):
        found = spread(drawn(seed, 0.01, 0.02, 0.0, instances=8, each=3))
        held += abs(found.mean) <= found.half
    assert 0.92 <= held / 400 <= 0.98


def test_more_pairs_resolve_more() -> None:
    found = spread(drawn(2, 0.02, 0.0, 0.0))
    assert found.resolvable(4) == pytest.approx(math.expm1(math.log1p(found.resolvable(1)) / 2))
    assert found.resolvable(1) == pytest.approx(0.058, rel=0.15)  # 2.8 standard deviations


@given(st.integers(0, 50), st.floats(-1, 1))
def test_a_shift_moves_the_mean_alone(seed: int, shift: float) -> None:
    pairs = drawn(seed, 0.02, 0.01, 0.0, instances=5, each=3)
    moved = spread([Pair(pair.instance, pair.log_ratio + shift) for pair in pairs])
    still = spread(pairs)
    assert moved.mean == pytest.approx(still.mean + shift, abs=1e-9)
    assert (moved.sd, moved.within) == (pytest.approx(still.sd), pytest.approx(still.within))


def test_bias_is_seen_between_methods_not_between_instances() -> None:
    one = drawn(3, 0.004, 0.05, 0.2)
    same = [Pair(pair.instance, pair.log_ratio + 0.001 * (-1) ** i) for i, pair in enumerate(one)]
    assert bias(one, same).below(0.01)
    off = bias(one, [Pair(pair.instance, pair.log_ratio + 0.05) for pair in same])
    assert off.seen
    assert not off.below(0.02)
    with pytest.raises(ValueError, match="1 instances were measured by both"):
        bias([Pair(0, 0.1)], [Pair(0, 0.2)])


def test_too_few_pairs_say_nothing() -> None:
    with pytest.raises(ValueError, match="take more"):
        spread([Pair(0, 0.1)])


PRODUCTION = {"dtype": "bfloat16", "max_batch": 16, "operators": {"rms_norm": "native", "linear": "native"}}


def test_the_moves_are_known() -> None:
    moves = known_moves(PRODUCTION)
    assert moves[0].base == moves[0].candidate
    assert all(move.candidate == PRODUCTION and move.base != PRODUCTION for move in moves[1:])
    assert len(moves) == 4
    assert moves[1].base["operators"] == {"linear": "native"}


def taken(offset: float = 0.0, noise: float = 0.005) -> list[Taken]:
    found = []
    for number, move in enumerate(known_moves(PRODUCTION)):
        one, true = Taken(move), 0.2 * number
        one.pairs[INTERLEAVED] = drawn(10 + number, noise, 0.003, true, 10, 4)
        one.pairs[WHOLE] = drawn(10 + number, 0.03, 0.003, true + offset, 10, 4)
        found.append(one)
    return found


def test_claims_hold_for_a_sound_method_and_fail_for_a_biased_or_a_noisy_one() -> None:
    told = experiment.told(taken())
    assert all(told.claims.values()), told.claims
    assert len(told.rows) == 4 * len(METHODS)
    assert not all(experiment.told(taken(offset=0.1)).claims.values())
    assert not all(experiment.told(taken(noise=0.03)).claims.values())


def test_moves_without_pairs_are_shown_as_such() -> None:
    told = experiment.told([Taken(move) for move in known_moves(PRODUCTION)])
    assert not any(told.claims.values())
    assert told.rows[0][4] is None
