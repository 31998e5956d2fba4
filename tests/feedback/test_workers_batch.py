"""Timed batches: every call verified, inputs watched, nothing taken from the worker's own clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.target import Unsupported
from feedback.workers.batch import Layout, poison
from feedback.workers.pool import Limits, Worker, WorkerFailure, WorkerPool
from tests.feedback.fake_target import write_tree

PLAIN, MUTATES, SHRINKS, PATCHES_THE_CLOCK = 0, 1, 2, 3


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("faketarget.adapter", Limits(call_seconds=20), preload=("numpy",)) as pool:
        yield pool


@pytest.fixture
def worker(pool: WorkerPool, tmp_path: Path) -> Iterator[Worker]:
    with pool.open(write_tree(tmp_path)) as worker:
        yield worker


def sets(n: int, rows: int = 5) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((rows, 7)), "unused": rng.integers(0, 9, 3)} for _ in range(n)]


def test_every_call_returns_its_own_outputs(worker: Worker) -> None:
    given_sets = sets(8)
    batch = worker.operator_batch(PLAIN, given_sets, repeat=3)
    assert batch.order == tuple(range(8)) * 3
    assert batch.mutated == ()
    for index, outputs in zip(batch.order, batch.outputs, strict=True):
        assert np.array_equal(outputs["y"], given_sets[index]["x"] * 2)
        assert outputs["n"].tolist() == [0, 1, 2]
    assert batch.seconds > 0


def test_large_inputs_stay_in_shared_memory(worker: Worker) -> None:
    given_sets = sets(8, rows=20_000)
    batch = worker.operator_batch(PLAIN, given_sets)
    assert all(np.array_equal(out["y"], one["x"] * 2) for out, one in zip(batch.outputs, given_sets, strict=True))


def test_a_written_input_is_named(worker: Worker) -> None:
    given_sets = sets(4)
    originals = [one["x"].copy() for one in given_sets]
    batch = worker.operator_batch(MUTATES, given_sets, repeat=2)
    assert batch.mutated == ("set 0: x", "set 1: x", "set 2: x", "set 3: x")
    assert all(np.array_equal(one["x"], x) for one, x in zip(given_sets, originals, strict=True)), (
        "the parent's own stay"
    )


def test_an_output_that_changes_shape_is_an_error(worker: Worker) -> None:
    with pytest.raises(WorkerFailure, match=r"error in operator_run: .*returned y as float64\[2, 7\], before as"):
        worker.operator_batch(SHRINKS, sets(4))


def test_a_patched_clock_changes_nothing(worker: Worker) -> None:
    begin = time.perf_counter()
    batch = worker.operator_batch(PATCHES_THE_CLOCK, sets(8))
    assert 0.16 <= batch.seconds <= time.perf_counter() - begin, "eight calls that sleep 20 ms each"


def test_warm_up_can_have_its_own_inputs(worker: Worker) -> None:
    worker.call("evaluate", "engine.seen = []\nold = engine.operator\n"
                "engine.operator = lambda h, i: (engine.seen.append(float(i['x'][0, 0])), old(h, i))[1]")  # fmt: skip
    given_sets = sets(8)
    other = {"x": np.full((5, 7), 42.0)}
    worker.operator_batch(PLAIN, given_sets, warmup=other)
    assert worker.call("evaluate", "result = engine.seen") == [42.0, *(float(one["x"][0, 0]) for one in given_sets)]


def test_a_held_worker_does_nothing(worker: Worker) -> None:
    worker.call(
        "evaluate",
        "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    )
    with worker._process.paused():
        time.sleep(0.02)  # signals reach other threads when they next enter the kernel
        before = worker.cpu_seconds()
        time.sleep(0.05)
        assert worker.cpu_seconds() == before
    deadline = time.monotonic() + 5
    while worker.cpu_seconds() == before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert worker.cpu_seconds() > before


@pytest.mark.parametrize(
    ("bad", "says"),
    [([], "input sets"), ([{"x": [1, 2]}], "input x"), ([{"x": np.array(["a"])}], "input x")],
)
def test_inputs_that_cannot_cross_are_refused(worker: Worker, bad: list, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        worker.operator_batch(PLAIN, bad)


def test_a_batch_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=64 << 20)
    with (
        WorkerPool("faketarget.adapter", limits, preload=("numpy",)) as pool,
        pool.open(write_tree(tmp_path)) as worker,
    ):
        with pytest.raises(ValueError, match="MiB, more than a worker may use"):
            worker.operator_batch(PLAIN, sets(8, rows=200_000))
        assert worker.call("echo") == [[], {}], "it is still there"


def test_a_target_without_operators_says_so(worker: Worker) -> None:
    worker.call("evaluate", "def no(self, h, i): raise NotImplementedError('no operators')\n"
                "no.__code__ = no.__code__.replace(co_filename=__file__)\nTarget.operator_run = no")  # fmt: skip
    with pytest.raises(Unsupported, match="no operators"):
        worker.operator_batch(PLAIN, sets(8))


SIGNATURES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(st.sampled_from(["float32", "int8", "bool"]), st.lists(st.integers(0, 4), max_size=3).map(tuple)),
    min_size=1,
)


@given(inputs=SIGNATURES, outputs=SIGNATURES, n=st.integers(1, 4), repeat=st.integers(1, 3))
def test_no_two_arrays_share_a_byte(inputs: dict, outputs: dict, n: int, repeat: int) -> None:
    arrays = [{name: np.zeros(shape, dtype) for name, (dtype, shape) in inputs.items()} for _ in range(n)]
    layout = Layout.plan(arrays, outputs, repeat)
    assert Layout.from_json(layout.to_json()) == layout
    places = [place for part in (*layout.inputs, *layout.outputs) for place in part.values()]
    spans = sorted((place.offset, place.offset + place.bytes) for place in places if place.bytes)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert all(end <= layout.size for _, end in spans)
    given_views, slots = layout.views(memoryview(bytearray(layout.size)))
    assert [set(part) for part in given_views] == [set(inputs)] * n
    assert [set(part) for part in slots] == [set(outputs)] * (n * repeat)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
def test_poison_is_unmistakable(dtype: str) -> None:
    array = np.zeros(3, dtype)
    poison(array)
    kind = array.dtype.kind
    assert np.isnan(array).all() if kind == "f" else array.all()
    if kind in "iu":
        assert array[0] == (np.iinfo(dtype).min if kind == "i" else np.iinfo(dtype).max)
