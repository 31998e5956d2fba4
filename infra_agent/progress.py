"""What a person sees while a run goes: plain lines anywhere, and on a terminal a live line under them.

`Progress` is told what happens; `Lines` writes one block a step, `Live` adds a status line at the bottom (what is
being done, for how long, how much of the budget is spent, best so far). Text of a target is data: it is never read as
markup.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Protocol, Self

from feedback.verdict import Status, Verdict
from infra_agent.hypothesis import Hypothesis
from infra_agent.proposers.causes import Facts
from infra_agent.records import AblationRecord, BaselineRecord, EndRecord, FinalRecord, MoveRecord, Outcome, Ratio

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.text import Text

MARKS = {
    Status.CONFIRMED: "✓",
    Status.REFUTED: "✗",
    Status.INCONCLUSIVE: "~",
    Status.INVALID: "!",
    Status.UNSUPPORTED: "-",
}


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress(Protocol):
    """Told what happens, in order. Replayed steps are told again, so that a resumed run shows its whole story."""

    def doing(self, what: str) -> None:
        """Something that takes time begins."""
        ...

    def measured(self, start: BaselineRecord, metric: str) -> None: ...

    def observed(self, facts: Facts, diagnosis: Sequence[tuple[str, float]], openings: int) -> None: ...

    def proposed(self, name: str, hypothesis: Hypothesis) -> None: ...

    def answered(self, name: str, verdict: Verdict) -> None: ...

    def decided(self, move: MoveRecord, best: float) -> None: ...

    def closing(self, reason: str) -> None: ...

    def compared(self, label: str, traffic: str, verdict: Verdict) -> None: ...

    def skipped(self, what: str) -> None: ...

    def final(self, record: FinalRecord) -> None: ...

    def ablated(self, record: AblationRecord) -> None: ...

    def ended(self, end: EndRecord) -> None: ...


class Lines:
    """Plain lines on a stream. Colour only where the stream is a terminal; the words say everything without it."""

    def __init__(self, stream: IO[str] | None = None, colour: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._colour = colour
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    # -- the story -----------------------------------------------------------------------------------------------------

    def doing(self, what: str) -> None:
        """Lines say what was done, not what is being done."""

    def measured(self, start: BaselineRecord, metric: str) -> None:
        value = start.metrics.get(metric)
        floor = start.metrics.get("noise_floor")
        noise = "" if floor is None else f"; this machine alone makes differences of {100 * floor:.1f} %"
        self._line(f"start     {metric} {_figure(value)}{noise}", "bold")

    def observed(self, facts: Facts, diagnosis: Sequence[tuple[str, float]], openings: int) -> None:
        likely = ", ".join(f"{cause.replace('_', ' ')} {100 * p:.0f} %" for cause, p in diagnosis[:3])
        applies = "1 move applies" if openings == 1 else f"{openings} moves apply"
        self._line(f"diagnosis {likely}; {applies} here")

    def proposed(self, name: str, hypothesis: Hypothesis) -> None:
        p = hypothesis.predicted
        self._line("")
        self._line(f"{name}  {hypothesis.move.title}", "bold")
        self._line(f"  because   {hypothesis.observation}")
        self._line(
            f"  predicts  {hypothesis.metric} {p.mean:.2f}x (between {p.low:.2f} and {p.high:.2f});"
            f" {hypothesis.refuted_by} would refute it"
        )

    def answered(self, name: str, verdict: Verdict) -> None:
        style = {Status.CONFIRMED: "green", Status.REFUTED: "red"}.get(verdict.status, "yellow")
        self._line(f"  {MARKS[verdict.status]} {verdict_words(verdict)}  ({verdict.cost_seconds:.1f} s)", style)

    def decided(self, move: MoveRecord, best: float) -> None:
        style = {Outcome.KEEP: "bold green", Outcome.REJECT: "red"}.get(move.decision, "yellow")
        self._line(f"  {move.decision.value:<9} {move.reason}", style)
        self._line(f"  best so far {best:.2f}x the start")

    def closing(self, reason: str) -> None:
        self._line("")
        self._line(f"search ends: {reason}", "bold")

    def compared(self, label: str, traffic: str, verdict: Verdict) -> None:
        """Comparisons are told with the record they end up in; only one that gave no effect is worth a line of its
        own.
        """
        if verdict.effect is None:
            self._line(f"  {MARKS[verdict.status]} {label} on {traffic} traffic: {verdict.line()}", "yellow")

    def skipped(self, what: str) -> None:
        self._line(f"  not measured, for lack of time: {what}", "yellow")

    def final(self, record: FinalRecord) -> None:
        self._line("")
        self._line(
            f"result    {record.metric} {_figure(record.start)} -> {_figure(record.best)}, {ratio_words(record.ratio)}",
            "bold",
        )
        for other in record.comparisons:
            where = "held-out workload" if other.held_out else other.workload
            self._line(f"  against {other.against} ({where}): {ratio_words(other.ratio)}")

    def ablated(self, record: AblationRecord) -> None:
        if record.gain is None:
            self._line(f"  {record.label}: {record.note or 'not measured'}")
            return
        gain = ratio_words(record.gain)
        self._line(f"  {record.label} is worth {gain}{' (' + record.note + ')' if record.note else ''}")

    def ended(self, end: EndRecord) -> None:
        style = {"improved": "bold green", "repaired": "bold green", "unrepaired": "bold red"}.get(end.status, "bold")
        self._line(
            f"end       {end.status.value.replace('_', ' ')} after {end.cost.wall_seconds:.0f} s and"
            f" {end.cost.candidates} candidates: {end.reason}",
            style,
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def _line(self, text: str, style: str = "") -> None:
        codes = {"bold": "1", "green": "32", "red": "31", "yellow": "33"}
        if self._colour and style:
            text = f"\033[{';'.join(codes[word] for word in style.split())}m{text}\033[0m"
        # Who reads along may leave (`| head`); the run goes on.
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text + "\n")
            self._stream.flush()


class Live(Lines):
    """Lines, with a status line below them that moves. Use as a context manager."""

    def __init__(self, budget_seconds: float | None) -> None:
        super().__init__(sys.stdout, colour=True)
        self._budget = budget_seconds
        self._what, self._since, self._best = "starting", time.monotonic(), 1.0
        self._live: RichLive | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(file=sys.stdout, highlight=False)
        self._live = RichLive(get_renderable=self._status, console=self._console, refresh_per_second=4, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def doing(self, what: str) -> None:
        self._what, self._since = what, time.monotonic()

    def decided(self, move: MoveRecord, best: float) -> None:
        self._best = best
        super().decided(move, best)

    def _status(self) -> Text:
        from rich.text import Text

        now = time.monotonic()
        spent = now - self._began
        budget = "" if self._budget is None else f" of {self._budget:.0f}"
        frame = FRAMES[int(8 * now) % len(FRAMES)]
        told = f"{frame} best {self._best:.2f}x   {spent:.0f}{budget} s   {self._what} ({now - self._since:.0f} s)"
        return Text(told, style="dim", no_wrap=True, overflow="ellipsis")

    def _line(self, text: str, style: str = "") -> None:
        if self._live is None:
            super()._line(text, style)
            return
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)


def progress(budget_seconds: float | None) -> Lines:
    """`Live` on a terminal, plain lines elsewhere."""
    return Live(budget_seconds) if sys.stdout.isatty() else Lines()


def verdict_words(verdict: Verdict) -> str:
    """A verdict for somebody who watches: what, how much, where. What it cannot see stands in the report."""
    told = f"{verdict.layer:<10} {verdict.status.value}: {verdict.observed}"
    if verdict.effect is not None and verdict.interval is not None:
        told += f", {verdict.effect:.3f}x [{verdict.interval[0]:.3f}, {verdict.interval[1]:.3f}]"
    if verdict.at and verdict.status is Status.REFUTED:
        told += f" (at {'; '.join(place.label() for place in verdict.at[:2])})"
    return told


def ratio_words(ratio: Ratio) -> str:
    """`1.234x [1.200, 1.270]`."""
    return f"{ratio.point:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"
