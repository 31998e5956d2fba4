"""The recurrent states of running requests: one slot each, and the snapshots that let a prefix be resumed.

Two rules make prefix reuse right for a model whose layers carry a state. A prefix is reused only up to a position where
a snapshot of exactly that position stands. And a snapshot is copied after a step whose row ends there, so chunks of a
prefill end at block boundaries, above all at the two that others are likely to ask for: where this prompt left what was
cached (two requests share that much, so a third may), and the last one before the prompt's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from target_engine.memory.blocks import Holder
from target_engine.memory.prefix import PrefixCache
from target_engine.memory.snapshots import Snapshot, Snapshots
from target_engine.memory.states import StatePool
from target_engine.scheduling.plan import Row, StateWork
from target_engine.scheduling.request import Request, State


@dataclass(slots=True)
class _Run:
    """What a running request has: its slot, how that is filled with its first row, and its snapshots.

    Snapshots at `landmarks` stay; of the others only the `latest` is kept, with the block that it belongs to.
    """

    slot: int
    source: int | None
    landmarks: tuple[int, ...]
    begun: bool = False
    latest: tuple[int, Snapshot] | None = None


class Recurrent:
    """State slots of a scheduler's requests; `snapshots` is None without a prefix cache.

    A request has a slot from `begin` to `release`, and the scheduler calls both with its blocks. While a plan is
    outstanding the snapshots that it reads and writes are held as transfers, so nothing can be put into them.
    """

    def __init__(self, pool: StatePool, snapshots: Snapshots | None) -> None:
        if snapshots is not None and snapshots.pool is not pool:
            raise ValueError("snapshots must stand on the requests' own state pool")
        self.pool = pool
        self.snapshots = snapshots
        self._runs: dict[Request, _Run] = {}

    @property
    def prefix(self) -> PrefixCache | None:
        """The prefix cache that the snapshots belong to."""
        return None if self.snapshots is None else self.snapshots.prefix

    def resumable(self, blocks: Sequence[int]) -> Snapshot | None:
        """The last snapshot along the cached `blocks` of a prefix: as far as it can be reused."""
        return None if self.snapshots is None else self.snapshots.deepest(blocks)

    def begin(self, request: Request, snapshot: Snapshot | None, cached: int) -> None:
        """Give a request its slot, at the snapshot's position or at 0; `cached` tokens of it had cached blocks."""
        slot = self.pool.allocate(_holder(request))
        if snapshot is None:
            self.pool.zero(slot)
        else:
            self.pool.share(snapshot.slot, _transfer(request))
            self.pool.copy(snapshot.slot, slot)
        start = 0 if snapshot is None else snapshot.position
        landmarks: tuple[int, ...] = ()
        if self.snapshots is not None:
            size = self.snapshots.block_size
            last = (len(request.tokens) - 1) // size * size
            landmarks = tuple(sorted({mark for mark in (cached, last) if mark > start}))
        self._runs[request] = _Run(slot, None if snapshot is None else snapshot.slot, landmarks)

    def release(self, request: Request) -> None:
        """Take a request's slot back, if it has one."""
        run = self._runs.pop(request, None)
        if run is not None:
            self.pool.release(run.slot, _holder(request))

    def clipped(self, request: Request, count: int) -> int:
        """At most `count` tokens, so that the chunk ends where a snapshot may be wanted; at least 1."""
        if self.snapshots is None:
            return count
        start, end = request.computed, request.computed + count
        for mark in self._runs[request].landmarks:
            if start < mark < end:
                return mark - start
        size = self.snapshots.block_size
        boundary = end // size * size
        return boundary - start if end < len(request.tokens) and boundary > start else count

    def work(self, request: Request, end: int) -> StateWork:
        """What the row that computes a request's tokens up to `end` does to states."""
        run, kept = self._runs[request], None
        if self.snapshots is not None and end % self.snapshots.block_size == 0:
            kept = self.snapshots.reserve(_transfer(request))
        fresh, run.begun = not run.begun, True
        return StateWork(run.slot, fresh and run.source is None, run.source if fresh else None, kept)

    def settle(self, rows: Iterable[Row], failed: bool = False) -> None:
        """The step is over: nothing reads the snapshots of its rows any more, and a row that counts for nothing (its
        request has ended, or the step failed) keeps none.
        """
        for row in rows:
            assert row.state is not None
            if row.state.restored is not None:
                self.pool.release(row.state.restored, _transfer(row.request))
            if row.state.kept is not None and (failed or row.request.state is not State.RUNNING):
                self.pool.release(row.state.kept, _transfer(row.request))

    def computed(self, row: Row) -> None:
        """Move the slot on by the row's tokens, and publish the snapshot that was copied; its blocks are published."""
        assert row.state is not None
        slot, kept, end = row.state.slot, row.state.kept, row.start + row.count
        self.pool.advance(slot, row.start, row.count)
        if kept is None:
            return
        assert self.snapshots is not None
        run = self._runs[row.request]
        self.pool.copy(slot, kept)
        blocks, _ = self.snapshots.prefix.match(row.request.tokens[:end])
        snapshot = Snapshot(kept, end, self.pool.layout)
        published = self.snapshots.publish(blocks[-1], snapshot, _transfer(row.request))
        if run.latest is not None and self.snapshots.get(run.latest[0]) is run.latest[1]:
            self.snapshots.drop(run.latest[0])
        run.latest = (blocks[-1], snapshot) if published and end not in run.landmarks else None

    def check(self, running: Sequence[Request], rows: Sequence[Row]) -> None:
        """Assert that each running request, and no other, holds exactly one slot, which stands at its position; that
        transfers are those of the outstanding `rows`; and that snapshots are sound.
        """
        self.pool.check()
        if self.snapshots is not None:
            self.snapshots.check()
        assert set(self._runs) == set(running), "a request runs without a state slot, or has one without running"
        for request, run in self._runs.items():
            assert self.pool.holders(run.slot) == (_holder(request),)
            assert self.pool.position(run.slot) == request.computed, f"request {request.id}: its state stands elsewhere"
        holders = [holder for slot in range(self.pool.num_slots) for holder in self.pool.holders(slot)]
        assert sum(holder.kind == "request" for holder in holders) == len(running), "a state slot has leaked"
        states = [row.state for row in rows if row.state is not None]
        moving = sum((state.restored is not None) + (state.kept is not None) for state in states)
        assert sum(holder.kind == "transfer" for holder in holders) == moving, "a snapshot is held by no step"


def _holder(request: Request) -> Holder:
    return Holder("request", f"{request.id}#{request.sequence}")


def _transfer(request: Request) -> Holder:
    return Holder("transfer", f"{request.id}#{request.sequence}")
