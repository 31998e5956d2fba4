"""How an error grows: a power fitted through measured points, and the fit in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Points that a fit needs.
LEAST = 3

#: Exponents below this are no growth.
FLAT = 0.2

#: With less than this between the largest and the smallest error nothing grows.
FACTOR = 1.5


@dataclass(frozen=True)
class Growth:
    """`error ~ x ** exponent` through `points` (x, error), fitted by least squares in logarithms.

    `scatter` is the standard deviation of log(error) around the fit.
    """

    noun: str
    points: tuple[tuple[float, float], ...]
    exponent: float
    scatter: float

    @property
    def factor(self) -> float:
        """The last error over the first."""
        return self.points[-1][1] / self.points[0][1]

    @property
    def grows(self) -> bool:
        """Whether it grows at all."""
        return self.exponent >= FLAT and self.factor >= FACTOR

    def words(self) -> str:
        """`grows with shards about linearly (7.6x from 2 to 16)`."""
        low, high = self.points[0][0], self.points[-1][0]
        span = f"from {low:g} to {high:g}"
        if not self.grows:
            return f"does not grow with {self.noun} ({span})"
        return f"grows with {self.noun} {_shape(self.exponent)} ({self.factor:.2g}x {span})"


def _shape(exponent: float) -> str:
    for limit, words in ((0.35, "slowly"), (0.7, "as their square root"), (1.35, "about linearly")):
        if exponent < limit:
            return words
    return f"as their power {exponent:.1f}"


def fit(noun: str, points: Sequence[tuple[float, float]]) -> Growth | None:
    """The fit through finite positive errors; None with fewer than `LEAST` of them."""
    kept = sorted((x, error) for x, error in points if x > 0 and np.isfinite(error) and error > 0)
    if len(kept) < LEAST:
        return None
    x, error = np.log(np.array(kept)).T
    slope, start = np.polyfit(x, error, 1)
    return Growth(noun, tuple(kept), float(slope), float(np.std(error - (slope * x + start))))
