"""The library as a person reads it: a line a skeleton, or one skeleton with all that is known for and against it."""

from __future__ import annotations

import math

from skeletons.library import Library
from skeletons.skeleton import Skeleton


def told(library: Library) -> str:
    """A table of all skeletons: kind, evidence for and against, the speed-up believed on what it acts on."""
    head = f"{'SKELETON':36} {'KIND':7} {'FOR':>4} {'AGAINST':>8} {'BELIEVED':>9}  WHAT IT DOES"
    return "\n".join([head, *(_line(one, library) for one in library)])


def _line(one: Skeleton, library: Library) -> str:
    supporting = sum(item.supports for item in one.evidence)
    against = len(one.evidence) - supporting
    gone = one.expired(library.today) or one.scope.outside(library.versions, library.platform)
    note = f" (not offered: {gone})" if gone else ""
    return f"{one.name:36} {one.kind:7} {supporting:4} {against:8} {_believed(one):>9}  {one.title}{note}"


def _believed(one: Skeleton) -> str:
    speedup = math.exp(one.belief()[0])
    return f"{speedup:.2f}x" + ("/2x" if one.speedup.per == "doubling" else "")


def whole(library: Library, name: str) -> str:
    """One skeleton: what it cures, its conditions, what it costs, when it expires, and its evidence line by line."""
    one = library.get(name)
    mean, sd = one.belief()
    low, high = math.exp(mean - 1.96 * sd), math.exp(mean + 1.96 * sd)
    per = " for each doubling" if one.speedup.per == "doubling" else ""
    lines = [
        f"{one.name} (version {one.version}, {one.kind}): {one.title}",
        f"symptom      {one.symptom}",
        f"cause        {one.cause}",
        f"believed     {math.exp(mean):.2f}x [{low:.2f}, {high:.2f}] on its share{per}; prior: {one.speedup.source}",
        f"folder       {library.folders[name]}",
    ]
    lines += [f"condition    {item.reason}" for item in one.conditions]
    lines += [f"hole         {item.name} (filled at {item.filled}): {item.doc}" for item in one.holes]
    lines += [f"constraint   {item}" for item in one.constraints]
    if one.expires.after:
        lines.append(f"expires      after {one.expires.after}, or refuted {one.expires.refuted_in_a_row} times running")
    for item in one.evidence:
        lines.append(f"evidence     {item.line()}{', ' if item.note else ''}{item.note}")
        lines += [f"             {cannot}" for cannot in item.cannot]
    lines += [] if one.evidence else ["evidence     none yet"]
    return "\n".join(lines)
