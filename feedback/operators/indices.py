"""Naming a set of positions along one axis: a range, a tail, every 16th, blocks of a period, or scattered.

A wrong kernel is wrong somewhere in particular, and the place names the cause: a tail is a missing mask, every 16th
column a lane, a block a tile. The description is exact: unless it says `scattered`, `members` gives back the very
set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

#: At most this many separate ranges are spelled out; beyond it they are called scattered.
MAX_RANGES = 4

Kind = Literal["none", "all", "range", "every", "periodic", "ranges", "scattered"]


@dataclass(frozen=True)
class IndexSet:
    """A set of indices of an axis of `size`.

    `ranges` are inclusive and ascending: the one range of `range`, all of `ranges`, or, for `periodic`, those within
    one period of `step`. `every` runs from `first` to `last` by `step`. `scattered` keeps count, first and last only.
    """

    kind: Kind
    size: int
    count: int
    first: int = -1
    last: int = -1
    step: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def members(self) -> np.ndarray:
        """The indices, ascending, int64; raises `ValueError` for a scattered set, which is not kept."""
        match self.kind:
            case "none":
                return np.empty(0, np.int64)
            case "all":
                return np.arange(self.size)
            case "range" | "ranges":
                return np.concatenate([np.arange(low, high + 1) for low, high in self.ranges])
            case "every":
                return np.arange(self.first, self.last + 1, self.step)
            case "periodic":
                residue = np.zeros(self.step, bool)
                for low, high in self.ranges:
                    residue[low : high + 1] = True
                return np.flatnonzero(residue[np.arange(self.size) % self.step])
            case _:
                raise ValueError("a scattered set keeps its count only")

    def text(self, noun: str) -> str:
        """A phrase such as `columns 48-63 (tail)` or `every 16th of columns from 3`; `noun` names the axis."""
        if self.count == 1:
            noun = noun.removesuffix("s")
        match self.kind:
            case "none":
                return f"no {noun}"
            case "all":
                return f"all {noun}"
            case "range" | "ranges":
                tail = " (tail)" if self.kind == "range" and self.last == self.size - 1 and self.count > 1 else ""
                return f"{noun} {_spell(self.ranges)}{tail}"
            case "every":
                whole = self.first < self.step and self.last + self.step >= self.size
                span = f"from {self.first}" if whole else f"from {self.first} to {self.last}"
                return f"every {_ordinal(self.step)} of {noun} {span}"
            case "periodic":
                return f"{noun} {_spell(self.ranges)} of every {self.step}"
            case _:
                return f"{self.count} of {self.size} {noun} scattered in {self.first}-{self.last}"


def describe_indices(wrong: np.ndarray) -> IndexSet:
    """Describe the true entries of a one-dimensional boolean array, the simplest exact description first."""
    size = wrong.size
    at = np.flatnonzero(wrong)
    count = at.size
    if count == 0:
        return IndexSet("none", size, 0)
    first, last = int(at[0]), int(at[-1])
    if count == size:
        return IndexSet("all", size, count, first, last)
    if last - first + 1 == count:
        return IndexSet("range", size, count, first, last, ranges=((first, last),))
    steps = np.diff(at)
    if count >= 3 and np.all(steps == steps[0]):
        return IndexSet("every", size, count, first, last, step=int(steps[0]))
    period = _period(wrong)
    if period is not None:
        within = _ranges(np.flatnonzero(wrong[:period]))
        if len(within) <= MAX_RANGES:
            return IndexSet("periodic", size, count, first, last, step=period, ranges=within)
    ranges = _ranges(at)
    if len(ranges) <= MAX_RANGES:
        return IndexSet("ranges", size, count, first, last, ranges=ranges)
    return IndexSet("scattered", size, count, first, last)


def _ranges(at: np.ndarray) -> tuple[tuple[int, int], ...]:
    breaks = np.flatnonzero(np.diff(at) > 1)
    starts = [int(at[0]), *(int(at[i + 1]) for i in breaks)]
    ends = [*(int(at[i]) for i in breaks), int(at[-1])]
    return tuple(zip(starts, ends, strict=True))


def _period(wrong: np.ndarray) -> int | None:
    """The smallest period of which the axis shows at least two, or None."""
    for period in range(2, wrong.size // 2 + 1):
        if np.array_equal(wrong[period:], wrong[:-period]):
            return period
    return None


def _spell(ranges: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
