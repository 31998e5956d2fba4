"""Recurrent state slots: who holds each, and how many tokens it has absorbed.

A recurrent state is one value for a whole prefix, overwritten with every token. So it cannot be shared while it is
written, it cannot be rolled back, and it means nothing without the exact number of tokens in it. All three are kept
here: a slot has holders, and a position that only zeroing, copying and computing change. A slot that comes off the free
list holds what its last owner left: it has no position until it is zeroed or a snapshot is copied into it.

Bookkeeping alone: the tensors are `execution`'s, which zeroes and copies what a plan says.
"""

from __future__ import annotations

from target_engine.memory.blocks import Holder


class OutOfStates(Exception):
    """A state slot was asked for and none is free."""


class StatePool:
    """`running` slots for requests that run and `snapshots` more for states that are kept, numbered from 0.

    Any slot serves either purpose; `spare` says how many may be taken without a running request ever going short.
    `layout` names the layers, axes and types of the tensors behind the slots: a state means something under its own
    layout alone.
    """

    def __init__(self, running: int, snapshots: int, layout: str) -> None:
        if running < 1 or snapshots < 0:
            raise ValueError(f"a pool needs at least one slot to run in, not {running} and {snapshots} for snapshots")
        self.running = running
        self.num_slots = running + snapshots
        self.layout = layout
        self.peak_held = 0
        self._free = list(range(self.num_slots - 1, -1, -1))
        self._holders: list[list[Holder]] = [[] for _ in range(self.num_slots)]
        self._positions: list[int | None] = [None] * self.num_slots
        self._requests = 0  # slots held by a request

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Number of slots with at least one holder."""
        return self.num_slots - len(self._free)

    @property
    def spare(self) -> int:
        """Number of free slots beyond those that requests may still ask for."""
        return len(self._free) - max(0, self.running - self._requests)

    def holders(self, slot: int) -> tuple[Holder, ...]:
        """The holders of a slot in the order they came; empty when it is free."""
        return tuple(self._holders[slot])

    def position(self, slot: int) -> int | None:
        """How many tokens the state in `slot` has absorbed; None when its content is whatever was left there."""
        return self._positions[slot]

    def allocate(self, holder: Holder) -> int:
        """Take a free slot, of unknown content; raises `OutOfStates`."""
        if not self._free:
            raise OutOfStates(f"{holder.kind} {holder.id} needs a state slot, none of {self.num_slots} is free")
        slot = self._free.pop()
        self._positions[slot] = None
        self._holders[slot].append(holder)
        self._requests += holder.kind == "request"
        self.peak_held = max(self.peak_held, self.held)
        return slot

    def share(self, slot: int, holder: Holder) -> None:
        """Let one more holder keep a slot that is no longer written.

        Raises `ValueError` when it is free, is being written by a request, or is already held by `holder`.
        """
        holders = self._holders[slot]
        if not holders:
            raise ValueError(f"{holder.kind} {holder.id} cannot share state slot {slot}: it is free")
        if holder in holders:
            raise ValueError(f"{holder.kind} {holder.id} already holds state slot {slot}")
        if holder.kind == "request" or holders[0].kind == "request":
            raise ValueError(f"state slot {slot} is written by a request: copy it instead of sharing it")
        holders.append(holder)

    def release(self, slot: int, holder: Holder) -> None:
        """Give up a hold; the last one frees the slot. Raises `ValueError` at a slot that `holder` does not hold."""
        holders = self._holders[slot]
        if holder not in holders:
            raise ValueError(f"{holder.kind} {holder.id} releases state slot {slot}, which it does not hold")
        holders.remove(holder)
        self._requests -= holder.kind == "request"
        if not holders:
            self._positions[slot] = None
            self._free.append(slot)

    def zero(self, slot: int) -> None:
        """The slot is set to zero before its next token: the state of no tokens."""
        self._held(slot)
        self._positions[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """The state in `source` is copied into `target`, position included; raises `ValueError` at unknown content."""
        self._held(source)
        self._held(target)
        position = self._positions[source]
        if position is None:
            raise ValueError(f"state slot {source} holds the state of no known prefix: it cannot be copied")
        self._positions[target] = position

    def advance(self, slot: int, start: int, count: int) -> None:
        """The tokens [start, start + count) were absorbed; raises `ValueError` when the slot stood elsewhere."""
        self._held(slot)
        position = self._positions[slot]
        if position != start:
            found = "of no known prefix: it was never zeroed" if position is None else f"after {position} tokens"
            raise ValueError(f"state slot {slot} holds the state {found}, its next token is number {start}")
        self._positions[slot] = start + count

    def check(self) -> None:
        """Assert conservation: each slot is either free, once, or held; a slot that is written has one holder."""
        free = set(self._free)
        assert len(free) == len(self._free), "a state slot is twice on the free list"
        for slot, holders in enumerate(self._holders):
            assert (slot in free) == (not holders), f"state slot {slot}: free is {slot in free}, held by {holders}"
            assert len(set(holders)) == len(holders), f"state slot {slot}: held twice by one holder: {holders}"
            assert len(holders) <= 1 or all(holder.kind != "request" for holder in holders), (
                f"state slot {slot} is written by a request and held by others: {holders}"
            )
            assert holders or self._positions[slot] is None, f"state slot {slot} is free and has a position"
        requests = sum(holder.kind == "request" for holders in self._holders for holder in holders)
        assert requests == self._requests, f"slots of requests: counted {self._requests}, true {requests}"
        assert self.free + self.held == self.num_slots

    def _held(self, slot: int) -> None:
        if not self._holders[slot]:
            raise ValueError(f"state slot {slot} is free: nobody may write or read it")
