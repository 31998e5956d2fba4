"""One diagnosis as Thought / Action / Observation (S. Yao et al., ReAct, ICLR 2023). The thought is a fixed rule."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.feedback_information.kernel import REPAIR, SHAPES, Fault
from experiments.feedback_information.laboratory import Kernel
from experiments.feedback_information.policies import Policy
from experiments.feedback_information.tools import COMPILE_SECONDS, PASS, PROBES
from feedback.information.belief import Belief
from feedback.information.diagnosis import Stopping, diagnose
from feedback.information.outcomes import OutcomeTable

#: What a repaired kernel must pass.
CHECKS = (*(f"test/{shape.name}" for shape in SHAPES), "memcheck/edge")


@dataclass(frozen=True)
class Trace:
    """The lines, the seconds of everything in it, the calls of the diagnosis, and whether it ended with a right
    kernel.
    """

    lines: tuple[str, ...]
    seconds: float
    asked: tuple[str, ...]
    repaired: bool


def follow(policy: Policy, table: OutcomeTable, fault: Fault, seed: int, stopping: Stopping) -> Trace:
    """Diagnose, repair what was found, and check the repaired kernel. Compiling counts before and after the edit."""
    kernel = Kernel(fault, seed)
    belief = Belief.before(table)
    found = diagnose(belief, policy.likelihoods(table), kernel.outcome, stopping)
    lines: list[str] = []
    for number, call in enumerate(found.calls):
        left = belief.possible()
        names = f" ({', '.join(left)})" if len(left) <= 3 else ""
        asked = found.asked[:number].count(call.worth.probe)
        lines += [
            f"[{number + 1}] Thought: {len(left)} possible{names}; {call.worth.words()}: the most per second.",
            f"    Action: {call.worth.probe}",
            f"    Observation: {kernel.ask(call.worth.probe, asked).line}",
        ]
        belief = call.belief
    seconds = COMPILE_SECONDS + found.seconds
    cause, probability = belief.first
    if found.found is None:
        lines.append(f"[{len(found.calls) + 1}] Thought: not sure: {cause} has {probability:.3f}. A person is asked.")
        return Trace(tuple(lines), seconds, found.asked, False)
    mended = Fault.NONE if cause == fault.value else fault
    lines += [
        f"[{len(found.calls) + 1}] Thought: {cause} has {probability:.3f}: {REPAIR[Fault(cause)]}.",
        "    Action: edit + compile",
    ]
    checked = Kernel(mended, seed + 1)
    answers = [checked.ask(probe, 0) for probe in CHECKS]
    lines.append(
        f"[{len(found.calls) + 2}] Check: "
        + "; ".join(f"{probe} {answer.line}" for probe, answer in zip(CHECKS, answers, strict=True))
    )
    seconds += COMPILE_SECONDS + sum(PROBES[probe].tool.seconds for probe in CHECKS)
    good = all(answer.outcome in (PASS, "clean") for answer in answers)
    lines.append(f"    {seconds:g} s of assumed time, two compilations among it")
    return Trace(tuple(lines), seconds, found.asked, good and mended is Fault.NONE)
