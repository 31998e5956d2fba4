"""Continuous batching over paged blocks: chunked prefill, prefix reuse, preemption by recompute, in order of arrival.

A step is `plan = schedule()`, run the plan, `complete(plan, sampled)`. Between the two the plan is outstanding:
requests may be added and aborted, but nothing else is scheduled, so a block freed meanwhile is not reused under a write
in flight.

Why every request ends. Requests are admitted in order of arrival and none overtakes, so the running ones are always
older than the waiting ones. When blocks run out the youngest running request gives its blocks up and waits at the head
of the queue. The oldest one can therefore always take every block there is, and `add` refuses a request that would not
fit even then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from target_engine.errors import EngineError
from target_engine.memory.blocks import BlockPool, Holder, OutOfBlocks
from target_engine.memory.prefix import PrefixCache
from target_engine.scheduling.plan import Finished, Plan, Row, Totals
from target_engine.scheduling.recurrent import Recurrent
from target_engine.scheduling.request import FinishReason, Request, State


class RequestRefused(EngineError):
    """A request that this scheduler could never finish; the text says why."""


@dataclass(slots=True)
class Scheduler:
    """Plans steps. `max_batch`: most requests that run at once; `prefill_chunk`: most tokens of unfinished prefills in
    one step (decode rows come on top); `max_model_len`: longest sequence, prompt and output together. All in tokens.
    `clock` gives seconds. `recurrent` keeps the states of a model with recurrent layers, None for any other.
    """

    pool: BlockPool
    prefix: PrefixCache | None
    max_batch: int
    prefill_chunk: int
    max_model_len: int
    clock: Callable[[], float] = time.monotonic
    recurrent: Recurrent | None = None
    totals: Totals = field(default_factory=Totals)
    running: list[Request] = field(default_factory=list, init=False)  # in order of arrival
    waiting: deque[Request] = field(
        default_factory=deque, init=False
    )  # in order of arrival, all after the running ones
    _by_id: dict[str, Request] = field(default_factory=dict, init=False)
    _outstanding: Plan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name in ("max_batch", "prefill_chunk", "max_model_len"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.prefix is not None and self.prefix.pool is not self.pool:
            raise EngineError("the prefix cache must stand on the scheduler's own block pool")
        if self.recurrent is not None and self.recurrent.prefix is not self.prefix:
            raise EngineError("state snapshots must belong to the scheduler's own prefix cache")

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.running or self.waiting)

    def refusal(self, request: Request) -> str | None:
        """Why `request` could never finish here, or None."""
        if request.id in self._by_id:
            return "its id is in use by an unfinished request"
        if request.state is not State.WAITING or request.sequence >= 0:
            return "it was added before"
        if request.prompt_length >= self.max_model_len:
            return (
                f"its prompt of {request.prompt_length} tokens leaves no room for output "
                f"(max_model_len {self.max_model_len})"
            )
        longest = min(request.prompt_length + request.sampling.max_tokens, self.max_model_len)
        needed = self.pool.blocks_for(longest - 1)  # the last token is sampled, its keys and values are never needed
        if needed > self.pool.num_blocks:
            return (
                f"{longest} tokens need {needed} blocks of {self.pool.block_size}, "
                f"there are {self.pool.num_blocks}: lower max_tokens or raise num_blocks"
            )
        return None

    def add(self, request: Request) -> None:
        """Queue a request; raises `RequestRefused` when it could never finish."""
        reason = self.refusal(request)
        if reason:
            raise RequestRefused(f"request {request.id}: {reason}")
        request.sequence = self.totals.requests
        request.arrival = self.clock()
        self.totals.requests += 1
        self._by_id[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str) -> Finished | None:
        """End a request at once, in whatever state it is; None when there is no such unfinished request.

        Safe while a plan is outstanding: the plan's rows of it are ignored by `complete`.
        """
        request = self._by_id.get(request_id)
        return None if request is None else self._finish(request, FinishReason.ABORT)

    def schedule(self) -> Plan:
        """Plan the next step; no rows when there is nothing to do (or every block is held by transfers).

        Raises `RuntimeError` while a plan is outstanding.
        """
        if self._outstanding is not None:
            raise RuntimeError("the last plan is neither completed nor cancelled")
        rows: list[Row] = []
        preempted: list[str] = []
        budget = self.prefill_chunk
        index = 0
        while index < len(self.running):
            request = self.running[index]
            count = 1 if request.remaining == 1 else min(request.remaining, budget)
            if self.recurrent is not None and count > 1:
                count = self.recurrent.clipped(request, count)
            if count and self._grow(request, request.computed + count, preempted):
                rows.append(self._row(request, count))
                if request.remaining > 1:
                    budget -= count
            index += 1  # a preempted request left the end of `running`, so nothing has moved up
        while self.waiting and len(self.running) < self.max_batch and budget and not preempted:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            self.running.append(request)
            count = min(request.remaining, budget)
            if self.recurrent is not None:
                count = self.recurrent.clipped(request, count)
            rows.append(self._row(request, count))
            budget -= count
        rows.sort(key=lambda row: not row.is_decode)  # stable
        plan = Plan(tuple(rows), tuple(preempted)) if self.recurrent is None else Plan.of(rows, preempted)
        self._outstanding = plan
        return plan

    def complete(
        self, plan: Plan, sampled: Mapping[str, int], stopped: Mapping[str, FinishReason] | None = None
    ) -> list[Finished]:
        """Take in the results of the outstanding plan: `sampled` token ids by request id, one for each row that
        samples.

        `stopped` names the requests whose sampled token ends them by the engine's judgement (end of sequence, stop
        string); the length limits are checked here. Returns the requests that ended, in the order of the plan. Raises
        `ValueError` at another plan than the outstanding one, or a missing token; nothing has changed then.
        """
        if plan is not self._outstanding:
            raise ValueError("only the outstanding plan can be completed")
        live = [row for row in plan.rows if row.request.state is State.RUNNING]
        missing = [row.request.id for row in live if row.samples and row.request.id not in sampled]
        if missing:
            raise ValueError(f"no sampled token for request {', '.join(missing)}")
        self._outstanding = None
        if self.recurrent is not None:
            self.recurrent.settle(plan.rows)
        now = self.clock()
        finished = []
        self.totals.steps += 1
        for row in live:
            request = row.request
            request.computed += row.count
            self.totals.computed_tokens += row.count
            if row.is_decode:
                self.totals.decode_rows += 1
            else:
                self.totals.prefill_rows += 1
            self._publish(request)
            if row.state is not None and self.recurrent is not None:
                self.recurrent.computed(row)
            if not row.samples:
                continue
            request.tokens.append(sampled[request.id])
            self.totals.output_tokens += 1
            if request.first_token_time is None:
                request.first_token_time = now
            if stopped and request.id in stopped:
                finished.append(self._finish(request, stopped[request.id]))
            elif request.output_length >= request.sampling.max_tokens or len(request.tokens) >= self.max_model_len:
                finished.append(self._finish(request, FinishReason.LENGTH))
        return finished

    def cancel(self, plan: Plan) -> None:
        """Give the outstanding plan up (its step failed): nothing counts as computed, and the next plan computes it
        again.

        Keys and values are written anew in the same place. A state is not: nobody knows how much of the step it has
        absorbed, so its request, and every younger one, starts over.
        """
        if plan is not self._outstanding:
            raise ValueError("only the outstanding plan can be cancelled")
        self._outstanding = None
        if self.recurrent is None:
            return
        self.recurrent.settle(plan.rows, failed=True)
        spoilt = {row.request.sequence for row in plan.rows if row.request.state is State.RUNNING}
        while spoilt and self.running and self.running[-1].sequence >= min(spoilt):
            self._preempt(self.running.pop())

    def check(self) -> None:
        """Assert every invariant; for tests, at any moment."""
        self.pool.check()
        if self.prefix is not None:
            self.prefix.check()
        assert len(self.running) <= self.max_batch
        order = [request.sequence for request in (*self.running, *self.waiting)]
        assert order == sorted(order), "a request has overtaken an older one"
        assert sorted(self._by_id) == sorted(request.id for request in (*self.running, *self.waiting))
        for request in self.waiting:
            assert request.state is State.WAITING
            assert not request.block_ids
            assert request.computed == 0
        for request in self.running:
            assert request.state is State.RUNNING
            assert self.pool.block_size * len(request.block_ids) >= request.computed
            for block in request.block_ids:
                assert self._holder(request) in self.pool.holders(block)
        if self.recurrent is not None:
            self.recurrent.check(self.running, self._outstanding.rows if self._outstanding else ())
        held = sum(len(request.block_ids) for request in self.running)
        holds = [holder for block in range(self.pool.num_blocks) for holder in self.pool.holders(block)]
        assert held == sum(holder.kind == "request" for holder in holds), "a request that does not run holds a block"

    # Blocks. A request takes blocks in `_admit` and `_grow`, a state slot in `_admit`, and gives them all back in
    # `_release`, nowhere else.

    @staticmethod
    def _holder(request: Request) -> Holder:
        return Holder(
            "request", f"{request.id}#{request.sequence}"
        )  # an id may be used again once its request has ended

    def _available(self) -> int:
        return self.pool.free + (self.prefix.evictable if self.prefix else 0)

    def _take(self, request: Request, count: int) -> None:
        """Allocate, evicting cached blocks where that is needed; raises `OutOfBlocks` with nothing evicted or taken."""
        if count > self._available():
            raise OutOfBlocks(f"request {request.id} needs {count} blocks, {self._available()} are free or evictable")
        if self.prefix is not None and count > self.pool.free:
            self.prefix.evict(count - self.pool.free)
        request.block_ids += self.pool.allocate(count, self._holder(request))

    def _grow(self, request: Request, tokens: int, preempted: list[str]) -> bool:
        """Make `request`'s blocks cover `tokens`, preempting the youngest as needed; False when that was `request`
        itself.
        """
        needed = self.pool.blocks_for(tokens) - len(request.block_ids)
        if needed <= 0:
            return True
        while self._available() < needed:
            victim = self.running.pop()
            self._preempt(victim)
            preempted.append(victim.id)
            if victim is request:
                return False
        self._take(request, needed)
        return True

    def _admit(self, request: Request) -> bool:
        """Give a waiting request the blocks of all its present tokens, cached ones first; False, with nothing changed,
        if they do not fit.

        All at once, so that a prefill that has begun is not thrown away for want of blocks of its own.
        """
        holder = self._holder(request)
        matched, cached = [], 0
        if self.prefix is not None:
            # All but the last token, which is always computed: it yields the logits.
            matched, cached = self.prefix.match(request.tokens[:-1])
        snapshot, known = None, cached
        if self.recurrent is not None:
            if not self.recurrent.pool.free:  # held by transfers to another place: a running request always finds one
                return False
            snapshot = self.recurrent.resumable(matched)
            cached = 0 if snapshot is None else snapshot.position
            matched = matched[: cached // self.pool.block_size]
        for block in matched:
            self.pool.share(block, holder)
        request.block_ids = list(matched)
        try:
            self._take(request, self.pool.blocks_for(len(request.tokens)) - len(matched))
        except OutOfBlocks:
            self._release(request)
            return False
        if self.recurrent is not None:
            self.recurrent.begin(request, snapshot, known)
        request.state = State.RUNNING
        request.computed = request.cached = cached
        request.published = len(matched)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self.clock()
            request.first_cached = cached
            self.totals.prompt_tokens += request.prompt_length
            self.totals.cached_tokens += cached
        return True

    def _publish(self, request: Request) -> None:
        """Offer the blocks that have become full, and only those: a full block is never written again."""
        full = request.computed // self.pool.block_size
        if self.prefix is not None and full > request.published:
            self.prefix.publish(request.tokens[: full * self.pool.block_size], request.block_ids[:full])
            request.published = full

    def _release(self, request: Request) -> None:
        """The one way back: give up all blocks, the state slot, and what was computed in them."""
        self.pool.release(reversed(request.block_ids), self._holder(request))
        if self.recurrent is not None:
            self.recurrent.release(request)
        request.block_ids = []
        request.published = request.cached = 0
        request.computed = 0

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.state = State.WAITING
        request.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: Request, reason: FinishReason) -> Finished:
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request)
        del self._by_id[request.id]
        request.state = State.FINISHED
        request.finish_reason = reason
        request.finish_time = self.clock()
        self.totals.finished += 1
        return Finished(request, reason)

    def _row(self, request: Request, count: int) -> Row:
        end = request.computed + count
        return Row(
            request=request,
            start=request.computed,
            count=count,
            block_ids=tuple(request.block_ids[: self.pool.blocks_for(end)]),
            samples=end == len(request.tokens),
            state=None if self.recurrent is None else self.recurrent.work(request, end),
        )
