"""How axes are cut and put together: nothing is lost, nothing is had twice unless it is the same, heads stay whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from target_engine.parallel.cutting import Whole, blocks, even, head_share, head_size, shard_lengths, span, token_index
from target_engine.parallel.tokens import local_starts, order
from target_engine.parallel.topology import Topology, owner

SIZES = st.integers(0, 50)
PARTS = st.integers(1, 9)


@given(total=SIZES, parts=PARTS)
def test_even_parts_differ_by_one_at_most(total: int, parts: int) -> None:
    sizes = even(total, parts)
    assert sum(sizes) == total
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert np.concatenate([span(total, parts, part) for part in range(parts)]).tolist() == list(range(total))


@given(group=st.integers(1, 6), kv_heads=st.integers(1, 8), data=st.data())
def test_every_query_head_lies_on_one_rank_beside_its_key_value_head(
    group: int, kv_heads: int, data: st.DataObject
) -> None:
    heads = group * kv_heads
    ranks = data.draw(st.integers(1, heads))
    dealt = []
    for rank in range(ranks):
        query, kv = head_share(heads, kv_heads, ranks, rank)
        assert len(query) >= 1
        assert len(query) % len(kv) == 0, "grouped-query attention divides evenly"
        local = len(query) // len(kv)
        for place, head in enumerate(query):
            assert kv[place // local] == head // group, "a query head reads its own key-value head"
        dealt += query.tolist()
    assert dealt == list(range(heads))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "shares"),
    [
        (9, 3, 2, [(6, [0, 1]), (3, [2])]),
        (9, 3, 4, [(3, [0]), (2, [1]), (2, [1, 2]), (2, [2])]),
        (8, 2, 4, [(2, [0]), (2, [0]), (2, [1]), (2, [1])]),
        (6, 1, 4, [(2, [0]), (2, [0]), (1, [0]), (1, [0])]),
    ],
)
def test_shares_of_known_models(heads: int, kv_heads: int, ranks: int, shares: list) -> None:
    found = [head_share(heads, kv_heads, ranks, rank) for rank in range(ranks)]
    assert [(len(query), kv.tolist()) for query, kv in found] == shares


def test_a_test_head_divides_all_widths() -> None:
    assert (head_size(64, 32), head_size(45, 15), head_size(37), head_size(576, 192)) == (16, 15, 1, 16)
    assert blocks(np.array([2, 0]), 3).tolist() == [6, 7, 8, 0, 1, 2]


@given(runs=st.lists(SIZES, min_size=1, max_size=5), ranks=PARTS, seed=st.integers(0, 2**31))
def test_tokens_lie_on_one_rank_each_and_gather_in_order(runs: list[int], ranks: int, seed: int) -> None:
    lengths = shard_lengths(runs, ranks, seed)
    assert lengths.shape == (ranks, len(runs))
    assert (lengths >= 0).all()
    assert lengths.sum(axis=0).tolist() == runs
    laid = np.concatenate([token_index(lengths, rank) for rank in range(ranks)])
    assert laid[order(torch.from_numpy(lengths)).numpy()].tolist() == list(range(sum(runs)))
    for rank in range(ranks):
        starts = local_starts(torch.from_numpy(lengths[rank])).tolist()
        assert starts == [0, *np.cumsum(lengths[rank]).tolist()]


def test_random_cuts_are_uneven_and_have_empty_pieces() -> None:
    lengths = [shard_lengths([20, 1], 4, seed) for seed in range(1, 40)]
    assert any((each[:, 0] == 0).any() for each in lengths)
    assert len({tuple(each[:, 0]) for each in lengths}) > 20


def test_what_two_ranks_have_must_be_the_same() -> None:
    whole = Whole((3,), np.dtype(np.float32))
    whole.put(np.array([1.0, 2.0], np.float32), (np.array([0, 1]),))
    whole.put(np.array([2.0, 3.0], np.float32), (np.array([1, 2]),))
    assert whole.result().tolist() == [1.0, 2.0, 3.0]
    whole.put(np.array([2.5], np.float32), (np.array([1]),))
    assert np.isnan(whole.result()[1])
    missing = Whole((2,), np.dtype(np.int64))
    missing.put(np.array([7]), (np.array([0]),))
    assert missing.result().tolist() == [7, np.iinfo(np.int64).min], "what nobody has is wrong"
    twice = Whole((1,), np.dtype(np.float32))
    twice.put(np.array([1.0, 2.0], np.float32), (np.array([0, 0]),))
    assert np.isnan(twice.result()[0])


@given(tp=st.integers(1, 5), cp=st.integers(1, 5))
def test_every_rank_is_in_one_group_of_each_kind(tp: int, cp: int) -> None:
    for rank in range(tp * cp):
        topology = Topology(tp, cp, rank)
        (tp_group,) = (group for group in topology.tp_groups if rank in group)
        (cp_group,) = (group for group in topology.cp_groups if rank in group)
        assert tp_group.index(rank) == topology.tp_rank
        assert cp_group.index(rank) == topology.cp_rank
        assert set(tp_group) & set(cp_group) == {rank}


@given(layers=st.integers(1, 20), ranks=PARTS)
def test_layers_are_kept_by_all_ranks_alike(layers: int, ranks: int) -> None:
    kept = [sum(owner(layer, ranks) == rank for layer in range(layers)) for rank in range(ranks)]
    assert max(kept) - min(kept) <= 1
