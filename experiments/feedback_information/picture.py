"""The picture: what each probe tells, and how the ways of choosing fare. Pure: values in, SVG out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedback.information.scores import Score
from infra_agent.report.svg import AMBER, BLUE, GREEN, GREY, RED, Canvas, Scale

ROW, LEFT, RIGHT, WIDTH = 22.0, 190.0, 620.0, 860.0

#: At most so many probes are drawn, the best ones.
SHOWN = 30


@dataclass(frozen=True)
class Told:
    """A probe, its bits from the first belief, its seconds. `coarse`: it can only say pass or fail."""

    probe: str
    bits: float
    seconds: float
    coarse: bool = False


def drawn(told: Sequence[Told], scores: Sequence[Score], unknown: float) -> Canvas:
    """Above, bits of each probe out of the `unknown` ones, best per second first; below, what each way of choosing
    found.
    """
    shown = list(told)[:SHOWN]
    middle = 40 + ROW * len(shown)
    canvas = Canvas(WIDTH, middle + 90 + ROW * len(scores), "Information of one answer, and what choosing by it finds")
    x = Scale(0.0, max(1.0, unknown), LEFT, RIGHT)
    for tick in x.ticks(6):
        canvas.line(x(tick), 26, x(tick), middle - 8, GREY, 0.4)
        canvas.text(x(tick), middle + 6, f"{tick:g} bits", "middle", 11, GREY)
    canvas.line(x(1.0), 20, x(1.0), middle - 8, GREY, 1.2, "5 4")
    canvas.text(x(1.0) + 4, 18, "pass/fail: at most 1", size=11, colour=GREY)
    for number, each in enumerate(shown):
        y = 28 + ROW * number
        canvas.text(LEFT - 8, y + 13, each.probe, "end")
        canvas.rect(x(0.0), y, x(each.bits) - x(0.0), 16, AMBER if each.coarse else BLUE, "0.8")
        canvas.text(x(each.bits) + 6, y + 13, f"{each.bits:.2f} bits in {each.seconds:.3g} s", size=11)
    share = Scale(0.0, 1.0, LEFT, RIGHT)
    top = middle + 44
    canvas.text(LEFT, top - 8, "found (green), sure of the wrong cause (red), not sure (grey)", size=11, colour=GREY)
    for number, score in enumerate(scores):
        y = top + ROW * number
        canvas.text(LEFT - 8, y + 13, score.name, "end")
        edges = [0.0, score.found, score.found + score.wrong, 1.0]
        for colour, begin, end in zip((GREEN, RED, GREY), edges[:-1], edges[1:], strict=True):
            canvas.rect(share(begin), y, share(end) - share(begin), 16, colour, "0.3" if colour == GREY else "0.8")
        words = f"{score.found:.0%} in {score.calls:.1f} calls, {score.seconds:.3g} s"
        canvas.text(RIGHT + 8, y + 13, words, size=11)
    return canvas
