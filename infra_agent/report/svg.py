"""SVG by hand: a canvas that escapes what it is given, and scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

#: Colours that hold on white and on black; charts take text and lines from the page (`currentColor`).
BLUE, GREEN, RED, AMBER, GREY = "#3b82c4", "#2f9e63", "#d1495b", "#c98a1b", "#8a8f98"


@dataclass
class Canvas:
    """Elements in drawing order; coordinates in pixels, y downwards."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, tag: str, body: str | None = None, **attributes: object) -> None:
        """One element. Numbers are rounded to a tenth; `_` in a name stands for `-`; everything is escaped."""
        self.parts.append(element(tag, body, **attributes))

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY, width: float = 1.0, dash: str = "none"
    ) -> None:
        """A straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width, stroke_dasharray=dash)

    def path(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2.0) -> None:
        """An open polygon line."""
        steps = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
        self.add("path", d=steps, fill="none", stroke=colour, stroke_width=width)

    def rect(self, x: float, y: float, width: float, height: float, colour: str, opacity: str = "1") -> None:
        """A filled rectangle; negative sizes draw nothing."""
        self.add("rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), fill=colour, fill_opacity=opacity)

    def dot(self, x: float, y: float, colour: str, radius: float = 4.0, hollow: bool = False, hint: str = "") -> None:
        """A circle, with a tooltip."""
        fill = "none" if hollow else colour
        title = element("title", escape(hint))
        self.add("circle", title, cx=x, cy=y, r=radius, fill=fill, stroke=colour, stroke_width=1.5)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        size: float = 12.0,
        colour: str = "currentColor",
        slant: float = 0.0,
    ) -> None:
        """One line of text; `anchor` is start, middle or end, `slant` in degrees."""
        # SVG's transform attribute knows no "none": an upright text has no such attribute.
        turned = {"transform": f"rotate({slant:.0f} {x:.1f} {y:.1f})"} if slant else {}
        self.add("text", escape(words), x=x, y=y, font_size=size, text_anchor=anchor, fill=colour, **turned)

    def render(self, standalone: bool = False) -> str:
        """The picture; `standalone` for a file of its own, on a white ground."""
        ground = element("rect", width=self.width, height=self.height, fill="white") if standalone else ""
        body = element("title", escape(self.title)) + ground + "".join(self.parts)
        name = {"xmlns": "http://www.w3.org/2000/svg"} if standalone else {}
        return element(
            "svg",
            body,
            **name,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            width=self.width,
            height=self.height,
            role="img",
            font_family="system-ui, sans-serif",
            color="#1c2128" if standalone else "inherit",
        )


def element(tag: str, body: str | None = None, **attributes: object) -> str:
    """An element; `body` is markup (already escaped), attribute values are escaped here."""
    told = "".join(f' {name.replace("_", "-")}="{escape(_plain(value))}"' for name, value in attributes.items())
    return f"<{tag}{told}/>" if body is None else f"<{tag}{told}>{body}</{tag}>"


def _plain(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Scale:
    """Values `low..high` onto pixels `start..end` (which may run backwards)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within the range, roughly `about` of them."""
        step = round_step((self.high - self.low) / max(1, about))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def spanning(
    values: Sequence[float], start: float, end: float, floor: float | None = None, room: float = 0.06
) -> Scale:
    """A scale that shows all values with some room; `floor` is a value that it shows too."""
    asked = [*values, *([] if floor is None else [floor])]
    known = [value for value in asked if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    gap = (high - low) * room or max(abs(high), 1.0) * 0.1
    return Scale(low if floor == low else low - gap, high + gap, start, end)


def round_step(raw: float) -> float:
    """1, 2 or 5 times a power of ten, at least `raw`."""
    if not raw > 0 or not math.isfinite(raw):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
