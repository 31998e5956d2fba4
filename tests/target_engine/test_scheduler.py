"""The scheduler, driven through random schedules by a fake engine whose keys and values really live in the blocks.

The fake model reads a request's prefix back out of the blocks that its row names, so a block shared wrongly, freed too
early or never computed changes what it reads, and so the tokens that come out.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from target_engine.errors import EngineError
from target_engine.memory.blocks import BlockPool, Holder
from target_engine.memory.prefix import PrefixCache
from target_engine.scheduling.request import FinishReason, Request, SamplingParams, State
from target_engine.scheduling.scheduler import Finished, Plan, RequestRefused, Scheduler

VOCABULARY, EOS = 5, 4


def next_token(prefix: list[int]) -> int:
    """The fake model: a deterministic function of all tokens before."""
    state = 17
    for token in prefix:
        state = (state * 31 + token + 7) % 1_000_003
    return state % VOCABULARY


def expected_output(prompt: list[int], sampling: SamplingParams, max_model_len: int) -> list[int]:
    """What the request must generate, whatever the schedule."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens))
        output = len(tokens) - len(prompt)
        if (
            (tokens[-1] == EOS and not sampling.ignore_eos)
            or output >= sampling.max_tokens
            or len(tokens) >= max_model_len
        ):
            return tokens[len(prompt) :]


class FakeEngine:
    """A scheduler and a store that maps (block, offset) to the token whose key and value were written there."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_batch: int = 4,
        prefill_chunk: int = 8,
        max_model_len: int = 64,
        prefix: bool = True,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        ticks = itertools.count()
        cache = PrefixCache(self.pool) if prefix else None
        self.scheduler = Scheduler(
            self.pool, cache, max_batch, prefill_chunk, max_model_len, clock=lambda: float(next(ticks))
        )
        self.store: dict[tuple[int, int], int] = {}
        self.plan: Plan | None = None
        self.computed: dict[Request, Counter[int]] = {}
        self.matched: dict[Request, set[int]] = {}  # positions that the prefix cache had, at any admission
        self.reached: dict[Request, int] = {}
        self.requests: list[Request] = []

    def add(self, id: str, prompt: list[int], **sampling: object) -> Request:
        request = Request(id, prompt, SamplingParams(**sampling))  # type: ignore[arg-type]
        self.scheduler.add(request)
        self.requests.append(request)
        self.computed[request] = Counter()
        self.matched[request], self.reached[request] = set(), 0
        return request

    def begin(self) -> Plan:
        self.plan = self.scheduler.schedule()
        return self.plan

    def end(self) -> list[Finished]:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        size = self.pool.block_size
        sampled: dict[str, int] = {}
        stopped: dict[str, FinishReason] = {}
        written: set[tuple[int, int]] = set()
        for row in plan.rows:
            request = row.request
            if request.state is not State.RUNNING:
                continue
            if row.start != self.reached[request]:  # just admitted, perhaps again: what lies before came from the cache
                self.matched[request] |= set(range(row.start))
            self.reached[request] = row.start + row.count
            for position in range(row.start, row.start + row.count):
                slot = (row.block_ids[position // size], position % size)
                assert slot not in written, f"two rows write slot {slot}"
                assert len(self.pool.holders(slot[0])) == 1, "a row writes into a shared block"
                written.add(slot)
                self.store[slot] = request.tokens[position]
                self.computed[request][position] += 1
        for row in plan.rows:
            request = row.request
            if request.state is not State.RUNNING:
                continue
            end = row.start + row.count
            read = [self.store[(row.block_ids[position // size], position % size)] for position in range(end)]
            assert read == request.tokens[:end], f"request {request.id} reads another prefix than its own"
            if row.samples:
                sampled[request.id] = token = next_token(read)
                if token == EOS and not request.sampling.ignore_eos:
                    stopped[request.id] = FinishReason.STOP
        return self.scheduler.complete(plan, sampled, stopped)

    def step(self) -> list[Finished]:
        self.begin()
        return self.end()

    def drain(self) -> None:
        """Run to the end; each step must bring the oldest request forward, so this ends."""
        while self.scheduler.has_work:
            oldest = min((*self.scheduler.running, *self.scheduler.waiting), key=lambda request: request.sequence)
            before = (oldest.output_length, oldest.computed)
            self.step()
            assert oldest.state is State.FINISHED or (oldest.output_length, oldest.computed) > before, "no progress"
            self.scheduler.check()

    def check_request(self, request: Request) -> None:
        """A finished request has its own output, and computed each token once unless it was preempted or matched."""
        want = expected_output(request.prompt_token_ids, request.sampling, self.scheduler.max_model_len)
        if request.finish_reason is FinishReason.ABORT:
            assert request.output_token_ids == want[: request.output_length]
            return
        assert request.output_token_ids == want
        stop = want[-1] == EOS and not request.sampling.ignore_eos
        assert request.finish_reason is (FinishReason.STOP if stop else FinishReason.LENGTH)
        counts = self.computed[request]
        # A preempted request may find more in the cache than at first: another one computed the same prefix meanwhile.
        assert set(counts) | self.matched[request] == set(range(len(request.tokens) - 1))
        assert len(request.tokens) - 1 not in counts, "the last sampled token is never computed"
        if not request.preemptions:
            assert counts == Counter(range(request.first_cached, len(request.tokens) - 1))
        assert max(counts.values()) <= 1 + request.preemptions


def prompt_of(*blocks: int, tail: int = 1) -> list[int]:
    """A prompt of whole blocks of four equal tokens, and a tail."""
    return [block for block in blocks for _ in range(4)] + [3] * tail


# Plans


def test_a_step_mixes_decodes_with_chunks_of_a_prefill() -> None:
    engine = FakeEngine(prefill_chunk=8)
    engine.add("a", [1], ignore_eos=True, max_tokens=20)
    engine.step()
    engine.add("b", [2] * 20, ignore_eos=True)
    shapes = []
    for _ in range(4):
        shapes.append([(row.request.id, row.count, row.is_decode, row.samples) for row in engine.begin().rows])
        engine.end()
    assert shapes == [
        [("a", 1, True, True), ("b", 8, False, False)],
        [("a", 1, True, True), ("b", 8, False, False)],
        [("a", 1, True, True), ("b", 4, False, True)],
        [("a", 1, True, True), ("b", 1, True, True)],
    ]


def test_the_prefill_budget_is_shared_in_order_of_arrival() -> None:
    engine = FakeEngine(prefill_chunk=10, prefix=False)
    for id, length in (("a", 7), ("b", 7), ("c", 7)):
        engine.add(id, [1] * length)
    assert [(row.request.id, row.count) for row in engine.begin().rows] == [("a", 7), ("b", 3)]


def test_slots_are_refilled_as_soon_as_one_is_free() -> None:
    engine = FakeEngine(max_batch=2)
    engine.add("a", [1], max_tokens=1)
    engine.add("b", [2], max_tokens=3, ignore_eos=True)
    engine.add("c", [3], max_tokens=1)
    assert [finished.request.id for finished in engine.step()] == ["a"]
    assert {row.request.id for row in engine.begin().rows} == {"b", "c"}


def test_the_same_calls_give_the_same_plans() -> None:
    def trace() -> list[object]:
        engine = FakeEngine(num_blocks=9, max_batch=3)
        for index in range(6):
            engine.add(str(index), prompt_of(index % 2, 1, tail=index + 1), ignore_eos=True, max_tokens=9)
        seen: list[object] = []
        while engine.scheduler.has_work:
            plan = engine.begin()
            seen.append([(row.request.id, row.start, row.count, row.block_ids) for row in plan.rows] + [plan.preempted])
            engine.end()
        return seen

    assert trace() == trace()


# Prefix reuse


def test_a_prefix_is_computed_once_and_shared_by_whole_blocks() -> None:
    engine = FakeEngine(prefill_chunk=64)
    engine.add("a", prompt_of(1, 2, tail=2))
    engine.step()
    b = engine.add("b", prompt_of(1, 2, tail=3))
    (row,) = [row for row in engine.begin().rows if row.request is b]
    assert (row.start, row.count) == (8, 3)
    engine.end()
    assert b.first_cached == 8
    engine.drain()
    engine.check_request(b)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    engine = FakeEngine(prefill_chunk=64)
    engine.add("a", prompt_of(1, 2, tail=0))
    engine.drain()
    b = engine.add("b", prompt_of(1, 2, tail=0))
    (row,) = engine.begin().rows
    assert (row.start, row.count, row.samples) == (
        4,
        4,
        True,
    )  # the last block is computed anew: full blocks are shared only
    engine.end()
    engine.drain()
    engine.check_request(b)


def test_a_block_is_not_shared_before_it_is_computed() -> None:
    engine = FakeEngine(prefill_chunk=64)
    engine.add("a", prompt_of(1, 2))
    engine.add("b", prompt_of(1, 2))
    assert [row.start for row in engine.begin().rows] == [0, 0]
    engine.end()
    engine.drain()


def test_output_blocks_are_cached_for_the_next_turn() -> None:
    engine = FakeEngine(prefill_chunk=64)
    first = engine.add("a", prompt_of(1), ignore_eos=True, max_tokens=11)
    engine.drain()
    turn = engine.add("b", [*first.tokens, 0, 1, 2])
    engine.step()
    assert turn.first_cached == 12


# Running out of blocks


def test_the_youngest_is_preempted_and_its_output_is_the_same() -> None:
    engine = FakeEngine(num_blocks=5, max_batch=2, prefix=False)
    old = engine.add("old", [1] * 8, ignore_eos=True, max_tokens=8)
    young = engine.add("young", [2] * 4, ignore_eos=True, max_tokens=12)
    preempted = []
    while engine.scheduler.has_work:
        preempted += engine.begin().preempted
        engine.end()
    assert preempted
    assert set(preempted) == {"young"}
    for request in (old, young):
        engine.check_request(request)


def test_a_request_that_can_never_fit_is_refused_with_its_reason() -> None:
    engine = FakeEngine(num_blocks=4, max_model_len=64)
    with pytest.raises(RequestRefused, match=r"request a: 18 tokens need 5 blocks of 4, there are 4: lower max_tokens"):
        engine.add("a", [1] * 8, max_tokens=10)
    with pytest.raises(RequestRefused, match=r"prompt of 64 tokens leaves no room for output \(max_model_len 64\)"):
        engine.add("b", [1] * 64)
    engine.add("c", [1] * 8, max_tokens=9)  # its 17th token is sampled and never computed
    with pytest.raises(RequestRefused, match="its id is in use"):
        engine.add("c", [1])
    engine.drain()


def test_a_waiting_giant_is_not_overtaken() -> None:
    engine = FakeEngine(num_blocks=6, max_batch=4, prefill_chunk=64, prefix=False)
    engine.add("small", [1] * 8, ignore_eos=True, max_tokens=3)
    giant = engine.add("giant", [2] * 20, ignore_eos=True, max_tokens=2)
    for index in range(20):
        engine.add(f"late{index}", [3], ignore_eos=True, max_tokens=4)
    engine.step()
    assert [request.id for request in engine.scheduler.running] == ["small"]
    engine.drain()
    assert giant.finish_time is not None
    assert all(giant.finish_time < request.finish_time for request in engine.requests if request.id.startswith("late"))


# Abort, failure, misuse


@pytest.mark.parametrize("moment", ["waiting", "running", "outstanding"])
def test_abort_gives_everything_back(moment: str) -> None:
    engine = FakeEngine(prefix=False)
    request = engine.add("a", [1] * 10)
    if moment == "running":
        engine.step()
    if moment == "outstanding":
        engine.begin()
    finished = engine.scheduler.abort("a")
    assert finished == Finished(request, FinishReason.ABORT)
    assert engine.pool.free == 64
    if moment == "outstanding":
        assert engine.end() == []
    assert engine.scheduler.abort("a") is None
    assert not engine.scheduler.has_work
    engine.scheduler.check()


def test_an_id_may_be_used_again_while_the_aborted_one_is_outstanding() -> None:
    engine = FakeEngine()
    engine.add("a", [1] * 10)
    engine.begin()
    engine.scheduler.abort("a")
    again = engine.add("a", [2] * 3, ignore_eos=True, max_tokens=2)
    engine.end()
    engine.drain()
    engine.check_request(again)


def test_a_cancelled_step_is_computed_again() -> None:
    engine = FakeEngine()
    request = engine.add("a", [1] * 10, ignore_eos=True, max_tokens=5)
    plan = engine.begin()
    engine.scheduler.cancel(plan)
    assert engine.begin().rows == plan.rows
    engine.end()
    engine.drain()
    engine.check_request(request)


def test_plans_are_taken_in_turn() -> None:
    engine = FakeEngine()
    engine.add("a", [1], ignore_eos=True)
    plan = engine.begin()
    with pytest.raises(RuntimeError, match="neither completed nor cancelled"):
        engine.scheduler.schedule()
    with pytest.raises(ValueError, match="no sampled token for request a"):
        engine.scheduler.complete(plan, {})
    engine.end()
    with pytest.raises(ValueError, match="only the outstanding plan"):
        engine.scheduler.complete(plan, {"a": 1})


def test_bad_requests_are_refused() -> None:
    with pytest.raises(EngineError, match="request x: the prompt has no tokens"):
        Request("x", [])
    for field, value in (("max_tokens", 0), ("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("stop", ("",))):
        with pytest.raises(EngineError, match=field.replace("stop", "stop string")):
            SamplingParams(**{field: value})
    with pytest.raises(EngineError, match="prefill_chunk must be at least 1"):
        Scheduler(BlockPool(1, 1), None, 1, 0, 1)


def test_times_come_from_the_injected_clock() -> None:
    engine = FakeEngine()
    request = engine.add("a", [1], max_tokens=1)
    engine.step()
    assert (request.arrival, request.first_scheduled_time, request.first_token_time, request.finish_time) == (
        0,
        1,
        2,
        3,
    )


# Any schedule


@settings(max_examples=1500)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_output_does_not_depend_on_the_schedule(
    random: random.Random, block_size: int, max_batch: int, prefill_chunk: int, prefix: bool
) -> None:
    """Batch size, chunk size, block size, arrival times, preemption and cache state change no token."""
    longest = -(-30 // block_size)
    engine = FakeEngine(random.randint(longest, longest * 2), block_size, max_batch, prefill_chunk, 30, prefix)
    shared = [random.randrange(VOCABULARY) for _ in range(12)]
    for index in range(random.randint(1, 12)):
        prompt = shared[: random.randint(0, 12)] + [random.randrange(VOCABULARY) for _ in range(random.randint(1, 10))]
        engine.add(str(index), prompt, max_tokens=random.randint(1, 15), ignore_eos=random.random() < 0.7)
        for _ in range(random.randint(0, 3)):
            engine.step()
            engine.scheduler.check()
    engine.drain()
    for request in engine.requests:
        assert request.state is State.FINISHED
        engine.check_request(request)
    totals = engine.scheduler.totals
    assert totals.finished == totals.requests == len(engine.requests)
    assert totals.computed_tokens == sum(sum(counts.values()) for counts in engine.computed.values())
    if not engine.scheduler.prefix:
        assert engine.pool.free == engine.pool.num_blocks


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, aborts, failed steps and transfers in any order, a step's beginning and end apart."""

    @initialize(
        num_blocks=st.integers(6, 16),
        block_size=st.integers(1, 4),
        max_batch=st.integers(1, 4),
        prefill_chunk=st.integers(1, 9),
        prefix=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_batch: int, prefill_chunk: int, prefix: bool) -> None:
        self.engine = FakeEngine(num_blocks, block_size, max_batch, prefill_chunk, 24, prefix)
        self.transfers: dict[Holder, int] = {}
        self.in_flight: dict[int, list[int]] = {}  # block -> its tokens when the transfer began
        self.count = 0

    @rule(
        shared=st.integers(0, 8),
        own=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans(),
    )
    def add(self, shared: int, own: list[int], max_tokens: int, ignore_eos: bool) -> None:
        self.count += 1
        prompt = [1, 2, 3, 1, 2, 3, 1, 2][:shared] + own
        fits = self.engine.pool.blocks_for(min(len(prompt) + max_tokens, 24) - 1) <= self.engine.pool.num_blocks
        if fits:
            self.engine.add(str(self.count), prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)
        else:
            with pytest.raises(RequestRefused, match="blocks of"):
                self.engine.add(str(self.count), prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)

    @precondition(lambda self: self.engine.plan is None)
    @rule(steps=st.integers(0, 4))
    def begin(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
        plan = self.engine.begin()
        assert sum(row.count for row in plan.rows if not row.is_decode) <= self.engine.scheduler.prefill_chunk
        assert len({row.request.id for row in plan.rows}) == len(plan.rows) <= self.engine.scheduler.max_batch

    @precondition(lambda self: self.engine.plan is not None)
    @rule()
    def end(self) -> None:
        for finished in self.engine.end():
            self.engine.check_request(finished.request)

    @precondition(lambda self: self.engine.plan is not None)
    @rule()
    def fail(self) -> None:
        assert self.engine.plan is not None
        self.engine.scheduler.cancel(self.engine.plan)
        self.engine.plan = None

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        unfinished = [request.id for request in self.engine.requests if request.state is not State.FINISHED]
        if unfinished:
            assert self.engine.scheduler.abort(data.draw(st.sampled_from(unfinished)))

    @rule(data=st.data())
    def begin_transfer(self, data: st.DataObject) -> None:
        """A reader elsewhere holds a full block; it must keep its content until the transfer ends."""
        pool = self.engine.pool
        full = [
            block
            for request in self.engine.scheduler.running
            for block in request.block_ids[: request.computed // pool.block_size]
        ]
        holder = Holder("transfer", str(len(self.transfers)))
        if full and holder not in self.transfers:
            block = data.draw(st.sampled_from(full))
            pool.share(block, holder)
            self.transfers[holder] = block
            self.in_flight[block] = self.content(block)

    def content(self, block: int) -> list[int]:
        return [self.engine.store[(block, offset)] for offset in range(self.engine.pool.block_size)]

    @rule()
    def end_transfers(self) -> None:
        for holder, block in self.transfers.items():
            self.engine.pool.release(block, holder)
        self.transfers.clear()

    @invariant()
    def sound(self) -> None:
        self.engine.scheduler.check()
        for holder, block in self.transfers.items():
            assert holder in self.engine.pool.holders(block)
            assert self.content(block) == self.in_flight[block], "a block was overwritten under its reader"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.end_transfers()
        if self.engine.plan is not None:
            self.engine.end()
        self.engine.drain()
        for request in self.engine.requests:
            assert request.state is State.FINISHED
            self.engine.check_request(request)
        if self.engine.scheduler.prefix is not None:
            self.engine.scheduler.prefix.clear()
        assert self.engine.pool.free == self.engine.pool.num_blocks


TestSchedules = SchedulerMachine.TestCase
TestSchedules.settings = settings(max_examples=700, stateful_step_count=30, deadline=None)
