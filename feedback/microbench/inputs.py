"""Fresh input sets for timed calls. Pure numpy.

The oracle draws one set; more of the same distribution come from it by turning the signs of activations at random,
which keeps every value representable in its type and every index valid. Where a set has no activations to turn (token
ids, positions), each set is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from feedback.target import Arrays, Case, OperatorInfo

#: Fewest input sets of a unit: an implementation that remembers results by address or by value gains nothing.
LEAST_SETS = 8

#: Most bytes of inputs and outputs that one unit may hold.
MOST_BYTES = 256 << 20


def runtime(info: OperatorInfo, inputs: Arrays) -> Arrays:
    """What is passed at each call: everything but constants."""
    constants = {tensor.name for tensor in info.tensors if tensor.kind == "constant"}
    return {name: array for name, array in inputs.items() if name not in constants}


def constants(info: OperatorInfo, inputs: Arrays) -> Arrays:
    """What an implementation is built around."""
    names = {tensor.name for tensor in info.tensors if tensor.kind == "constant"}
    return {name: array for name, array in inputs.items() if name in names}


def turnable(info: OperatorInfo) -> tuple[str, ...]:
    """Names of activations: arguments of the compute type that a call reads."""
    return tuple(t.name for t in info.tensors if t.kind in ("runtime", "inout") and t.dtype == "compute")


def fresh_sets(
    info: OperatorInfo, count: int, rng: np.random.Generator, draw: Callable[[int], Arrays]
) -> tuple[Arrays, ...]:
    """`count` runtime input sets that differ in their values; `draw(seed)` asks the oracle for one."""
    names = turnable(info)
    if not names:
        return tuple(runtime(info, draw(int(rng.integers(2**62)))) for _ in range(count))
    first = runtime(info, draw(int(rng.integers(2**62))))
    sets = [first]
    for _ in range(count - 1):
        turned = {name: _turned(first[name], rng) for name in names if name in first}
        sets.append({**first, **turned})
    return tuple(sets)


def _turned(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    signs = rng.integers(0, 2, size=array.shape, dtype=np.int8) * 2 - 1
    return array * signs.astype(array.dtype)


def unit_bytes(info: OperatorInfo, case: Case, given: Arrays) -> int:
    """Bytes of one call in a unit: its inputs, and its results as they cross (four bytes a value).

    Sizes of results come from the specification; an axis that the case does not name counts as one.
    """
    results = [tensor for tensor in info.tensors if tensor.kind in ("output", "inout")]
    values = sum(math.prod(n if isinstance(n, int) else case.dims.get(n, 1) for n in t.shape) for t in results)
    return sum(array.nbytes for array in given.values()) + 4 * values
