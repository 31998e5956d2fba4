"""What a local speed-up can do for the whole: Amdahl's law under uncertainty."""

from __future__ import annotations

import math

#: Gauss-Hermite nodes and weights (probabilists', 7 points), weights normalised to one: exact for polynomials to
#: degree 13.
_NODES = (-3.7504397177257425, -2.3667594107345415, -1.1544053947399682, 0.0)
_WEIGHTS = (0.0005482688559722178, 0.0307571239675865, 0.2401231786050127, 0.45714285714285713)
_QUADRATURE = tuple(
    [(node, weight) for node, weight in zip(_NODES, _WEIGHTS, strict=True)]
    + [(-node, weight) for node, weight in zip(_NODES[:3], _WEIGHTS[:3], strict=True)]
)


def log_gain(share: float, log_speedup: float) -> float:
    """Log of (whole time before / after) when `share` of it runs `exp(log_speedup)` times faster.

    Below -log(1 - share).
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share lies in [0, 1], this one is {share}")
    return -math.log(1.0 - share + share * math.exp(-log_speedup))


def bound(share: float) -> float:
    """The largest log gain that any speed-up of `share` can give; infinite for a share of one."""
    return -math.log1p(-share) if share < 1.0 else math.inf


def predicted_gain(share: float, mean: float, sd: float) -> tuple[float, float]:
    """Mean and sd of the log gain of the whole when the log speed-up of `share` is Normal(mean, sd)."""
    gains = [(log_gain(share, mean + sd * node), weight) for node, weight in _QUADRATURE]
    centre = sum(gain * weight for gain, weight in gains)
    variance = sum((gain - centre) ** 2 * weight for gain, weight in gains)
    return centre, math.sqrt(variance)
