"""One case of a kernel under the modes of rounding: how far off, and if too far, whether rounding or logic is to blame.

Pure, but for the calls of `run`. A deviation that vanishes when all products are computed in float64 is a matter of
precision; which products it takes is found by leaving one at a time as it is and computing the others in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedback.kernels.rounding import MODES, Mode
from feedback.operators.patterns import compare
from feedback.target import Arrays, Tolerance

#: A product: file, line, type of operands, precision, how often it ran; as the worker names it.
Site = tuple[str, int, str, str, int]

#: At most this many products are tried one by one.
MOST_SITES = 16


@dataclass(frozen=True)
class Answer:
    """What one interpreted call gave: results, and what was seen of it."""

    outputs: Arrays
    seen: Mapping[str, Any]

    @property
    def sites(self) -> tuple[Site, ...]:
        """The products, in the order in which they first ran."""
        return tuple((str(f), int(line), str(t), str(p), int(n)) for f, line, t, p, n in self.seen.get("dots", ()))


#: Interprets the case under a mode, products at the places (file, line) in float64.
Run = Callable[[Mode, Sequence[tuple[str, int]]], Answer]


@dataclass(frozen=True)
class Outcome:
    """How far one call was off. `ratio` is the largest error over what is allowed (infinite when not a number);
    `relative` the largest |error| over the largest |expected| of that output.
    """

    mode: Mode
    ratio: float
    relative: float
    output: str
    pattern: str = ""

    @property
    def wrong(self) -> bool:
        """Whether it is outside what is allowed."""
        return not self.ratio <= 1.0


@dataclass(frozen=True)
class Trial:
    """One case: outcomes by mode; for a wrong one what `exact` products give, and the `sites` that alone spoil it."""

    case: str
    outcomes: tuple[Outcome, ...]
    exact: Outcome | None = None
    sites: tuple[Site, ...] = ()
    seen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def worst(self) -> Outcome:
        """The outcome furthest off."""
        return max(self.outcomes, key=lambda outcome: outcome.ratio)

    @property
    def by_precision(self) -> bool:
        """Whether it is wrong, and right with exact products."""
        return self.worst.wrong and self.exact is not None and not self.exact.wrong


def tried(case: str, run: Run, expected: Arrays, tolerances: Mapping[str, Tolerance]) -> Trial:
    """Run a case under both modes, and look for the cause when one is wrong. Raises what `run` raises."""
    answers = {mode: run(mode, ()) for mode in MODES}
    outcomes = tuple(measured(mode, answer.outputs, expected, tolerances) for mode, answer in answers.items())
    last = answers[MODES[-1]]
    bad = max(outcomes, key=lambda outcome: outcome.ratio)
    if not bad.wrong:
        return Trial(case, outcomes, seen=last.seen)
    exact = measured("exact", run("exact", ()).outputs, expected, tolerances)
    if exact.wrong:
        return Trial(case, outcomes, exact, seen=last.seen)
    products = _rough(last.sites)
    spoiling = []
    for site in products[:MOST_SITES]:
        others = [other[:2] for other in products if other[:2] != site[:2]]
        if measured(bad.mode, run(bad.mode, others).outputs, expected, tolerances).wrong:
            spoiling.append(site)
    return Trial(case, outcomes, exact, tuple(spoiling), last.seen)


def _rough(sites: Sequence[Site]) -> list[Site]:
    """Products that are not exact float32, one for each place."""
    rough: dict[tuple[str, int], Site] = {}
    for site in sites:
        if site[2] != "fp32" or site[3] != "ieee":
            rough.setdefault(site[:2], site)
    return list(rough.values())


def measured(mode: Mode, outputs: Arrays, expected: Arrays, tolerances: Mapping[str, Tolerance]) -> Outcome:
    """The output that is furthest off."""
    return max(
        (_measured(mode, name, outputs.get(name), want, tolerances[name]) for name, want in expected.items()),
        key=lambda outcome: outcome.ratio,
    )


def _measured(mode: Mode, name: str, got: np.ndarray | None, want: np.ndarray, tolerance: Tolerance) -> Outcome:
    if got is None:
        return Outcome(mode, np.inf, np.inf, name, f"no {name} came back")
    if got.shape != want.shape:
        return Outcome(mode, np.inf, np.inf, name, f"has shape {list(got.shape)}, expected {list(want.shape)}")
    if not want.size:
        return Outcome(mode, 0.0, 0.0, name)
    have, exact = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.where((have == exact) | (np.isnan(have) & np.isnan(exact)), 0.0, np.abs(have - exact))
    off = np.nan_to_num(off, nan=np.inf)
    finite = np.abs(exact[np.isfinite(exact)])
    largest = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    # An integer, or a number with no allowance, is right or wrong.
    allowed = np.maximum(tolerance.atol + tolerance.rtol * np.abs(np.nan_to_num(exact, nan=0.0)), 1e-300)
    ratio = float((off / (allowed if want.dtype.kind == "f" else 1e-300)).max())
    pattern = compare(got, want, tolerance) if not ratio <= 1.0 else None
    return Outcome(mode, ratio, float(off.max()) / largest, name, pattern.text() if pattern else "")
