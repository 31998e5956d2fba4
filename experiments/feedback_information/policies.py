"""Policies that choose the next tool.

The lecture has seven, P1 to P7, and describes them in part: pass/fail alone finds nothing within 8 calls, the detailed
test finds 74 %, P4 and P5 are "most information" and "most information per second", P7 never separates the K loop that
is one block short from the transposed index of B because no constructed input is among its tools. The seven here are
chosen so that each of its three conclusions can be seen or refuted:

* P1 to P3 differ in how fine the answer is: the test that people write first (pass/fail, in whole tiles), pass/fail on
  any shape, the detailed test on any shape.
* P4 and P5 have all six tools and differ in what they ask for (of tools that tell the same within the resolution of
  counted likelihoods P4 takes the cheaper one); P6 has all and draws at random.
* P7 is P5 without the constructed input.

Three arms beside them show what the lecture says in words: P4 and P5 again with a dear detailed test (where "most bits"
and "most bits per second" part), and P7 with the rank of the error told (exercise 4).

All keep the same posterior over the faults, start from equal chances, and stop by the same rule: one fault has 95 %, or
8 calls are made (`Stopping`; both are options of the experiment).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.feedback_information.laboratory import Kernel
from experiments.feedback_information.tools import PROBES, RANKED, TOOLS
from feedback.information.belief import Belief
from feedback.information.choice import By
from feedback.information.diagnosis import Stopping
from feedback.information.outcomes import Likelihood, OutcomeTable
from feedback.information.scores import Score, World, at_random, most, play

SIX = tuple(tool.name for tool in TOOLS)

#: A detailed test that needs so long (exercise 2).
DEAR_SECONDS = 120.0


@dataclass(frozen=True)
class Policy:
    """Which tools may be asked, on which shapes (None: all), and by what the next is chosen (None: at random). `costs`
    are other seconds for some tools.
    """

    name: str
    about: str
    tools: tuple[str, ...]
    by: By | None
    shapes: tuple[str, ...] | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    def likelihoods(self, table: OutcomeTable) -> list[Likelihood]:
        """The probes that it may ask, as measured."""
        found = []
        for name, probe in PROBES.items():
            if probe.tool.name in self.tools and (self.shapes is None or probe.shape.name in self.shapes):
                likelihood = table.likelihood(name)
                dear = self.costs.get(probe.tool.name)
                found.append(likelihood if dear is None else likelihood.costing(dear))
        return found


P1 = Policy("P1", "pass/fail, in whole tiles", ("test",), "bits per second", ("tidy",))
P2 = Policy("P2", "pass/fail, any shape", ("test",), "bits per second")
P3 = Policy("P3", "detailed test, any shape", ("detailed",), "bits per second")
P4 = Policy("P4", "six tools, most bits", SIX, "bits")
P5 = Policy("P5", "six tools, most bits per second", SIX, "bits per second")
P6 = Policy("P6", "six tools, at random", SIX, None)
P7 = Policy("P7", "as P5, no constructed input", tuple(t for t in SIX if t != "identity"), "bits per second")
SEVEN = (P1, P2, P3, P4, P5, P6, P7)

DEAR = {"detailed": DEAR_SECONDS}
DEAR_P4 = Policy("P4 dear", f"as P4, the detailed test at {DEAR_SECONDS:g} s", SIX, "bits", costs=DEAR)
DEAR_P5 = Policy("P5 dear", f"as P5, the detailed test at {DEAR_SECONDS:g} s", SIX, "bits per second", costs=DEAR)
WITH_RANK = Policy("P7 rank", "as P7, the rank told", (*P7.tools, RANKED.name), "bits per second")
BESIDE = (DEAR_P4, DEAR_P5, WITH_RANK)


def score(policy: Policy, table: OutcomeTable, kernels: Sequence[Kernel], stopping: Stopping) -> Score:
    """The policy on every kernel."""
    worlds = [World(kernel.fault.value, kernel.outcome) for kernel in kernels]
    maker = at_random if policy.by is None else most(policy.by)
    return play(policy.name, Belief.before(table), policy.likelihoods(table), worlds, maker, stopping)
