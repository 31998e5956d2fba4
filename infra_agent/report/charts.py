"""The pictures: how a run evolved, what was predicted against what was measured, bars with intervals. Pure: values
in, SVG out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infra_agent.report.svg import AMBER, BLUE, GREEN, GREY, RED, Canvas, Scale, spanning

COLOURS = {"keep": GREEN, "reject": RED, "revise": AMBER, "ask": AMBER, "open": GREY}


@dataclass(frozen=True)
class Step:
    """One tried move: the ratio to the start that it reached (measured times what was kept before), None when it was
    never timed.
    """

    label: str
    decision: str
    ratio: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bar:
    """A value with its interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: str = BLUE
    note: str = ""


def evolution(steps: Sequence[Step], references: Sequence[tuple[str, float]], metric: str) -> Canvas:
    """Best state against the start, candidate by candidate; rejected ones as hollow marks; references as dashed
    lines.
    """
    width, height, left, right, top, bottom = 860.0, 400.0, 56.0, 150.0, 24.0, 110.0
    canvas = Canvas(width, height, f"{metric} against the start, candidate by candidate")
    ratios = [s.high or s.ratio or 1.0 for s in steps] + [value for _, value in references]
    y = spanning([1.0, *ratios], height - bottom, top, floor=min([1.0, *(s.ratio or 1.0 for s in steps)]))
    x = Scale(0.0, max(1.0, float(len(steps))), left, width - right)
    _grid(canvas, y, left, width - right, "x")
    for name, value in references:
        canvas.line(left, y(value), width - right, y(value), GREY, 1.2, "5 4")
        canvas.text(width - right + 6, y(value) + 4, f"{name} {value:.2f}x", colour=GREY)
    best, line, level = 1.0, [(x(0), y(1.0))], []
    for number, step in enumerate(steps, start=1):
        if step.decision == "keep" and step.ratio is not None:
            line.append((x(number), y(best)))
            best = step.ratio
        level.append(best)
        line.append((x(number), y(best)))
    canvas.path(line, GREEN, 2.5)
    for number, step in enumerate(steps, start=1):
        colour = COLOURS.get(step.decision, GREY)
        if step.ratio is not None:
            if step.low is not None and step.high is not None:
                canvas.line(x(number), y(step.low), x(number), y(step.high), colour, 1.5)
            hint = f"{step.label}: {step.ratio:.3f}x, {step.decision}"
            canvas.dot(x(number), y(step.ratio), colour, hollow=step.decision != "keep", hint=hint)
        else:
            canvas.text(x(number), y(level[number - 1]) - 6, "×", "middle", 14, colour)
        words = "currentColor" if step.decision == "keep" else colour
        canvas.text(x(number), height - bottom + 16, _short(step.label, 22), "end", 11.0, words, slant=-35.0)
    # Below or above a reference whose name would stand in the same place.
    near = [y(best) - y(value) for _, value in references if abs(y(best) - y(value)) < 14]
    nudge = math.copysign(14 - abs(near[0]), near[0]) if near else 0.0
    canvas.text(width - right + 6, y(best) + 4 + nudge, f"best {best:.2f}x", colour=GREEN)
    return canvas


def predictions(points: Sequence[tuple[str, float, float, str]]) -> Canvas:
    """Predicted against measured ratio, `(label, predicted, measured, decision)`; on the diagonal the prediction was
    right.
    """
    size, margin = 340.0, 46.0
    canvas = Canvas(size, size, "predicted against measured")
    values = [value for _, predicted, measured, _ in points for value in (predicted, measured)]
    x = spanning([1.0, *values], margin, size - 14)
    y = Scale(x.low, x.high, size - margin, 14)
    _grid(canvas, y, margin, size - 14, "x")
    for tick in x.ticks(4):
        canvas.text(x(tick), size - margin + 16, f"{tick:g}x", "middle", 11, GREY)
    canvas.line(x(x.low), y(x.low), x(x.high), y(x.high), GREY, 1, "3 3")
    for label, predicted, measured, decision in points:
        hint = f"{label}: predicted {predicted:.2f}x, measured {measured:.2f}x"
        canvas.dot(x(predicted), y(measured), COLOURS.get(decision, GREY), hollow=decision != "keep", hint=hint)
    canvas.text((margin + size) / 2, size - 10, "predicted", "middle", 12)
    canvas.text(margin, 12, "measured", "start", 12)
    return canvas


def bars(rows: Sequence[Bar], title: str, unit: str = "x", base: float = 0.0) -> Canvas:
    """Horizontal bars from `base` with intervals and their values."""
    left, right, row, top = 230.0, 130.0, 28.0, 16.0
    height = top + row * max(1, len(rows)) + 30
    canvas = Canvas(760.0, height, title)
    shown = [value for bar in rows for value in (bar.value, bar.low, bar.high) if value is not None]
    x = spanning([base, *shown], left, canvas.width - right, floor=min([base, *shown]))
    for tick in x.ticks(6):
        canvas.line(x(tick), top - 4, x(tick), height - 26, GREY, 0.4)
        canvas.text(x(tick), height - 10, f"{tick:g}{unit}", "middle", 11, GREY)
    for number, bar in enumerate(rows):
        middle = top + row * number + row / 2
        start, end = sorted((x(base), x(bar.value)))
        canvas.rect(start, middle - 8, end - start, 16, bar.colour, "0.75")
        if bar.low is not None and bar.high is not None:
            canvas.line(x(bar.low), middle, x(bar.high), middle, "currentColor", 1.4)
            for edge in (bar.low, bar.high):
                canvas.line(x(edge), middle - 4, x(edge), middle + 4, "currentColor", 1.4)
        canvas.text(left - 8, middle + 4, _short(bar.label, 34), "end")
        reach = max(x(bar.value), x(bar.high) if bar.high is not None else 0.0)
        canvas.text(reach + 8, middle + 4, f"{bar.value:.3g}{unit}{' ' + bar.note if bar.note else ''}")
    return canvas


def _grid(canvas: Canvas, y: Scale, left: float, right: float, unit: str) -> None:
    for tick in y.ticks():
        canvas.line(left, y(tick), right, y(tick), GREY, 0.4)
        canvas.text(left - 8, y(tick) + 4, f"{tick:g}{unit}", "end", 11, GREY)


def _short(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 1] + "…"
