"""Drawing the arguments of a kernel. Pure numpy.

Values are those that the argument's type can hold, carried as float32 where numpy has no such type (bfloat16) and as
they are otherwise. Distributions are the conditions that kernels go wrong under, weak and strong decay among them:
products of gates near 1 are where low precision shows, and ordinary ones hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pydantic import Field

from feedback.kernels import rounding
from feedback.target import Wire

Dtype = Literal["float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "bool"]
Rng = np.random.Generator

DISTRIBUTIONS: dict[str, Callable[[Rng, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "ones": lambda rng, shape: np.ones(shape),
    "arange": lambda rng, shape: np.arange(int(np.prod(shape))).reshape(shape),
    "one_hot": lambda rng, shape: np.eye(shape[-1])[rng.integers(0, shape[-1], shape[:-1])],
    "unit_rows": lambda rng, shape: _unit(rng.standard_normal(shape)),
    # Logarithms of decay, and decay itself.
    "weak_decay": lambda rng, shape: -0.002 * rng.exponential(1.0, shape),
    "strong_decay": lambda rng, shape: -3.0 - rng.exponential(1.0, shape),
    "near_one": lambda rng, shape: np.exp(-0.002 * rng.exponential(1.0, shape)),
}


class Argument(Wire):
    """One tensor: shape, type, and how its values are drawn, times `scale` plus `offset`.

    Without a distribution (and without a generator that gives it) it is a result: filled with NaN, or with the smallest
    number of an integer type, so that what is never written shows.
    """

    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    distribution: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    low: int = Field(default=0, description="of integers drawn `uniform`")
    high: int = 2


def drawn(argument: Argument, rng: Rng) -> np.ndarray:
    """Fresh values. Raises `ValueError` for a distribution that there is not."""
    if argument.distribution is None:
        return poison(argument)
    if argument.distribution not in DISTRIBUTIONS:
        known = ", ".join(sorted(DISTRIBUTIONS))
        raise ValueError(f"there is no distribution {argument.distribution!r}; there are {known}")
    if argument.distribution == "uniform" and argument.dtype not in _FLOATING:
        return held(rng.integers(argument.low, argument.high, argument.shape), argument.dtype)
    values = DISTRIBUTIONS[argument.distribution](rng, argument.shape) * argument.scale + argument.offset
    return held(values, argument.dtype)


def poison(argument: Argument) -> np.ndarray:
    """What a result holds before the kernel runs."""
    carrier = _CARRIERS[argument.dtype]
    if argument.dtype in _FLOATING:
        return np.full(argument.shape, np.nan, carrier)
    return np.full(argument.shape, False if argument.dtype == "bool" else np.iinfo(carrier).min, carrier)


def held(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """The values that this type can hold, in the numpy type that carries it."""
    if dtype == "bfloat16":
        return rounding.bfloat16_values(rounding.bfloat16_bits(np.asarray(values, np.float64)))
    if dtype == "float16":
        return np.asarray(values).astype(np.float16).astype(np.float32)
    return np.ascontiguousarray(values, _CARRIERS[dtype])


_FLOATING = frozenset({"float32", "bfloat16", "float16", "float64"})
_CARRIERS: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": np.float32,
    "float16": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
