"""What an interpretation saw: launches, products with their places, operations worth a word (worker side)."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .rounding import Mode

#: What a run under the interpreter cannot tell about hardware; part of every verdict.
NOT_MODELLED = (
    "order and width of a tensor core's own sums",
    "approximate exp2, division, square root and reciprocal instructions, and flushing of subnormal numbers",
    "contraction of products and sums into fused ones",
    "the order of reductions and of atomic additions",
    "races, barriers and memory order between threads",
    "32-bit overflow of index arithmetic",
)

Place = tuple[str, int]


class Site(NamedTuple):
    """A product in a kernel: file, line, type of its operands, and precision (empty where the type has none)."""

    file: str
    line: int
    dtype: str
    precision: str

    @property
    def place(self) -> Place:
        """File and line."""
        return self.file, self.line


@dataclass(frozen=True)
class Launch:
    """One launch: enough to compile the same specialisation for a GPU. Tensors are kept, their values may change.

    `kernel` is a `triton.runtime.jit.JITFunction`; `kwargs` holds the options too (`num_warps`, ...).
    """

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any


@dataclass
class Interpretation:
    """Launches in order, how often each product ran, names of operations that matter for `gaps`, programs in all."""

    mode: Mode
    launches: list[Launch] = field(default_factory=list)
    dots: Counter[Site] = field(default_factory=Counter)
    used: set[str] = field(default_factory=set)
    programs: int = 0


def kernel_place(aside: tuple[str, ...]) -> Place:
    """File and line of the innermost frame outside this folder and those whose paths begin as in `aside`."""
    own = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((own, *aside)):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0
