"""States kept for the prefix cache: a cached block may be resumed from when the state after exactly its tokens is kept.

Keys and values of a prefix can be reused up to any block; a recurrent state only at the position where it was copied.
Snapshots are few, they go least recently used first, and each goes at the latest with the block that it belongs to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from target_engine.memory.blocks import Holder
from target_engine.memory.prefix import CACHE, PrefixCache
from target_engine.memory.states import StatePool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the first `position` tokens of a prefix, in `slot`, laid out as `layout` says."""

    slot: int
    position: int
    layout: str


class Snapshots:
    """Snapshots by the cached block that they come after.

    Ownership: `reserve` takes a slot for the step that fills it (a transfer); `publish` hands it to `CACHE`; `drop`
    gives it back, also when `prefix` lets go of the block. A reader takes a hold of its own on the slot for as long as
    it copies.
    """

    def __init__(self, pool: StatePool, prefix: PrefixCache) -> None:
        self.pool = pool
        self.prefix = prefix
        prefix.on_drop = self.drop
        self._by_block: OrderedDict[int, Snapshot] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._by_block)

    @property
    def block_size(self) -> int:
        """Tokens in a block: snapshots stand at its multiples."""
        return self.prefix.pool.block_size

    def get(self, block: int) -> Snapshot | None:
        """The snapshot that belongs to a cached block."""
        return self._by_block.get(block)

    def deepest(self, blocks: Sequence[int]) -> Snapshot | None:
        """The last snapshot along the cached `blocks` of a prefix, if there is one under this pool's layout.

        Mutates recency only. Raises `ValueError` when a snapshot stands at another position than its block.
        """
        size = self.block_size
        for index in range(len(blocks) - 1, -1, -1):
            found = self._by_block.get(blocks[index])
            if found is None or found.layout != self.pool.layout:
                continue
            if found.position != (index + 1) * size or self.pool.position(found.slot) != found.position:
                raise ValueError(
                    f"the snapshot of block {blocks[index]} holds the state after {self.pool.position(found.slot)} "
                    f"tokens, its prefix has {(index + 1) * size}"
                )
            self._by_block.move_to_end(blocks[index])
            return found
        return None

    def reserve(self, holder: Holder) -> int | None:
        """A slot for a snapshot to be, held by `holder`; the oldest snapshots go for it. None when none can."""
        if self.pool.spare < 1:
            for block, snapshot in list(self._by_block.items()):
                if self.pool.holders(snapshot.slot) == (CACHE,):
                    self.drop(block)
                    break
        return self.pool.allocate(holder) if self.pool.spare >= 1 else None

    def publish(self, block: int, snapshot: Snapshot, holder: Holder) -> bool:
        """Hand a filled slot from `holder` to the cache as what comes after `block`, the last of `position` tokens.

        False, and the slot is given back, when the block has a snapshot already. Raises `ValueError` when the slot does
        not hold the state after exactly `position` tokens, is laid out otherwise, or the block is not a cached one.
        """
        slot, position = snapshot.slot, snapshot.position
        if self.pool.position(slot) != position:
            raise ValueError(
                f"state slot {slot} holds the state after {self.pool.position(slot)} tokens: "
                f"it cannot be published as the state after {position}"
            )
        if snapshot.layout != self.pool.layout:
            raise ValueError(f"a state laid out as {snapshot.layout!r} cannot be published among {self.pool.layout!r}")
        if block not in self.prefix:
            raise ValueError(f"block {block} is not cached: nobody would find its state")
        tokens = self.prefix.depth(block) * self.block_size
        if tokens != position:
            raise ValueError(f"block {block} ends a prefix of {tokens} tokens, not one of {position}")
        if block in self._by_block:
            self._by_block.move_to_end(block)
            self.pool.release(slot, holder)
            return False
        self.pool.share(slot, CACHE)
        self.pool.release(slot, holder)
        self._by_block[block] = snapshot
        return True

    def drop(self, block: int) -> None:
        """Let go of a block's snapshot, if it has one."""
        snapshot = self._by_block.pop(block, None)
        if snapshot is not None:
            self.pool.release(snapshot.slot, CACHE)

    def check(self) -> None:
        """Assert that snapshots, cached blocks and slots agree."""
        slots = [snapshot.slot for snapshot in self._by_block.values()]
        assert len(set(slots)) == len(slots), "two blocks have one state slot"
        for block, snapshot in self._by_block.items():
            assert block in self.prefix, f"block {block} is not cached, its snapshot is"
            assert snapshot.position == self.prefix.depth(block) * self.block_size, (
                f"block {block} has the snapshot of another prefix: after {snapshot.position} tokens"
            )
            assert self.pool.position(snapshot.slot) == snapshot.position, f"the snapshot of block {block} has moved"
            assert snapshot.layout == self.pool.layout
        kept = {slot for slot in range(self.pool.num_slots) if CACHE in self.pool.holders(slot)}
        assert kept == set(slots), f"the cache holds state slots {kept - set(slots)} without knowing what they are"
