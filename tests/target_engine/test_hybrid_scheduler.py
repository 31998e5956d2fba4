"""The scheduler of a model with recurrent states, driven by a fake engine whose states really hold what they absorbed.

A state here is the list of tokens that went into its slot, and slots start out with garbage. Before a row is computed
its slot must hold exactly the tokens before it: a slot that was not zeroed, was resumed at another position, was copied
too late or belongs to someone else is seen at once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from target_engine.errors import EngineError
from target_engine.memory.blocks import BlockPool, Holder
from target_engine.memory.prefix import CACHE, PrefixCache
from target_engine.memory.snapshots import Snapshots
from target_engine.memory.states import OutOfStates, StatePool
from target_engine.scheduling.plan import Plan
from target_engine.scheduling.recurrent import Recurrent
from target_engine.scheduling.request import FinishReason, State
from target_engine.scheduling.scheduler import Finished, Scheduler
from tests.target_engine.test_scheduler import VOCABULARY, FakeEngine, SchedulerMachine, prompt_of

GARBAGE = [-7]


class HybridEngine(FakeEngine):
    """The fake engine with a state slot for every running request and `snapshots` more."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_batch: int = 4,
        prefill_chunk: int = 8,
        max_model_len: int = 64,
        prefix: bool = True,
        snapshots: int = 8,
    ) -> None:
        super().__init__(num_blocks, block_size, max_batch, prefill_chunk, max_model_len, prefix)
        cache = self.scheduler.prefix
        self.states = StatePool(max_batch, snapshots if prefix else 0, "tokens")
        self.snapshots = None if cache is None else Snapshots(self.states, cache)
        ticks = itertools.count()
        self.scheduler = Scheduler(
            self.pool, cache, max_batch, prefill_chunk, max_model_len, lambda: float(next(ticks)),
            Recurrent(self.states, self.snapshots),
        )  # fmt: skip
        self.content = dict.fromkeys(range(self.states.num_slots), GARBAGE)

    def absorb(self, plan: Plan, rows: int | None = None) -> None:
        """What a runner does to states, or all of it up to the first `rows` rows."""
        read, written = {source for source, _ in plan.restored}, {target for _, target in plan.kept}
        assert not read & written, f"snapshots {read & written} are read and written in one step"
        for slot in plan.zeroed:
            self.content[slot] = []
        for source, slot in plan.restored:
            self.content[slot] = self.content[source]
        for row in plan.rows[:rows]:
            assert row.state is not None
            before, tokens = self.content[row.state.slot], row.request.tokens
            assert before == tokens[: row.start], f"request {row.request.id} at {row.start}: its state is {before}"
            self.content[row.state.slot] = tokens[: row.start + row.count]
        if rows is None:
            for slot, target in plan.kept:
                self.content[target] = self.content[slot]

    def end(self) -> list[Finished]:
        assert self.plan is not None
        self.absorb(self.plan)
        return super().end()

    def fail(self, rows: int) -> None:
        """The step fails after its first `rows` rows."""
        assert self.plan is not None
        self.absorb(self.plan, rows)
        plan, self.plan = self.plan, None
        self.scheduler.cancel(plan)

    def check(self) -> None:
        self.scheduler.check()
        for block in range(self.pool.num_blocks):
            snapshot = None if self.snapshots is None else self.snapshots.get(block)
            if snapshot is not None:
                assert len(self.content[snapshot.slot]) == snapshot.position


def rows_of(plan: Plan) -> list[tuple[str, int, int]]:
    return [(row.request.id, row.start, row.start + row.count) for row in plan.rows]


def trace(engine: HybridEngine, steps: int) -> list[list[tuple[str, int, int]]]:
    """Which tokens each step computes for whom."""
    seen = []
    for _ in range(steps):
        seen.append(rows_of(engine.begin()))
        engine.end()
        engine.check()
    return seen


# Slots


def test_a_running_request_has_one_slot_which_starts_at_zero() -> None:
    engine = HybridEngine(prefix=False)
    engine.add("a", [1] * 3, max_tokens=3, ignore_eos=True)
    plan = engine.begin()
    (row,) = plan.rows
    assert row.state is not None
    assert plan.zeroed == (row.state.slot,)
    assert plan.restored == plan.kept == ()
    engine.end()
    second = engine.begin()
    assert second.zeroed == ()
    assert second.rows[0].state is not None
    assert second.rows[0].state.slot == row.state.slot
    engine.end()
    engine.drain()
    assert engine.states.held == 0


def test_without_a_prefix_cache_chunks_are_cut_by_the_budget_alone() -> None:
    engine = HybridEngine(prefill_chunk=6, prefix=False)
    engine.add("a", [1] * 13, max_tokens=1)
    assert trace(engine, 3) == [[("a", 0, 6)], [("a", 6, 12)], [("a", 12, 13)]]


@pytest.mark.parametrize("ending", ["finish", "abort", "abort in the step", "preempt", "fail"])
def test_a_slot_comes_back_however_a_request_ends(ending: str) -> None:
    """sgl-project/sglang#16067: state slots leaked until none was left."""
    for _ in range(3):
        engine = HybridEngine(num_blocks=5, max_batch=2, prefix=False)
        for turn in range(8):
            engine.add(f"old{turn}", [1] * 8, ignore_eos=True, max_tokens=8)
            engine.add(f"new{turn}", [2] * 4, ignore_eos=True, max_tokens=12)
            if ending == "abort":
                engine.step()
                engine.scheduler.abort(f"old{turn}")
            elif ending == "abort in the step":
                engine.begin()
                engine.scheduler.abort(f"old{turn}")
                engine.check()
                engine.end()
            elif ending == "fail":
                engine.begin()
                engine.fail(1)
            engine.check()
            engine.drain()
            assert engine.states.free == engine.states.num_slots
        assert ending != "preempt" or engine.scheduler.totals.preemptions


def test_a_failed_step_starts_its_requests_over_since_a_state_cannot_be_taken_back() -> None:
    engine = HybridEngine(prefill_chunk=64)
    request = engine.add("a", prompt_of(1, 2, tail=2), ignore_eos=True, max_tokens=6)
    for _ in range(4):
        engine.step()
    engine.begin()
    engine.fail(1)
    assert request.state is State.WAITING
    assert request.output_length == 3, "sampled tokens stay"
    engine.check()
    assert trace(engine, 1) == [[("a", 12, 13)]], "resumed at its own latest snapshot"
    engine.drain()
    engine.check_request(request)


def test_the_order_of_arrival_survives_a_failed_step() -> None:
    engine = HybridEngine(prefill_chunk=4, max_batch=3)
    requests = [engine.add(id, [index] * 9, max_tokens=3) for index, id in enumerate("abcd")]
    for _ in range(4):
        engine.step()
    engine.begin()
    engine.fail(0)
    engine.check()
    engine.drain()
    for request in requests:
        engine.check_request(request)


def test_an_empty_plan_that_is_given_up_disturbs_nobody() -> None:
    engine = HybridEngine()
    engine.begin()
    engine.fail(0)
    engine.check()


def test_a_request_waits_while_every_slot_is_on_its_way_elsewhere() -> None:
    engine = HybridEngine(max_batch=1, prefix=False)
    holder = Holder("transfer", "elsewhere")
    slot = engine.states.allocate(holder)
    engine.add("a", [1], max_tokens=1)
    assert engine.begin().rows == ()
    engine.fail(0)
    engine.states.release(slot, holder)
    engine.drain()


def test_a_recurrent_model_needs_its_snapshots_in_the_schedulers_own_prefix_cache() -> None:
    pool = BlockPool(4, 4)
    with pytest.raises(EngineError, match="state snapshots must belong to the scheduler's own prefix cache"):
        Scheduler(pool, PrefixCache(pool), 1, 8, 16, recurrent=Recurrent(StatePool(1, 0, ""), None))


# Prefix reuse


def test_chunks_end_at_block_boundaries_and_the_last_one_before_the_prompts_end_is_kept() -> None:
    engine = HybridEngine(prefill_chunk=10)
    engine.add("a", prompt_of(1, 2, 3, 1, tail=2), max_tokens=1)
    assert trace(engine, 3) == [[("a", 0, 8)], [("a", 8, 16)], [("a", 16, 18)]]
    assert engine.snapshots is not None
    assert [snapshot.position for snapshot in engine.snapshots._by_block.values()] == [16], "of the others the latest"
    engine.add("b", prompt_of(1, 2, 3, 1, tail=3), max_tokens=1)
    assert trace(engine, 1) == [[("b", 16, 19)]]


def test_a_prefix_is_reused_only_up_to_a_snapshot_and_where_two_part_one_is_made() -> None:
    engine = HybridEngine(prefill_chunk=64)
    requests = [engine.add("a", prompt_of(1, 2, 3), max_tokens=1)]
    assert trace(engine, 2) == [[("a", 0, 12)], [("a", 12, 13)]]
    requests.append(engine.add("b", prompt_of(1, 2, 0), max_tokens=1))
    assert trace(engine, 3) == [[("b", 0, 8)], [("b", 8, 12)], [("b", 12, 13)]], "8 tokens are cached, no state is"
    requests.append(engine.add("c", prompt_of(1, 2, 1), max_tokens=1))
    assert trace(engine, 2) == [[("c", 8, 12)], [("c", 12, 13)]]
    assert [request.first_cached for request in requests] == [0, 0, 8]
    for request in requests:
        engine.check_request(request)


def test_two_requests_may_resume_at_one_snapshot_in_one_step() -> None:
    engine = HybridEngine(prefill_chunk=64)
    engine.add("a", prompt_of(1, 2), max_tokens=1)
    engine.drain()
    pair = [engine.add(id, prompt_of(1, 2, tail=tail), max_tokens=3) for id, tail in (("b", 2), ("c", 3))]
    plan = engine.begin()
    assert len({source for source, _ in plan.restored}) == 1
    assert [row.start for row in plan.rows] == [8, 8]
    engine.end()
    engine.drain()
    for request in pair:
        engine.check_request(request)


def test_the_next_turn_resumes_in_the_output_of_the_last() -> None:
    engine = HybridEngine(prefill_chunk=64)
    first = engine.add("a", prompt_of(1), ignore_eos=True, max_tokens=11)
    engine.drain()
    turn = engine.add("b", [*first.tokens, 0, 1, 2])
    engine.step()
    assert turn.first_cached == 12
    assert len(engine.content[engine.begin().rows[0].state.slot]) == 16  # type: ignore[union-attr]


def test_a_preempted_request_resumes_at_its_last_snapshot() -> None:
    engine = HybridEngine(num_blocks=6, max_batch=2, prefill_chunk=64)
    old = engine.add("old", [1] * 8, ignore_eos=True, max_tokens=9)
    young = engine.add("young", [2] * 4, ignore_eos=True, max_tokens=20)
    starts = []
    while engine.scheduler.has_work:
        plan = engine.begin()
        starts += [
            row.start for row in plan.rows if row.request is young and row.state and row.state.restored is not None
        ]
        engine.end()
        engine.check()
    assert young.preemptions
    assert starts == [8]
    for request in (old, young):
        engine.check_request(request)


def test_a_snapshot_goes_with_its_block() -> None:
    engine = HybridEngine(num_blocks=6, prefill_chunk=64)
    engine.add("a", prompt_of(1, 2), max_tokens=1)
    engine.drain()
    assert engine.snapshots is not None
    assert len(engine.snapshots) == 1
    engine.add("b", [3] * 21, max_tokens=1)  # every block there is
    engine.drain()
    engine.check()
    engine.add("c", prompt_of(1, 2), max_tokens=1)
    assert trace(engine, 1) == [[("c", 0, 8)]]


def test_many_snapshots_never_take_the_slot_of_a_request() -> None:
    engine = HybridEngine(num_blocks=200, max_batch=2, snapshots=1, max_model_len=64)
    requests = [engine.add(str(index), [index % VOCABULARY] * (9 + index), max_tokens=9) for index in range(9)]
    engine.drain()
    engine.check()
    for request in requests:
        engine.check_request(request)
    assert engine.states.peak_held <= 3


# Guards, and what happens without them


def defective(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Take a guard out of the product, by the name of the fault that it keeps away."""
    patch: Callable[..., None] = monkeypatch.setattr
    real_work, real_begin = Recurrent.work, Recurrent.begin
    if name == "not zeroed":
        patch(Recurrent, "work", lambda *a: replace(real_work(*a), zeroed=False))
    elif name == "not zeroed and not noticed":
        patch(StatePool, "zero", lambda self, slot: None)
    elif name == "resumed past its snapshot":
        patch(Recurrent, "resumable", lambda self, blocks: _past(self, blocks))
    elif name == "published at another position":
        patch(Recurrent, "clipped", lambda self, request, count: count)
        patch(Recurrent, "work", _keeps_anywhere)
    elif name == "leaked":
        patch(Recurrent, "release", lambda self, request: self._runs.pop(request, None))
    elif name == "not held while it is read":
        patch(Recurrent, "begin", lambda *a: _without_hold(real_begin, *a))
        patch(Recurrent, "settle", _settle_kept)
    elif name == "goes on after a failed step":
        patch(Scheduler, "_preempt", lambda self, request: self.running.append(request))
        patch(Scheduler, "cancel", _cancel_alone)
    elif name == "outlives its block":
        patch(Snapshots, "drop", lambda self, block: None)
    else:
        raise AssertionError(name)


def _past(self: Recurrent, blocks: Any) -> Any:
    assert self.snapshots is not None
    found = self.snapshots.deepest(blocks)
    return None if found is None else replace(found, position=len(blocks) * self.snapshots.block_size)


def _keeps_anywhere(self: Recurrent, request: Any, end: int) -> Any:
    from target_engine.scheduling.plan import StateWork

    assert self.snapshots is not None
    run = self._runs[request]
    kept = self.snapshots.reserve(_transfer(request)) if end >= self.snapshots.block_size else None
    fresh, run.begun = not run.begun, True
    return StateWork(run.slot, fresh and run.source is None, run.source if fresh else None, kept)


def _transfer(request: Any) -> Any:
    from target_engine.scheduling import recurrent

    return recurrent._transfer(request)


def _without_hold(real: Any, self: Recurrent, request: Any, snapshot: Any, cached: int) -> None:
    real(self, request, snapshot, cached)
    if snapshot is not None:
        self.pool.release(snapshot.slot, _transfer(request))


def _settle_kept(self: Recurrent, rows: Any, failed: bool = False) -> None:
    for row in rows:
        if row.state.kept is not None and (failed or row.request.state is not State.RUNNING):
            self.pool.release(row.state.kept, _transfer(row.request))


def _cancel_alone(self: Scheduler, plan: Plan) -> None:
    self._outstanding = None
    assert self.recurrent is not None
    self.recurrent.settle(plan.rows, failed=True)


def reuse_of_a_slot() -> None:
    engine = HybridEngine(max_batch=1, prefix=False)
    for id in "ab":
        engine.add(id, [1, 2, 3], max_tokens=2)
        engine.drain()


def two_that_part() -> None:
    engine = HybridEngine(prefill_chunk=6)
    for index in range(4):
        engine.add(str(index), prompt_of(1, 2, index, tail=2), max_tokens=2)
        engine.drain()
        engine.check()


def cached_beyond_the_snapshot() -> None:
    engine = HybridEngine(prefill_chunk=64)
    for blocks in ((1, 2, 0), (1, 3, 0), (1, 2, 1)):  # a state is kept after block 1 alone
        engine.add(str(blocks), prompt_of(*blocks), max_tokens=2)
        engine.drain()
        engine.check()


def every_ending() -> None:
    engine = HybridEngine(num_blocks=5, max_batch=2, prefix=False)
    for turn in range(4):
        engine.add(f"old{turn}", [1] * 8, ignore_eos=True, max_tokens=8)
        engine.add(f"new{turn}", [2] * 4, ignore_eos=True, max_tokens=12)
        engine.step()
        engine.scheduler.abort(f"old{turn}")
        engine.drain()
        engine.check()


def snapshot_pushed_out_in_the_step_that_reads_it() -> None:
    engine = HybridEngine(num_blocks=64, max_batch=2, snapshots=1, prefill_chunk=64)
    engine.add("first", prompt_of(1, 2), max_tokens=1)
    engine.drain()
    engine.add("reader", [*prompt_of(1, 2, 3, tail=0), 0], max_tokens=1)  # its own snapshot pushes out what it reads
    engine.add("other", prompt_of(4), max_tokens=1)
    engine.drain()
    engine.check()


def a_step_that_fails() -> None:
    engine = HybridEngine()
    engine.add("a", [1] * 10, ignore_eos=True, max_tokens=5)
    engine.step()
    engine.begin()
    engine.fail(1)
    engine.drain()


def eviction() -> None:
    engine = HybridEngine(num_blocks=6, prefill_chunk=64)
    for id, prompt in (("a", prompt_of(1, 2)), ("b", [3] * 21), ("c", prompt_of(1, 2))):
        engine.add(id, prompt, max_tokens=1)
        engine.drain()
        engine.check()


FAULTS: dict[str, tuple[Callable[[], None], type[BaseException], str]] = {
    # vllm-project/vllm#56524: the next request saw what the last one had left
    "not zeroed": (reuse_of_a_slot, AssertionError, "its state is"),
    "not zeroed and not noticed": (reuse_of_a_slot, ValueError, "it was never zeroed"),
    # vllm-project/vllm#51113: the state after 364 tokens was taken for the state after 1600
    "resumed past its snapshot": (cached_beyond_the_snapshot, AssertionError, "its state is|stands elsewhere"),
    "published at another position": (two_that_part, ValueError, "cannot be published as|not one of"),
    # sgl-project/sglang#16067
    "leaked": (every_ending, AssertionError, "leaked"),
    "not held while it is read": (snapshot_pushed_out_in_the_step_that_reads_it, AssertionError, "read and written"),
    "goes on after a failed step": (a_step_that_fails, AssertionError, "its state is"),
    "outlives its block": (eviction, AssertionError, "is not cached, its snapshot is|of another prefix"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_kept_away_by_its_guard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, error, words = FAULTS[name]
    scenario()
    defective(monkeypatch, name)
    with pytest.raises(error, match=words):
        scenario()


def test_a_leak_that_nobody_checks_ends_in_an_empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    defective(monkeypatch, "leaked")
    monkeypatch.setattr(Scheduler, "check", lambda self: None)
    engine = HybridEngine(max_batch=2, prefix=False)
    for index in range(5):
        engine.add(str(index), [1], max_tokens=1)
    with pytest.raises(AssertionError, match="no progress"):
        engine.drain()
    with pytest.raises(OutOfStates, match="none of 2 is free"):
        engine.states.allocate(Holder("request", "next"))


def test_a_wrong_position_is_found_when_it_is_resumed_if_it_was_not_when_it_was_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the guard at publishing stands another one."""
    defective(monkeypatch, "published at another position")

    def publish(self: Snapshots, block: int, snapshot: Any, holder: Any) -> bool:
        self.pool.share(snapshot.slot, CACHE)
        self.pool.release(snapshot.slot, holder)
        self._by_block[block] = snapshot
        return True

    monkeypatch.setattr(Snapshots, "publish", publish)
    monkeypatch.setattr(Snapshots, "check", lambda self: None)
    engine = HybridEngine(prefill_chunk=6)
    engine.add("a", prompt_of(1, 2, 3, tail=2), max_tokens=1)
    engine.drain()
    engine.add("b", prompt_of(1, 2, 3, tail=2), max_tokens=1)
    with pytest.raises(ValueError, match="holds the state after 14 tokens, its prefix has 12"):
        engine.begin()


# Any schedule


@settings(max_examples=600)
@given(
    st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 6), st.integers(1, 12), st.booleans(),
    st.integers(0, 6),
)  # fmt: skip
def test_output_does_not_depend_on_the_schedule(
    random: random.Random, block_size: int, max_batch: int, prefill_chunk: int, prefix: bool, snapshots: int
) -> None:
    """Batch size, chunk size, block size, arrival times, preemption, failures and cache state change no token."""
    longest = -(-30 // block_size)
    engine = HybridEngine(
        random.randint(longest, longest * 2), block_size, max_batch, prefill_chunk, 30, prefix, snapshots
    )
    shared = [random.randrange(VOCABULARY) for _ in range(12)]
    for index in range(random.randint(1, 12)):
        prompt = shared[: random.randint(0, 12)] + [random.randrange(VOCABULARY) for _ in range(random.randint(1, 10))]
        engine.add(str(index), prompt, max_tokens=random.randint(1, 15), ignore_eos=random.random() < 0.7)
        for _ in range(random.randint(0, 3)):
            engine.step()
            engine.check()
        if random.random() < 0.2:
            engine.begin()
            engine.fail(random.randint(0, 3))
            engine.check()
    engine.drain()
    for request in engine.requests:
        assert request.finish_reason is not FinishReason.ABORT
        engine.check_request(request)
    if engine.snapshots is None:
        assert engine.states.held == 0
    else:
        assert engine.states.held == len(engine.snapshots) <= snapshots


class HybridMachine(SchedulerMachine):
    """The scheduler's machine with states: steps that fail in the middle, too."""

    @initialize(
        num_blocks=st.integers(6, 16),
        block_size=st.integers(1, 4),
        max_batch=st.integers(1, 4),
        prefill_chunk=st.integers(1, 9),
        prefix=st.booleans(),
        snapshots=st.integers(0, 5),
    )
    def start(  # type: ignore[override]
        self, num_blocks: int, block_size: int, max_batch: int, prefill_chunk: int, prefix: bool, snapshots: int
    ) -> None:
        super().start(num_blocks, block_size, max_batch, prefill_chunk, prefix)
        self.engine = HybridEngine(num_blocks, block_size, max_batch, prefill_chunk, 24, prefix, snapshots)

    @precondition(lambda self: self.engine.plan is not None)
    @rule(rows=st.integers(0, 4))
    def fail(self, rows: int) -> None:  # type: ignore[override]
        self.engine.fail(rows)

    @invariant()
    def states_are_sound(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "engine"):
            assert self.engine.states.held == 0


TestHybridSchedules = HybridMachine.TestCase
TestHybridSchedules.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
