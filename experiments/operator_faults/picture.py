"""The picture: what became of each kind of fault, and how long a fault took. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from infra_agent.report.svg import AMBER, BLUE, GREEN, GREY, RED, Canvas, Scale

if TYPE_CHECKING:
    from experiments.operator_faults.conclusions import Told

ROW, LEFT, RIGHT, WIDTH = 22.0, 220.0, 640.0, 860.0
DEEP = 120.0


def drawn(kinds: Mapping[str, Told], seconds: Sequence[float]) -> Canvas:
    """Above, a bar a kind: killed and placed, killed and placed elsewhere, survived, none; below, the share of faults
    that were done within so many seconds.
    """
    top = 44.0
    middle = top + ROW * len(kinds) + 30
    canvas = Canvas(WIDTH, middle + DEEP + 50, "Planted faults: what became of them, and in which time")
    canvas.text(
        LEFT, 18, "killed (green), killed and placed elsewhere (amber), survived (red), no fault (grey)", size=11
    )
    most = max([told.faults for told in kinds.values()], default=1)
    x = Scale(0.0, float(max(1, most)), LEFT, RIGHT)
    for line, (name, told) in enumerate(kinds.items()):
        y = top + ROW * line
        canvas.text(LEFT - 8, y + 12, name, "end")
        counts = (told.placed, told.killed - told.placed, told.judged - told.killed, told.faults - told.judged)
        start = 0
        for colour, count in zip((GREEN, AMBER, RED, GREY), counts, strict=True):
            canvas.rect(x(start), y, x(start + count) - x(start), 15, colour, "0.85")
            start += count
        rate = "-" if not told.judged else f"{told.rate:.0%} of {told.judged}"
        canvas.text(x(told.faults) + 8, y + 12, rate, size=11)
    _times(canvas, middle, seconds)
    return canvas


def _times(canvas: Canvas, top: float, seconds: Sequence[float]) -> None:
    """The cumulative share over a logarithmic axis of seconds."""
    values = np.sort(np.asarray([value for value in seconds if value > 0]))
    if not values.size:
        return
    low, high = np.log10(max(0.05, values[0])), np.log10(max(values[-1], 10.0))
    x, y = Scale(float(low), float(high), LEFT, RIGHT), Scale(0.0, 1.0, top + DEEP, top)
    for share in (0.5, 0.95, 1.0):
        canvas.line(LEFT, y(share), RIGHT, y(share), GREY, 0.5, "4 4")
        canvas.text(LEFT - 8, y(share) + 4, f"{share:.0%}", "end", 11)
    for tick in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0):
        if low <= np.log10(tick) <= high:
            canvas.text(x(float(np.log10(tick))), top + DEEP + 18, f"{tick:g} s", "middle", 11)
    points = [(x(float(np.log10(max(0.05, v)))), y((i + 1) / values.size)) for i, v in enumerate(values)]
    canvas.path(points, BLUE)
    canvas.text(LEFT, top - 10, "share of faults done within", size=11)
