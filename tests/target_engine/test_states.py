"""State slots and snapshots: one holder while written, a position that only zeroing, copying and computing change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from target_engine.memory.blocks import BlockPool, Holder
from target_engine.memory.prefix import CACHE, PrefixCache
from target_engine.memory.snapshots import Snapshot, Snapshots
from target_engine.memory.states import OutOfStates, StatePool

A, B = Holder("request", "a"), Holder("request", "b")
STEP = Holder("transfer", "step")
LAYOUT = "four heads"


def cached(size: int = 2, slots: int = 3, blocks: int = 8) -> tuple[StatePool, Snapshots, list[int]]:
    """A pool with a prefix of three cached blocks [1, 1, 2, 2, 3, 3, ...]."""
    pool = StatePool(1, slots, LAYOUT)
    prefix = PrefixCache(BlockPool(blocks, size))
    snapshots = Snapshots(pool, prefix)
    tokens = [block for block in (1, 2, 3) for _ in range(size)]
    owned = prefix.pool.allocate(3, A)
    prefix.publish(tokens, owned)
    prefix.pool.release(owned, A)
    return pool, snapshots, owned


def filled(pool: StatePool, position: int, holder: Holder = STEP) -> int:
    """A slot with the state after so many tokens."""
    slot = pool.allocate(holder)
    pool.zero(slot)
    pool.advance(slot, 0, position)
    return slot


# Slots


def test_a_slot_off_the_free_list_has_no_position_until_it_is_zeroed() -> None:
    pool = StatePool(2, 0, LAYOUT)
    slot = filled(pool, 7, A)
    pool.release(slot, A)
    again = pool.allocate(B)
    assert again == slot, "the same slot is used again"
    assert pool.position(again) is None
    with pytest.raises(ValueError, match=r"holds the state of no known prefix: it was never zeroed"):
        pool.advance(again, 0, 1)
    pool.zero(again)
    pool.advance(again, 0, 1)
    assert pool.position(again) == 1


def test_a_slot_moves_on_from_where_it_stands() -> None:
    pool = StatePool(1, 0, LAYOUT)
    slot = filled(pool, 4, A)
    for start in (0, 3, 5):
        with pytest.raises(ValueError, match=f"holds the state after 4 tokens, its next token is number {start}"):
            pool.advance(slot, start, 2)
    pool.advance(slot, 4, 2)
    assert pool.position(slot) == 6


def test_a_copy_takes_the_position_with_it() -> None:
    pool = StatePool(2, 1, LAYOUT)
    source, target = filled(pool, 4, A), pool.allocate(STEP)
    pool.copy(source, target)
    assert pool.position(target) == 4
    unknown = pool.allocate(B)
    with pytest.raises(ValueError, match="no known prefix: it cannot be copied"):
        pool.copy(unknown, target)


def test_a_slot_that_is_written_cannot_be_shared() -> None:
    pool = StatePool(2, 1, LAYOUT)
    written, kept = filled(pool, 4, A), filled(pool, 4)
    with pytest.raises(ValueError, match="written by a request: copy it instead"):
        pool.share(written, CACHE)
    with pytest.raises(ValueError, match="written by a request"):
        pool.share(kept, A)
    pool.share(kept, CACHE)
    with pytest.raises(ValueError, match="already holds"):
        pool.share(kept, CACHE)
    pool.release(kept, STEP)
    assert pool.holders(kept) == (CACHE,)
    pool.check()


def test_misuse_says_who_and_which() -> None:
    pool = StatePool(1, 0, LAYOUT)
    slot = pool.allocate(A)
    with pytest.raises(OutOfStates, match="request b needs a state slot, none of 1 is free"):
        pool.allocate(B)
    with pytest.raises(ValueError, match=f"request b releases state slot {slot}, which it does not hold"):
        pool.release(slot, B)
    pool.release(slot, A)
    with pytest.raises(ValueError, match="does not hold"):
        pool.release(slot, A)
    for act in (pool.zero, lambda slot: pool.advance(slot, 0, 1), lambda slot: pool.copy(slot, slot)):
        with pytest.raises(ValueError, match="is free"):
            act(slot)
    with pytest.raises(ValueError, match="is free"):
        pool.share(slot, STEP)
    with pytest.raises(ValueError, match="at least one slot"):
        StatePool(0, 3, LAYOUT)


def test_spare_slots_leave_room_for_every_request_that_may_run() -> None:
    pool = StatePool(2, 1, LAYOUT)
    assert pool.spare == 1
    kept = pool.allocate(STEP)
    assert pool.spare == 0
    slots = [pool.allocate(A), pool.allocate(B)]
    assert pool.free == pool.spare == 0
    pool.release(kept, STEP)
    pool.release(slots[0], A)
    assert (pool.free, pool.spare) == (2, 1)


# Snapshots


def test_a_prefix_is_resumed_at_its_deepest_snapshot() -> None:
    pool, snapshots, blocks = cached()
    assert snapshots.deepest(blocks) is None
    kept = [Snapshot(filled(pool, position), position, LAYOUT) for position in (2, 4)]
    for block, snapshot in zip(blocks, kept, strict=False):
        assert snapshots.publish(block, snapshot, STEP)
    assert snapshots.deepest(blocks) is kept[1]
    assert snapshots.deepest(blocks[:1]) is kept[0]
    assert snapshots.deepest([]) is None
    snapshots.check()


def test_a_state_is_published_with_its_exact_position_or_not_at_all() -> None:
    """vllm-project/vllm#51113: the state after 364 tokens was found as the state after 1600."""
    pool, snapshots, blocks = cached()
    slot = filled(pool, 3)
    with pytest.raises(ValueError, match="holds the state after 3 tokens: it cannot be published as the state after 4"):
        snapshots.publish(blocks[1], Snapshot(slot, 4, LAYOUT), STEP)
    with pytest.raises(ValueError, match="ends a prefix of 4 tokens, not one of 3"):
        snapshots.publish(blocks[1], Snapshot(slot, 3, LAYOUT), STEP)
    assert len(snapshots) == 0
    assert pool.holders(slot) == (STEP,)


def test_a_state_of_another_layout_is_neither_published_nor_resumed() -> None:
    pool, snapshots, blocks = cached()
    slot = filled(pool, 4)
    with pytest.raises(ValueError, match="laid out as 'two heads' cannot be published among 'four heads'"):
        snapshots.publish(blocks[1], Snapshot(slot, 4, "two heads"), STEP)
    snapshots.publish(blocks[1], Snapshot(slot, 4, LAYOUT), STEP)
    pool.layout = "two heads"
    assert snapshots.deepest(blocks) is None


def test_a_block_that_is_not_cached_takes_no_snapshot() -> None:
    pool, snapshots, blocks = cached()
    snapshots.prefix.clear()
    with pytest.raises(ValueError, match="is not cached"):
        snapshots.publish(blocks[1], Snapshot(filled(pool, 4), 4, LAYOUT), STEP)


def test_a_second_snapshot_of_a_block_is_given_back() -> None:
    pool, snapshots, blocks = cached()
    first, second = (Snapshot(filled(pool, 4), 4, LAYOUT) for _ in range(2))
    assert snapshots.publish(blocks[1], first, STEP)
    assert not snapshots.publish(blocks[1], second, STEP)
    assert snapshots.get(blocks[1]) is first
    assert pool.held == 1


def test_a_snapshot_goes_with_its_block() -> None:
    pool, snapshots, blocks = cached()
    for block, position in zip(blocks, (2, 4, 6), strict=True):
        snapshots.publish(block, Snapshot(filled(pool, position), position, LAYOUT), STEP)
    snapshots.prefix.evict(1)
    assert (len(snapshots), pool.held) == (2, 2)
    snapshots.check()
    snapshots.prefix.clear()
    assert (len(snapshots), pool.held) == (0, 0)


def test_the_least_recently_used_snapshot_makes_room_and_its_block_stays() -> None:
    pool, snapshots, blocks = cached(slots=2)
    for block, position in zip(blocks, (2, 4), strict=False):
        snapshots.publish(block, Snapshot(filled(pool, position), position, LAYOUT), STEP)
    snapshots.deepest(blocks[:1])  # the older one is used
    slot = snapshots.reserve(STEP)
    assert slot is not None
    assert [snapshots.get(block) is not None for block in blocks] == [True, False, False]
    assert all(block in snapshots.prefix for block in blocks)
    assert pool.spare == 0


def test_a_snapshot_that_is_being_read_is_not_overwritten() -> None:
    pool, snapshots, blocks = cached(slots=1)
    snapshot = Snapshot(filled(pool, 2), 2, LAYOUT)
    snapshots.publish(blocks[0], snapshot, STEP)
    pool.share(snapshot.slot, STEP)
    assert snapshots.reserve(B) is None
    snapshots.drop(blocks[0])
    assert pool.position(snapshot.slot) == 2, "the reader still has it"
    assert snapshots.reserve(Holder("transfer", "other")) is None, "a request could go short"
    pool.release(snapshot.slot, STEP)
    assert snapshots.reserve(STEP) == snapshot.slot


def test_a_pool_without_room_for_snapshots_keeps_none() -> None:
    _, snapshots, _ = cached(slots=0)
    assert snapshots.reserve(STEP) is None


class StateMachine(RuleBasedStateMachine):
    """Requests, snapshots and readers in any order; slots really hold the tokens that they absorbed."""

    @initialize(running=st.integers(1, 3), kept=st.integers(0, 3), size=st.integers(1, 3))
    def start(self, running: int, kept: int, size: int) -> None:
        self.pool = StatePool(running, kept, LAYOUT)
        self.prefix = PrefixCache(BlockPool(12, size))
        self.snapshots = Snapshots(self.pool, self.prefix)
        self.content: dict[int, list[int]] = {slot: [-1] for slot in range(running + kept)}
        self.requests: dict[Holder, tuple[int, list[int]]] = {}  # slot and tokens so far
        self.readers: dict[Holder, tuple[int, list[int]]] = {}
        self.count = 0

    def holder(self, kind: Any) -> Holder:
        self.count += 1
        return Holder(kind, str(self.count))

    @precondition(lambda self: len(self.requests) < self.pool.running)
    @rule()
    def begin(self) -> None:
        holder = self.holder("request")
        slot = self.pool.allocate(holder)
        self.pool.zero(slot)
        self.content[slot] = []
        self.requests[holder] = slot, []

    @precondition(lambda self: len(self.requests) < self.pool.running)
    @rule(tokens=st.lists(st.integers(0, 1), max_size=8))
    def resume(self, tokens: list[int]) -> None:
        found = self.snapshots.deepest(self.prefix.match(tokens)[0])
        if found is None:
            return
        assert self.content[found.slot] == tokens[: found.position]
        holder = self.holder("request")
        slot = self.pool.allocate(holder)
        self.pool.copy(found.slot, slot)
        self.content[slot] = list(self.content[found.slot])
        self.requests[holder] = slot, tokens[: found.position]

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def compute(self, data: st.DataObject, tokens: list[int]) -> None:
        slot, so_far = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        self.pool.advance(slot, len(so_far), len(tokens))
        self.content[slot] += tokens
        so_far += tokens

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Publish the state of a request whose tokens fill whole blocks, as far as there is room for them."""
        slot, tokens = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        count, rest = divmod(len(tokens), self.prefix.pool.block_size)
        if rest or not count or count > self.prefix.pool.free + self.prefix.evictable:
            return
        target = self.snapshots.reserve(STEP)
        if target is None:
            assert self.pool.spare < 1
            return
        self.pool.copy(slot, target)
        self.content[target] = list(self.content[slot])
        holder = self.holder("request")
        self.prefix.evict(count - self.prefix.pool.free)
        blocks = self.prefix.pool.allocate(count, holder)
        self.prefix.publish(tokens, blocks)
        last = self.prefix.match(tokens)[0][-1]
        self.snapshots.publish(last, Snapshot(target, len(tokens), LAYOUT), STEP)
        self.prefix.pool.release(blocks, holder)

    @precondition(lambda self: len(self.snapshots))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A reader elsewhere takes a hold, and finds what was there until it lets go."""
        block = data.draw(st.sampled_from([block for block in range(12) if self.snapshots.get(block)]))
        slot, holder = self.snapshots.get(block).slot, self.holder("transfer")
        self.pool.share(slot, holder)
        self.readers[holder] = slot, list(self.content[slot])

    @rule()
    def readers_end(self) -> None:
        for holder, (slot, _) in self.readers.items():
            self.pool.release(slot, holder)
        self.readers.clear()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.requests)))
        self.pool.release(self.requests.pop(holder)[0], holder)

    @rule(count=st.integers(1, 12))
    def evict(self, count: int) -> None:
        self.prefix.evict(count)

    @invariant()
    def sound(self) -> None:
        self.pool.check()
        self.prefix.check()
        self.snapshots.check()
        assert self.pool.free >= self.pool.running - len(self.requests), "a request could go short of a slot"
        for slot, tokens in (*self.requests.values(), *self.readers.values()):
            assert self.content[slot] == tokens
        for block in range(12):
            snapshot = self.snapshots.get(block)
            assert snapshot is None or len(self.content[snapshot.slot]) == snapshot.position


TestStates = StateMachine.TestCase
TestStates.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
