"""On which input conditions an operator is checked: those of its specification, and fresh ones. Pure.

A specification's cases can be read, so an implementation can be exact on them and cheap elsewhere. Sizes are therefore
drawn anew for every check along the axes that may vary by themselves, and values are always drawn anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from feedback.target import Case

#: Cases that exist to be timed at a real model's sizes; the timing layers verify what they time.
TIMED = "microbench"

#: Cases that the parent made up.
FRESH = "fresh"

#: An axis may vary alone when the specification itself has this many sizes of it with all else equal.
MIN_SIZES = 3


def checked_cases(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The specification's cases that are checked here, in its order."""
    return tuple(case for case in cases if TIMED not in case.tags) or tuple(cases)


def free_axes(cases: Sequence[Case]) -> dict[str, tuple[dict[str, int], tuple[int, ...]]]:
    """Axis -> (the other axes' sizes, the sizes seen): axes that vary alone in the largest family of cases.

    Sizes of other axes may hang together (heads and KV heads, context and blocks) in ways only the specification knows,
    so they are left as they are.
    """
    families: dict[tuple[str, tuple[tuple[str, int], ...]], set[int]] = {}
    for case in cases:
        for axis, size in case.dims.items():
            rest = tuple(sorted((a, s) for a, s in case.dims.items() if a != axis))
            families.setdefault((axis, rest), set()).add(size)
    found: dict[str, tuple[dict[str, int], tuple[int, ...]]] = {}
    for (axis, rest), sizes in families.items():
        if len(sizes) >= max(MIN_SIZES, len(found.get(axis, ((), ()))[1]) + 1):
            found[axis] = (dict(rest), tuple(sorted(sizes)))
    return found


def fresh_cases(cases: Sequence[Case], seed: int, count: int = 3) -> tuple[Case, ...]:
    """Up to `count` cases per free axis whose size no case of the specification has: below, among and beyond the known
    sizes.

    The distribution is drawn from those of the specification. Equal arguments give equal cases.
    """
    rng = np.random.default_rng(seed)
    known = checked_cases(cases)
    distributions = sorted({case.distribution for case in known})
    fresh = []
    for axis, (rest, sizes) in sorted(free_axes(known).items()):
        everywhere = {case.dims[axis] for case in cases if axis in case.dims}
        largest = sizes[-1]
        bounds = [(1, max(2, largest // 4)), (largest // 4 + 1, largest), (largest + 1, 2 * largest)]
        for low, high in bounds[:count]:
            free = [size for size in range(low, high + 1) if size not in everywhere]
            if free:
                size = int(rng.choice(free))
                distribution = str(rng.choice(distributions))
                fresh.append(
                    Case(
                        name=f"fresh-{axis}{size}",
                        dims={**rest, axis: size},
                        distribution=distribution,
                        tags=(FRESH,),
                    )
                )
    return tuple(fresh)


def input_seed(seed: int, *parts: str) -> int:
    """A 63-bit seed for one set of inputs, from the question's seed and what the inputs are for."""
    text = json.dumps([seed, *parts])  # quoted, so that no text in one part can pass for the border between two
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
