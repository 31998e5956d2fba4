"""Asking until the cause is known: a policy chooses, a probe answers, the belief follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from feedback.information.belief import Belief
from feedback.information.choice import Worth, choose
from feedback.information.outcomes import Likelihood

#: Chooses among probes under a belief; None: nothing is worth asking.
Chooser = Callable[[Belief, Sequence[Likelihood]], Worth | None]


@dataclass(frozen=True)
class Stopping:
    """When to stop: one cause is at least so probable, so many calls are made, or no probe tells `least_bits`."""

    confidence: float = 0.95
    calls: int = 8
    least_bits: float = 0.0


@dataclass(frozen=True)
class Call:
    """One call: what was expected of it, what it answered, what is believed afterwards. `seconds` as planned."""

    worth: Worth
    outcome: str
    belief: Belief


@dataclass(frozen=True)
class Diagnosis:
    """The calls, and the belief at the end. `found` is the cause, or None where the belief never became sure."""

    calls: tuple[Call, ...]
    belief: Belief
    found: str | None

    @property
    def seconds(self) -> float:
        """Time of all calls."""
        return sum(call.worth.seconds for call in self.calls)

    @property
    def asked(self) -> tuple[str, ...]:
        """The probes, in order."""
        return tuple(call.worth.probe for call in self.calls)


def diagnose(
    belief: Belief,
    likelihoods: Sequence[Likelihood],
    ask: Callable[[str, int], str],
    stopping: Stopping | None = None,
    chooser: Chooser | None = None,
) -> Diagnosis:
    """Ask probes until `stopping` says so. `ask(probe, n)` gives the outcome of the n-th call of that probe (from 0);
    without a `chooser` it is the most bits per second.
    """
    rule = stopping or Stopping()
    by_name = {likelihood.probe: likelihood for likelihood in likelihoods}
    calls: list[Call] = []
    while belief.first[1] < rule.confidence and len(calls) < rule.calls:
        chosen = (chooser or choose)(belief, likelihoods)
        if chosen is None or chosen.bits < rule.least_bits:
            break
        outcome = ask(chosen.probe, sum(call.worth.probe == chosen.probe for call in calls))
        belief = belief.after(by_name[chosen.probe], outcome)
        calls.append(Call(chosen, outcome, belief))
    cause, probability = belief.first
    return Diagnosis(tuple(calls), belief, cause if probability >= rule.confidence else None)
