"""The prefix cache: whole blocks by their tokens, least recently used out first, never a wrong share."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from target_engine.memory.blocks import BlockPool, Holder
from target_engine.memory.prefix import PrefixCache

A, B = Holder("request", "a"), Holder("request", "b")


def publish(cache: PrefixCache, tokens: list[int], holder: Holder) -> list[int]:
    blocks = cache.pool.allocate(len(tokens) // cache.pool.block_size, holder)
    cache.publish(tokens, blocks)
    return blocks


def test_match_gives_the_longest_prefix_in_whole_blocks() -> None:
    cache = PrefixCache(BlockPool(8, 2))
    blocks = publish(cache, [1, 2, 3, 4, 5, 6], A)
    assert cache.match([1, 2, 3, 4, 5]) == (blocks[:2], 4)
    assert cache.match([1, 2, 3, 9]) == (blocks[:1], 2)
    assert cache.match([2, 1]) == ([], 0)
    assert cache.match([]) == ([], 0)
    cache.check()


def test_equal_hashes_of_other_tokens_are_no_hit() -> None:
    # Python gives -1 and -2 one hash, and so 0 and 2**61 - 1: real collisions, without patching anything.
    assert hash((-1, 7)) == hash((-2, 7))
    assert hash((0, 7)) == hash((2**61 - 1, 7))
    cache = PrefixCache(BlockPool(8, 2))
    publish(cache, [-1, 7], A)
    publish(cache, [0, 7], A)
    assert cache.match([-2, 7]) == ([], 0)
    assert cache.match([2**61 - 1, 7]) == ([], 0)


def test_the_same_block_of_tokens_after_another_prefix_is_another_block() -> None:
    cache = PrefixCache(BlockPool(8, 2))
    first = publish(cache, [1, 1, 5, 5], A)
    second = publish(cache, [2, 2, 5, 5], A)
    assert cache.match([1, 1, 5, 5])[0] == first
    assert cache.match([2, 2, 5, 5])[0] == second
    assert cache.match([5, 5]) == ([], 0)


def test_publishing_an_equal_prefix_keeps_the_cached_block_and_extends_it() -> None:
    cache = PrefixCache(BlockPool(8, 2))
    first = publish(cache, [1, 2], A)
    second = publish(cache, [1, 2, 3, 4], B)
    assert cache.match([1, 2, 3, 4])[0] == [first[0], second[1]]
    assert cache.pool.holders(second[0]) == (B,)
    cache.check()


def test_publish_takes_full_blocks_only() -> None:
    cache = PrefixCache(BlockPool(8, 2))
    with pytest.raises(ValueError, match="2 full blocks hold 4 tokens, not 3"):
        cache.publish([1, 2, 3], cache.pool.allocate(2, A))


def test_eviction_takes_the_least_recently_used_and_leaves_first() -> None:
    cache = PrefixCache(BlockPool(8, 2))
    old = publish(cache, [1, 1, 2, 2], A)
    new = publish(cache, [3, 3, 4, 4], A)
    cache.pool.release([*old, *new], A)
    cache.match([1, 1])  # the older chain's root is now the most recent
    assert cache.evict(1) == 1
    assert cache.match([1, 1, 2, 2]) == (old[:1], 2)
    assert cache.evict(1) == 1
    assert cache.match([3, 3, 4, 4]) == (new[:1], 2)
    assert cache.evict(9) == 2
    assert len(cache) == 0
    assert cache.pool.free == 8


def test_what_a_request_holds_is_not_freed() -> None:
    cache = PrefixCache(BlockPool(4, 2))
    blocks = publish(cache, [1, 2, 3, 4], A)
    cache.pool.release(blocks[1], A)
    assert cache.evictable == 1
    assert cache.evict(4) == 1
    assert cache.match([1, 2, 3, 4]) == (blocks[:1], 2)


def test_an_evicted_block_takes_its_unreachable_tail_out_of_the_cache_but_not_from_its_holder() -> None:
    cache = PrefixCache(BlockPool(4, 1))
    first = publish(cache, [1], A)
    second = publish(cache, [1, 2], B)  # B's own block for token 2 hangs from A's block for token 1
    cache.pool.release(first, A)
    assert cache.evict(1) == 1
    assert cache.pool.holders(second[1]) == (B,)
    assert len(cache) == 0
    cache.check()


def test_clear_lets_go_of_everything() -> None:
    cache = PrefixCache(BlockPool(4, 1))
    cache.pool.release(publish(cache, [1, 2, 3], A), A)
    cache.clear()
    assert cache.pool.free == 4
    cache.check()


class PrefixMachine(RuleBasedStateMachine):
    """Blocks carry the prefix they were computed from: a match must never give a block of another prefix."""

    @initialize(num_blocks=st.integers(2, 12), block_size=st.integers(1, 3))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.cache = PrefixCache(BlockPool(num_blocks, block_size))
        self.content: dict[int, tuple[int, ...]] = {}
        self.requests: dict[Holder, list[int]] = {}
        self.count = 0

    @rule(tokens=st.lists(st.sampled_from([-1, -2, 0, 2**61 - 1]), max_size=12), reuse=st.booleans())
    def run_request(self, tokens: list[int], reuse: bool) -> None:
        """What a scheduler does: match, share, compute the rest, publish. Without `reuse`: as two that start as one."""
        pool, size = self.cache.pool, self.cache.pool.block_size
        tokens = tokens[: len(tokens) // size * size]
        holder = Holder("request", str(self.count))
        self.count += 1
        matched, covered = self.cache.match(tokens) if reuse else ([], 0)
        assert covered == len(matched) * size
        for index, block in enumerate(matched):
            assert self.content[block] == tuple(tokens[: (index + 1) * size])
            pool.share(block, holder)
        needed = len(tokens) // size - len(matched)
        if needed > pool.free + self.cache.evictable:
            pool.release(matched, holder)
            return
        self.cache.evict(needed - pool.free)
        blocks = matched + pool.allocate(needed, holder)
        for index in range(len(matched), len(blocks)):
            self.content[blocks[index]] = tuple(tokens[: (index + 1) * size])
        self.cache.publish(tokens, blocks)
        self.requests[holder] = blocks
        for index, block in enumerate(self.cache.match(tokens)[0]):
            assert self.content[block] == tuple(tokens[: (index + 1) * size])

    @rule(data=st.data())
    def end_request(self, data: st.DataObject) -> None:
        if self.requests:
            holder = data.draw(st.sampled_from(sorted(self.requests)))
            self.cache.pool.release(self.requests.pop(holder), holder)

    @rule(count=st.integers(0, 12))
    def evict(self, count: int) -> None:
        evictable, free = self.cache.evictable, self.cache.pool.free
        freed = self.cache.evict(count)
        assert freed >= min(count, evictable)
        assert self.cache.pool.free == free + freed
        for holder, blocks in self.requests.items():
            assert all(holder in self.cache.pool.holders(block) for block in blocks)

    @invariant()
    def sound(self) -> None:
        self.cache.pool.check()
        self.cache.check()


TestPrefix = PrefixMachine.TestCase
TestPrefix.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
