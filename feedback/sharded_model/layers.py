"""The first layer whose output leaves the unsharded path, by bisection. Pure: what is asked is a parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: `deviation(layer)` is the error of what enters a layer, over its size; the number of layers asks for what the last
#: one leaves.
Deviation = Callable[[int], float]


@dataclass(frozen=True)
class Divergence:
    """`layer` is the first whose output deviates while what enters it does not: -1 for what comes before the first
    layer, the number of layers for what comes after the last. `before` and `after` are the two deviations, `asked`
    what was measured on the way.
    """

    layer: int
    layers: int
    before: float
    after: float
    asked: tuple[tuple[int, float], ...]

    def words(self) -> str:
        """`layer 3 of 8 (0-7) is the first to deviate: its input is off by 2e-07, its output by 0.013`."""
        if self.layer < 0:
            return f"what enters the first layer is off by {self.after:.2g}: the embedding, or the cut of the tokens"
        if self.layer == self.layers:
            return f"all {self.layers} layers agree ({self.before:.2g}): the last norm, or the logits themselves"
        return (
            f"layer {self.layer} of {self.layers} is the first to deviate: its input is off by {self.before:.2g}, "
            f"its output by {self.after:.2g}"
        )


def first_diverging(layers: int, deviation: Deviation, limit: float) -> Divergence:
    """Bisect, taking it that what has left the path does not come back: log2(layers) measurements."""
    asked: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in asked:
            asked[place] = deviation(place)
        return asked[place]

    def told(layer: int, before: float, after: float) -> Divergence:
        return Divergence(layer, layers, before, after, tuple(sorted(asked.items())))

    if not at(0) <= limit:
        return told(-1, 0.0, at(0))
    if at(layers) <= limit:
        return told(layers, at(layers), float("nan"))
    good, bad = 0, layers
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if at(middle) <= limit else (good, middle)
    return told(good, at(good), at(bad))
