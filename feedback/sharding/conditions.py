"""On which inputs a cut is checked: those of the operator's specification, the model's own head counts, fresh sizes,
uneven and empty pieces, and long chains of many shards. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from feedback.operators.cases import checked_cases, fresh_cases, input_seed
from feedback.sharding.cuts import Cut
from feedback.target import Arrays, Case

#: Shards of a long chain. A context that is prefilled in steps chains as many as there are steps times ranks.
CHAIN = 16

#: At most this many long chains are tried of one cut.
CHAINS = 3

#: So many cases of a cut that combines nothing.
SPREAD = 8

#: So many first cases of a cut that combines are tried both as the engine cuts and unevenly, the others in one way.
BOTH = 8

#: Where kernels are interpreted, a call takes up to seconds: so many conditions of one cut are tried there.
BRIEF = 10


@dataclass(frozen=True)
class Condition:
    """One thing to try: a case, over so many ranks, cut as the engine does (0) or in another way. `inputs` are those of
    a running model, None where they are drawn.
    """

    case: Case
    ranks: int
    cut: int = 0
    inputs: Arrays | None = field(default=None, compare=False, repr=False)

    @property
    def words(self) -> str:
        """`weak-decay N=150 over 4 ranks, uneven pieces`."""
        sizes = " ".join(f"{axis}={size}" for axis, size in self.case.dims.items())
        return f"{self.case.name} {sizes} over {self.ranks} ranks{', uneven pieces' if self.cut else ''}"

    @property
    def dims(self) -> dict[str, int]:
        """Sizes of the axes, with the number of ranks among them."""
        return {**self.case.dims, "ranks": self.ranks}


def conditions(cut: Cut, seed: int, brief: bool = False) -> list[Condition]:
    """What is tried of a cut, in order; equal arguments give the equal list.

    A cut that combines nothing computes what the operator layer tries in full: there a spread of the cases is enough.
    """
    own = checked_cases(cut.info.cases)
    fresh = fresh_cases(own, input_seed(seed, cut.name, "sizes"), count=1)
    cases = [*own[:1], *cut.sharding.cases, *own[1:], *fresh]
    if not cut.combines:
        cases = spread(cases, SPREAD)
    found = []
    for number, case in enumerate(cases):
        # From 1 on: 0 is the engine's own cut. A few digits suffice, and a person can type them.
        other = 1 + input_seed(seed, cut.name, case.name, "cut") % 9973
        both = cut.combines and number < BOTH
        ways = (0, other) if both else (other if number % 2 else 0,)
        found += [Condition(case, cut.ranks, way) for way in (ways if cut.sharding.uneven else (0,))]
    if cut.sharding.uneven and cut.combines:
        found += [Condition(case, CHAIN) for case in longest(own)[:CHAINS]]
    return shortened(found) if brief else found


def captured(cut: Cut, calls: Sequence[tuple[str, Case, Arrays]]) -> list[Condition]:
    """What is tried of a cut that combines on inputs of a running model."""
    if not cut.combines:
        return []
    found = []
    for operator, case, inputs in calls:
        if operator == cut.info.name:
            ways = (0, 1) if cut.sharding.uneven else (0,)
            found += [Condition(case, cut.ranks, way, inputs) for way in ways]
    return found


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` cases that differ as much as they can, in their order: each next one has the most sizes, distributions
    and tags that none before it had.
    """
    seen: set[object] = set()
    left, taken = list(range(len(cases))), []
    while left and len(taken) < count:
        best = max(left, key=lambda index: (len(_features(cases[index]) - seen), -index))
        seen |= _features(cases[best])
        taken.append(best)
        left.remove(best)
    return [cases[index] for index in sorted(taken)]


def _features(case: Case) -> set[object]:
    return {*case.dims.items(), case.distribution, *case.tags}


def longest(cases: Sequence[Case]) -> list[Case]:
    """The case with the most tokens of each distribution, the longest first."""
    best: dict[str, Case] = {}
    for case in cases:
        kept = best.get(case.distribution)
        if case.dims.get("N", 0) >= 2 and (kept is None or case.dims["N"] > kept.dims["N"]):
            best[case.distribution] = case
    return sorted(best.values(), key=lambda case: (-case.dims["N"], case.name))


def shortened(found: Sequence[Condition]) -> list[Condition]:
    """`BRIEF` of them: one a distribution first, and weak decay, where rounding shows, before all others."""
    order = sorted(range(len(found)), key=lambda index: ("weak" not in found[index].case.distribution, index))
    seen: set[str] = set()
    first = [i for i in order if not (found[i].case.distribution in seen or seen.add(found[i].case.distribution))]
    rest = [i for i in order if i not in first]
    return [found[index] for index in (*first, *rest)][:BRIEF]
