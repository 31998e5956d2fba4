"""What an error looks like: where it is, how large, of which rank. Pure numpy.

The text goes to whoever has to mend the code, so it says what points at a cause: "columns 0-25 wrong, rank 3 of 64, 2
NaN".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedback.operators.indices import IndexSet, describe_indices
from feedback.target import Tolerance

#: The rank is computed on at most this many rows and columns, spread evenly over the wrong ones.
MAX_RANK_SIDE = 256


@dataclass(frozen=True)
class ErrorPattern:
    """How an array deviates from the expected one.

    `wrong` of `total` elements are outside the tolerance; `worst` is the largest |error| / allowed error (infinite
    when not finite); `axes` describes, per axis, the positions that hold any wrong element, `density` the share of
    the product of those positions that is wrong (1.0: a solid block). `rank` is the numerical rank of the error seen
    as a matrix [all but the last axis, last axis], None where there is no matrix or nothing finite above rounding.
    """

    shape: tuple[int, ...]
    wrong: int
    total: int
    nan: int
    inf: int
    max_abs: float
    max_rel: float
    worst: float
    nouns: tuple[str, ...]
    axes: tuple[IndexSet, ...]
    density: float
    rank: int | None
    full_rank: int

    def where(self) -> str:
        """The place alone: `columns 0-25`, `all elements`, `heads 2, columns 48-63 (tail)`."""
        partial = [a.text(n) for a, n in zip(self.axes, self.nouns, strict=True) if a.kind != "all"]
        place = ", ".join(partial) if partial else "all elements"
        return place if self.density > 0.999 else f"{place} ({self.density:.0%} of them)"

    def text(self) -> str:
        """The whole pattern as one phrase."""
        parts = [f"{self.where()} wrong"]
        if self.rank is not None:
            parts.append(f"rank {self.rank} of {self.full_rank}")
        if self.nan:
            parts.append(f"{self.nan} NaN")
        if self.inf:
            parts.append(f"{self.inf} Inf")
        if np.isfinite(self.max_abs) and self.max_abs > 0:
            parts.append(f"max error {self.max_abs:.3g} absolute, {self.max_rel:.3g} relative")
        return ", ".join(parts)


def compare(
    got: np.ndarray, expected: np.ndarray, tolerance: Tolerance, nouns: Sequence[str] | None = None
) -> ErrorPattern | None:
    """The pattern of the deviation of `got` from `expected` (same shape), or None within tolerance.

    Floating results may differ by atol + rtol * |expected|; integers and booleans must be equal. NaN matches NaN and
    an infinity the same infinity: what the reference does on such inputs is right by definition. Raises `ValueError`
    when the shapes differ.
    """
    if got.shape != expected.shape:
        raise ValueError(f"shapes differ: got {got.shape}, expected {expected.shape}")
    exact = expected.dtype.kind in "biu"
    want = expected.astype(np.float64)
    have = got.astype(np.float64)
    allowed = np.zeros_like(want) if exact else tolerance.atol + tolerance.rtol * np.abs(want)
    with np.errstate(invalid="ignore"):
        error = have - want
        same = (have == want) | (np.isnan(have) & np.isnan(want))
        finite = np.isfinite(have) & np.isfinite(want)
        good = same | (finite & (np.abs(error) <= allowed))
    wrong = ~good
    if not wrong.any():
        return None
    error = np.where(finite, error, 0.0)
    size = np.abs(error[wrong])
    unexpected = wrong & ~finite
    scale = np.maximum(np.abs(np.where(np.isfinite(want), want, 0.0))[wrong], np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # where nothing is allowed any error is infinitely more
        worst = (
            np.inf
            if unexpected.any() or exact
            else float(np.max(size / np.maximum(allowed[wrong], np.finfo(np.float64).tiny)))
        )
    solid = wrong.reshape(1) if wrong.ndim == 0 else wrong
    axes = tuple(describe_indices(solid.any(axis=_others(solid.ndim, axis))) for axis in range(solid.ndim))
    matrix = np.atleast_2d(error.reshape(-1, error.shape[-1]) if error.ndim else error)
    right = error[good & finite]
    noise = _noise(right, allowed, have, exact)
    return ErrorPattern(
        shape=tuple(got.shape),
        wrong=int(wrong.sum()),
        total=int(wrong.size),
        nan=int((unexpected & np.isnan(have)).sum()),
        inf=int((unexpected & np.isinf(have)).sum()),
        max_abs=float(size.max()),
        max_rel=float(np.max(size / scale)) if np.any(scale > np.finfo(np.float64).tiny) else float("inf"),
        worst=worst,
        nouns=_nouns(solid.ndim, nouns),
        axes=axes,
        density=float(wrong.sum() / np.prod([max(1, a.count) for a in axes])),
        rank=error_rank(matrix, noise) if min(matrix.shape) > 1 else None,
        full_rank=min(matrix.shape),
    )


def error_rank(error: np.ndarray, noise: float) -> int | None:
    """Numerical rank of a finite error matrix whose entries carry rounding of standard deviation `noise`.

    A random matrix of that deviation has no singular value above noise * (sqrt(m) + sqrt(n)) (Marchenko-Pastur edge),
    so those above twice that are structure. None when nothing is. On more than `MAX_RANK_SIDE` rows or columns it is
    the rank of an even selection.
    """
    rows, columns = np.flatnonzero(error.any(axis=1)), np.flatnonzero(error.any(axis=0))
    if rows.size == 0:
        return None
    part = error[np.ix_(_spread(rows), _spread(columns))]
    values = np.linalg.svd(part, compute_uv=False)
    edge = 2.0 * noise * (np.sqrt(part.shape[0]) + np.sqrt(part.shape[1]))
    edge = max(edge, float(values[0]) * max(part.shape) * np.finfo(np.float64).eps)
    rank = int((values > edge).sum())
    return rank or None


def _noise(right: np.ndarray, allowed: np.ndarray, got: np.ndarray, exact: bool) -> float:
    """Standard deviation of honest rounding: the spread of the right elements, and at least the spacing of `got`
    itself."""
    if exact:
        return 0.0
    finite = got[np.isfinite(got)].astype(np.float32)
    half = finite.size > 0 and not np.any(finite.view(np.uint32) & 0xFFFF)  # bfloat16 values, carried as float32
    spacing = 2.0**-8 if half else 2.0**-23
    rounding = float(np.sqrt(np.mean(finite.astype(np.float64) ** 2)) * spacing) if finite.size else 0.0
    if right.size < 16:
        return rounding
    return max(rounding, float(min(np.median(np.abs(right)) / 0.6745, np.median(allowed))))


def _spread(indices: np.ndarray) -> np.ndarray:
    if indices.size <= MAX_RANK_SIDE:
        return indices
    return indices[np.linspace(0, indices.size - 1, MAX_RANK_SIDE).astype(np.int64)]


def _others(ndim: int, axis: int) -> tuple[int, ...]:
    return tuple(i for i in range(ndim) if i != axis)


def _nouns(ndim: int, given: Sequence[str] | None) -> tuple[str, ...]:
    """Axis names; unnamed ones are rows and columns for the last two, `axis i` before them, `elements` for a vector."""
    default = ["elements"] if ndim == 1 else [*(f"axis {i}" for i in range(ndim - 2)), "rows", "columns"]
    if given is None or len(given) != ndim:
        return tuple(default)
    return tuple(name or fallback for name, fallback in zip(given, default, strict=True))
