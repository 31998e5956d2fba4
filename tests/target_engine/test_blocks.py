"""The block pool: explicit holders, one release path, conservation."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from target_engine.memory.blocks import BlockPool, Holder, OutOfBlocks

A, B = Holder("request", "a"), Holder("request", "b")
CACHE, TRANSFER = Holder("cache", "prefix"), Holder("transfer", "t")


def test_a_block_is_free_again_only_after_its_last_holder_let_go() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1, A)
    pool.share(block, TRANSFER)
    pool.release(block, A)
    assert pool.free == 1
    assert pool.holders(block) == (TRANSFER,)
    pool.release(block, TRANSFER)
    assert pool.free == 2
    pool.check()


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3, 4)
    pool.allocate(2, A)
    with pytest.raises(OutOfBlocks, match="request b needs 2 blocks, 1 of 3 are free"):
        pool.allocate(2, B)
    assert pool.free == 1
    pool.check()


def test_a_double_free_names_the_holder_and_the_block() -> None:
    pool = BlockPool(2, 4)
    blocks = pool.allocate(1, A)
    pool.release(blocks, A)
    with pytest.raises(ValueError, match=f"request a releases block {blocks[0]}, which it does not hold"):
        pool.release(blocks, A)


def test_sharing_needs_a_living_block_and_a_new_holder() -> None:
    pool = BlockPool(2, 4)
    with pytest.raises(ValueError, match="it is free"):
        pool.share(0, A)
    (block,) = pool.allocate(1, A)
    with pytest.raises(ValueError, match="already holds"):
        pool.share(block, A)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 4).blocks_for(tokens) == blocks


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0, 4)


class PoolAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls keeps the pool equal to a dictionary of sets."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 2)
        self.model: dict[int, set[Holder]] = {block: set() for block in range(num_blocks)}

    holders = st.sampled_from([A, B, CACHE, TRANSFER])

    @rule(count=st.integers(0, 9), holder=holders)
    def allocate(self, count: int, holder: Holder) -> None:
        free = {block for block, holders in self.model.items() if not holders}
        if count > len(free):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count, holder)
            return
        blocks = self.pool.allocate(count, holder)
        assert len(set(blocks)) == count
        assert set(blocks) <= free
        for block in blocks:
            self.model[block] = {holder}

    @rule(data=st.data(), holder=holders)
    def share(self, data: st.DataObject, holder: Holder) -> None:
        block = data.draw(st.sampled_from(sorted(self.model)))
        if self.model[block] and holder not in self.model[block]:
            self.pool.share(block, holder)
            self.model[block].add(holder)
        else:
            with pytest.raises(ValueError, match=r"it is free|already holds"):
                self.pool.share(block, holder)

    @rule(data=st.data(), holder=holders)
    def release(self, data: st.DataObject, holder: Holder) -> None:
        block = data.draw(st.sampled_from(sorted(self.model)))
        if holder in self.model[block]:
            self.pool.release(block, holder)
            self.model[block].remove(holder)
        else:
            with pytest.raises(ValueError, match="does not hold"):
                self.pool.release(block, holder)

    @invariant()
    def agree(self) -> None:
        self.pool.check()
        assert {block: set(self.pool.holders(block)) for block in self.model} == self.model
        for holder in (A, B, CACHE, TRANSFER):
            assert self.pool.sole(holder) == sum(holders == {holder} for holders in self.model.values())


TestPool = PoolAgainstModel.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_holders_that_have_gone_leave_nothing_behind() -> None:
    pool = BlockPool(2, 4)
    for number in range(100):
        holder = Holder("request", str(number))
        (block,) = pool.allocate(1, holder)
        pool.share(block, TRANSFER)
        pool.release(block, holder)
        pool.release(block, TRANSFER)
    assert not pool._sole
    pool.check()
