"""The schema of an operator's specification, and the numbers that test inputs are drawn from. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from target_engine.ops.settings import OperatorSettings

if TYPE_CHECKING:
    from target_engine.parallel.sharding import Sharding

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class TensorSpec:
    """One argument or result. `shape` mixes sizes and axis names; `dtype` is a numpy name, or `compute` for the launch
    type.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    kind: Literal["constant", "runtime", "inout", "output"]


@dataclass(frozen=True)
class Case:
    """One input condition. Tags: typical, odd, constructed, microbench."""

    name: str
    dims: dict[str, int]
    distribution: str = "normal"
    tags: tuple[str, ...] = ("typical",)


@dataclass(frozen=True)
class Tolerance:
    """|got - reference| <= atol + rtol * |reference|, and why these two numbers."""

    atol: float
    rtol: float
    reason: str


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a real model as it is launched, for input conditions worth timing; `linear_heads` is 0 without
    linear-attention layers.
    """

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary: int
    block_size: int
    max_batch: int
    prefill_chunk: int
    linear_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_width: int = 0
    state_slots: int = 0
    context_ranks: int = 1


@dataclass(frozen=True)
class OperatorSpec:
    """What an operator computes and on which inputs it is checked.

    `tensors` in call order: constants go to the constructor by name, runtime and inout tensors to the call by
    position, outputs come back in order. `make_inputs(case, seed)` gives numpy arrays for every constant, runtime and
    inout tensor. `microbench(sizes)` gives the cases of a real model. `linear` marks what linear-attention layers alone
    run, `context` what context parallelism alone runs. `shardings` lists how the operator may be split over devices;
    `unsharded` says why it never is.
    """

    name: str
    role: str
    doc: str
    tensors: tuple[TensorSpec, ...]
    cases: tuple[Case, ...]
    tolerance: dict[str, Tolerance]
    make_inputs: Callable[[Case, int], Arrays]
    microbench: Callable[[ModelSizes], tuple[Case, ...]]
    deterministic: bool = True
    linear: bool = False
    context: bool = False
    shardings: tuple[Sharding, ...] = ()
    unsharded: str = ""

    def named(self, *kinds: str) -> list[TensorSpec]:
        """The tensors of these kinds, in order."""
        return [tensor for tensor in self.tensors if tensor.kind in kinds]

    def runs_in(self, sizes: ModelSizes) -> bool:
        """Whether a model of these sizes, launched like this, runs it."""
        return (sizes.linear_heads > 0 or not self.linear) and (sizes.context_ranks > 1 or not self.context)


def settings_of(dims: dict[str, int], dtype: str) -> OperatorSettings:
    """Settings for a case: axes H (heads), G (KV heads), D (head size), S (block size), N or B (rows), K (key size), V
    (value size), W (convolution width).
    """
    return OperatorSettings(
        dtype=dtype,
        num_heads=dims.get("H", 1),
        num_kv_heads=dims.get("G", 1),
        head_dim=dims.get("D", 1),
        block_size=dims.get("S", 16),
        rows=dims.get("N", dims.get("B", 16)),
        linear_heads=dims.get("H", 1),
        key_dim=dims.get("K", 1),
        value_dim=dims.get("V", 1),
        conv_width=dims.get("W", 4),
    )


def draw(rng: np.random.Generator, shape: tuple[int, ...], distribution: str) -> np.ndarray:
    """Float32 values. Distributions: normal, large (30x), small (1/1000), one_hot (one 1 per row), ramp (differs in
    every element), mixed (rows of very different size), zeros."""
    if distribution == "normal":
        values = rng.standard_normal(shape)
    elif distribution == "large":
        values = 30.0 * rng.standard_normal(shape)
    elif distribution == "small":
        values = 1e-3 * rng.standard_normal(shape)
    elif distribution == "one_hot":
        flat = np.zeros((int(np.prod(shape[:-1])), shape[-1]))
        flat[np.arange(len(flat)), rng.integers(0, shape[-1], len(flat))] = 1.0
        values = flat.reshape(shape)
    elif distribution == "ramp":
        count = int(np.prod(shape))
        values = ((np.arange(count) + rng.integers(0, count)) % 251 / 125.0 - 1.0).reshape(shape)
    elif distribution == "mixed":
        values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 1.4, (*shape[:-1], 1))
    elif distribution == "zeros":
        values = np.zeros(shape)
    else:
        raise ValueError(f"unknown distribution {distribution!r}")
    return values.astype(np.float32)


def matrix(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A weight matrix [rows, columns] whose products with unit-variance vectors have unit variance."""
    return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


MATMUL_TOLERANCE = {
    "float32": Tolerance(
        2e-4, 2e-4, "sums of up to a few thousand float32 products in any order, values up to about 100"
    ),
    "bfloat16": Tolerance(2e-2, 1.6e-2, "float32 sums rounded once or twice to 8 significant bits"),
}
"""Tolerance of operators that are a matrix product of exactly representable inputs."""


def row_cases(dims: dict[str, int]) -> tuple[Case, ...]:
    """The usual conditions over the number of rows N of an operator whose other axes are `dims`."""
    return (
        Case("decode-4", {"N": 4, **dims}),
        Case("decode-16", {"N": 16, **dims}),
        Case("one-row", {"N": 1, **dims}, tags=("odd",)),
        Case("three-rows", {"N": 3, **dims}, tags=("odd",)),
        Case("seventeen-rows", {"N": 17, **dims}, tags=("odd",)),
        Case("prefill-65", {"N": 65, **dims}, tags=("odd",)),
        Case("large-values", {"N": 5, **dims}, "large", ("constructed",)),
        Case("small-values", {"N": 5, **dims}, "small", ("constructed",)),
        Case("one-hot", {"N": 7, **dims}, "one_hot", ("constructed",)),
        Case("mixed-rows", {"N": 6, **dims}, "mixed", ("constructed",)),
        Case("ramp", {"N": 9, **dims}, "ramp", ("constructed",)),
        Case("zeros", {"N": 2, **dims}, "zeros", ("constructed",)),
    )


def row_microbench(dims: dict[str, int], sizes: ModelSizes) -> tuple[Case, ...]:
    """Row counts worth timing: one request, the full batch, a prefill chunk."""
    counts = {
        "decode-1": 1,
        f"decode-{sizes.max_batch}": sizes.max_batch,
        f"prefill-{sizes.prefill_chunk}": sizes.prefill_chunk,
    }
    return tuple(Case(f"model-{name}", {"N": count, **dims}, tags=("microbench",)) for name, count in counts.items())
