"""Which input conditions are wrong, and along which axis the error grows: statements over all cases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

#: Block and vector widths worth naming as a divisor.
DIVISORS = (2, 4, 8, 16, 32, 64, 128)

Outcome = tuple[Mapping[str, int], bool]


def failing_condition(outcomes: Sequence[Outcome]) -> str | None:
    """The condition on one axis that separates failing cases from passing ones exactly, or None.

    `outcomes` are (axis sizes, failed). Divisibility is tried before thresholds, since a small set of odd sizes is
    separated by both and a missing mask is the commoner cause. Needs two cases of each outcome: less separates by
    chance.
    """
    failed = [dims for dims, bad in outcomes if bad]
    passed = [dims for dims, bad in outcomes if not bad]
    if len(failed) < 2 or len(passed) < 2:
        return None
    axes = [a for a in failed[0] if all(a in dims for dims, _ in outcomes)]
    for axis in axes:
        bad, good = {dims[axis] for dims in failed}, {dims[axis] for dims in passed}
        for divisor in reversed(DIVISORS):
            aside = {1} & (good - bad)
            if all(v % divisor for v in bad) and good - aside and not any(v % divisor for v in good - aside):
                apart = f" ({axis} = 1 aside)" if aside else ""
                return f"only where {axis} is not a multiple of {divisor}{apart}"
    for axis in axes:
        bad, good = {dims[axis] for dims in failed}, {dims[axis] for dims in passed}
        if min(bad) > max(good):
            return f"only where {axis} > {max(good)} (first seen at {min(bad)})"
        if max(bad) < min(good):
            return f"only where {axis} < {min(good)} (last seen at {max(bad)})"
        if len(bad) == 1 and not bad & good:
            return f"only where {axis} = {min(bad)}"
    return None


def growth(errors: Sequence[tuple[Mapping[str, int], float]]) -> str | None:
    """The axis along which the error grows, or None: `grows with context, 40x from 16 to 1024`.

    `errors` are (axis sizes, largest absolute error). An axis qualifies with at least three sizes whose worst errors
    never fall and at least double overall; the one with the steepest slope in log-log is named, and those that grew
    together with it are named as not separated.
    """
    finite = [(dims, e) for dims, e in errors if np.isfinite(e)]
    if len(finite) < 3:
        return None
    slopes: dict[str, tuple[float, str]] = {}
    for axis in finite[0][0]:
        worst: dict[int, float] = {}
        for dims, error in finite:
            if axis in dims:
                worst[dims[axis]] = max(worst.get(dims[axis], 0.0), error)
        sizes = sorted(worst)
        values = [worst[size] for size in sizes]
        rising = all(b >= a for a, b in pairwise(values))
        if len(sizes) < 3 or not rising or values[-1] <= 2.0 * values[0]:
            continue
        start = max(values[0], np.finfo(np.float32).tiny)
        factor = values[-1] / start
        slope = float(np.log(factor) / np.log(sizes[-1] / max(1, sizes[0]) + 1e-12))
        size_text = f"{factor:.2g}x" if values[0] > 0 else f"from none to {values[-1]:.2g}"
        slopes[axis] = (slope, f"{size_text} from {sizes[0]} to {sizes[-1]}")
    if not slopes:
        return None
    best = max(slopes, key=lambda axis: slopes[axis][0])
    others = [axis for axis in slopes if axis != best]
    shared = f" (not separated from {', '.join(others)})" if others else ""
    return f"grows with {best}, {slopes[best][1]}{shared}"
