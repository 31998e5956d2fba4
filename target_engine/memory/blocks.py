"""Paged KV blocks with explicit holders: one way to take a block, one way to give it back, conservation checkable at
any time.

A block is free when nobody holds it, and goes back to the free list the moment its last holder releases it. Holders are
named, so a leak or a double free says who did it, and a block in flight to another place (`transfer`) cannot be reused
under its reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

HolderKind = Literal["request", "cache", "transfer"]


class Holder(NamedTuple):
    """Who holds a block: a running request, a cache, or a transfer in flight."""

    kind: HolderKind
    id: str


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. Nothing was allocated."""


class BlockPool:
    """`num_blocks` blocks of `block_size` token positions each, numbered from 0.

    Ownership of block b over its life:  free -> allocate (one holder) -> share (more holders) -> release (fewer) ->
    free. A holder holds a block at most once.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.peak_held = 0
        self._free = list(
            range(num_blocks - 1, -1, -1)
        )  # a stack: the block freed last is the warmest in the CPU's caches
        self._holders: list[list[Holder]] = [[] for _ in range(num_blocks)]
        self._sole: Counter[Holder] = Counter()  # blocks that this holder alone holds

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Number of blocks with at least one holder."""
        return self.num_blocks - len(self._free)

    def sole(self, holder: Holder) -> int:
        """Number of blocks that `holder` alone holds: what a release of all its blocks would free."""
        return self._sole[holder]

    def holders(self, block: int) -> tuple[Holder, ...]:
        """The holders of a block in the order they came; empty when it is free."""
        return tuple(self._holders[block])

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks that `tokens` positions need."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int, holder: Holder) -> list[int]:
        """Take `count` free blocks for `holder`, all or none; raises `OutOfBlocks`."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise OutOfBlocks(
                f"{holder.kind} {holder.id} needs {count} blocks, {len(self._free)} of {self.num_blocks} are free"
            )
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block].append(holder)
        self._count(holder, count)
        self.peak_held = max(self.peak_held, self.held)
        return blocks

    def share(self, block: int, holder: Holder) -> None:
        """Let one more holder hold a block that is in use; raises `ValueError` when it is free or already held by
        `holder`.
        """
        holders = self._holders[block]
        if not holders:
            raise ValueError(f"{holder.kind} {holder.id} cannot share block {block}: it is free")
        if holder in holders:
            raise ValueError(f"{holder.kind} {holder.id} already holds block {block}")
        if len(holders) == 1:
            self._count(holders[0], -1)
        holders.append(holder)

    def release(self, blocks: int | Iterable[int], holder: Holder) -> None:
        """Give up `holder`'s hold on one block or several; the last holder's release frees a block.

        Raises `ValueError` at a block that `holder` does not hold (a double free); blocks before it are already
        released.
        """
        for block in (blocks,) if isinstance(blocks, int) else blocks:
            holders = self._holders[block]
            if holder not in holders:
                raise ValueError(f"{holder.kind} {holder.id} releases block {block}, which it does not hold")
            holders.remove(holder)
            if not holders:
                self._count(holder, -1)
                self._free.append(block)
            elif len(holders) == 1:
                self._count(holders[0], 1)

    def check(self) -> None:
        """Assert conservation: each block is either free, once, or held, and the counts of sole holders are true."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice on the free list"
        sole: Counter[Holder] = Counter()
        for block, holders in enumerate(self._holders):
            assert (block in free) == (not holders), f"block {block}: free is {block in free}, held by {holders}"
            assert len(set(holders)) == len(holders), f"block {block}: held twice by one holder: {holders}"
            if len(holders) == 1:
                sole[holders[0]] += 1
        assert sole == self._sole, f"sole holders: counted {dict(self._sole)}, true {dict(sole)}"
        assert self.free + self.held == self.num_blocks

    def _count(self, holder: Holder, change: int) -> None:
        """Change the number of blocks that `holder` alone holds; none is kept at zero, since holders come and go."""
        self._sole[holder] += change
        if not self._sole[holder]:
            del self._sole[holder]
