"""Timed batches of operator calls: fresh inputs and poisoned outputs in shared memory, the clock on the parent's
side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedback.workers import memory, procfs
from feedback.workers.batch import Arrays, Layout, poison
from feedback.workers.frames import DTYPES
from feedback.workers.watched import WatchedProcess


@dataclass(frozen=True)
class Batch:
    """One timed batch. Call i read input set `order[i]` and returned `outputs[i]` (inout arrays among them).

    `seconds` is wall time from the word to go until the answer, on the parent's clock, about 0.1 ms of messages
    included; `cpu_seconds` what the worker's threads used meanwhile. `mutated` names `runtime` inputs that were written
    to, as "set 3: x". A slot that was never written still holds its poison (NaN, the smallest integer), which no
    comparison passes.
    """

    seconds: float
    cpu_seconds: float
    outputs: tuple[Arrays, ...]
    order: tuple[int, ...]
    mutated: tuple[str, ...]


def run_batch(
    process: WatchedProcess, handle: int, inputs: Sequence[Arrays], repeat: int, warmup: Arrays | None, seconds: float
) -> Batch:
    """See `handle.Worker.operator_batch`."""
    sets = [{name: _plain(name, array) for name, array in arrays.items()} for arrays in inputs]
    if not sets or repeat < 1:
        raise ValueError(f"a batch needs input sets and repeat >= 1, not {len(sets)} sets and repeat {repeat}")
    first = warmup if warmup is not None else sets[0]
    learnt = process.ask("operator_run", {"op": "batch_learn", "handle": handle, "inputs": first}, seconds)
    layout = Layout.plan(sets, _signature(process, learnt), repeat)
    if layout.size > process.limits.memory_bytes:
        mib = layout.size / 2**20
        raise ValueError(f"a batch of {len(layout.order)} calls needs {mib:.0f} MiB, more than a worker may use")
    fd = memory.fixed(layout.size)
    try:
        given, slots = layout.views(memory.mapped(fd, layout.size))
        for views, arrays in zip(given, sets, strict=True):
            for name, view in views.items():
                np.copyto(view, arrays[name])
        for slot in slots:
            for view in slot.values():
                poison(view)
        request = {"op": "batch_map", "handle": handle, "layout": layout.to_json()}
        process.ask("operator_run", request, seconds, [fd])
    finally:
        os.close(fd)
    cpu = procfs.cpu_seconds(process.pid)
    begin = time.perf_counter()
    process.ask("operator_run", {"op": "batch_go"}, seconds)
    wall = time.perf_counter() - begin
    with process.paused():
        cpu = procfs.cpu_seconds(process.pid) - cpu
        outputs = tuple({name: view.copy() for name, view in slot.items()} for slot in slots)
        mutated = _mutated(given, sets, set(layout.outputs[0]))
    process.ask("operator_run", {"op": "batch_end"}, seconds)
    return Batch(wall, cpu, outputs, layout.order, mutated)


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
        raise ValueError(f"input {name} is no numpy array of a type that can cross ({', '.join(sorted(DTYPES))})")
    return np.ascontiguousarray(array).reshape(array.shape)


def _signature(process: WatchedProcess, learnt: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What the worker said its results look like, checked: it decides how much memory is set aside."""
    try:
        found = {str(name): (str(dtype), tuple(shape)) for name, (dtype, shape) in learnt.items()}
    except (AttributeError, TypeError, ValueError):
        found = {}
    for dtype, shape in found.values():
        if dtype not in DTYPES or any(type(n) is not int or not 0 <= n < 1 << 40 for n in shape):
            raise process.end("protocol", "operator_run", f"a result of type {dtype[:40]} and shape {shape}"[:120])
    if not found:
        raise process.end("protocol", "operator_run", "no arrays came back")
    return found


def _mutated(given: list[Arrays], sets: list[Arrays], returned: set[str]) -> tuple[str, ...]:
    return tuple(
        f"set {index}: {name}"
        for index, (views, arrays) in enumerate(zip(given, sets, strict=True))
        for name, view in views.items()
        if name not in returned and view.tobytes() != arrays[name].tobytes()
    )
