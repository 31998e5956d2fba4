"""What a repair has to show before it is kept, and how it is kept: its own test, accuracy, service, applicability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedback.verdict import Status, Verdict
from infra_agent.decision import Decision, approvals_needed, as_record
from infra_agent.hypothesis import Move
from infra_agent.measurements import CandidateFailed, Remembered
from infra_agent.proposers.causes import Facts
from infra_agent.records import CandidateRecord, FinalRecord, MoveRecord, Outcome, ProposalRecord
from infra_agent.repairsteps import RepairSteps, shrunk

#: Layers that are asked of base and patch as this machine can serve them.
SERVED = ("accuracy", "load")


@dataclass(frozen=True)
class Mended:
    """A repair that every layer has confirmed, not yet kept. `change` is its text, `deviation` what is left, as a
    multiple of what is allowed.
    """

    move: Move
    proposal: ProposalRecord
    candidate: CandidateRecord
    change: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]
    deviation: float


@dataclass(frozen=True)
class Proof:
    """What came of the last checks. `wrong`: why it is not kept, None where it is. `open_`: what they leave to a
    person; `gaps`: what this machine cannot show.
    """

    candidate: CandidateRecord
    verdicts: tuple[Verdict, ...]
    wrong: str | None
    test: str | None = None
    applies: tuple[str, ...] = ()
    open_: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def proved(steps: RepairSteps, start: str, mended: Mended, facts: Facts, found: Verdict) -> Proof:
    """The repair with a regression test in it: does that fail on the base and pass on the patch, is the whole sound,
    and, as far as this machine can serve it (`gaps`), as accurate and as fast? Stops at the first that speaks against
    it.
    """
    verdicts = list(mended.verdicts)
    try:
        candidate, test, static = steps.tested(start, mended.candidate, mended.change, mended.move, facts, found)
    except CandidateFailed as error:
        return Proof(mended.candidate, mended.verdicts, str(error))
    verdicts.append(static)
    if not test.holds:
        what = "does not fail on the base" if not test.base_failed else "does not pass on the patch"
        line = test.base_line if not test.base_failed else test.patched_line
        return Proof(candidate, tuple(verdicts), f"its regression test {what}: {line}")
    if static.status is not Status.CONFIRMED:
        return Proof(candidate, tuple(verdicts), f"with its regression test it is not sound: {static.line()}")
    open_: list[str] = []
    for layer in SERVED:
        verdict = steps.served(layer, start, candidate.commit, mended.move)
        verdicts.append(verdict)
        if verdict.status is Status.REFUTED:
            return Proof(candidate, tuple(verdicts), verdict.line())
        if verdict.status not in (Status.CONFIRMED, Status.UNSUPPORTED):
            open_.append(f"{layer} ({verdict.status.value})")
    kernels = next((v for v in mended.verdicts if v.layer == "kernels"), None)
    applies = steps.applicability(mended.candidate.move, kernels) if kernels is not None else ()
    gaps = steps.not_served(start)
    return Proof(candidate, tuple(verdicts), None, test.path, applies, tuple(open_), gaps)


def written(steps: RepairSteps, mended: Mended, proof: Proof, before: float) -> MoveRecord:
    """Put the repair on the run's branch, marked with what a person has to look at, and record what it brought."""
    goal, candidate = steps.goal, proof.candidate
    needs = (*sorted(approvals_needed(mended.move) & frozenset(goal.approval.kinds)), *proof.open_)
    gain = shrunk(before, mended.deviation)
    decision = Decision(Outcome.ASK if needs else Outcome.KEEP, _reason(mended, proof, before, needs), gain)
    record = as_record(mended.proposal, decision, proof.verdicts, candidate.commit).model_copy(
        update={"title": mended.move.title, "needs": needs, "applies": proof.applies, "regression": proof.test}
    )
    record = record.model_copy(update={"commit": steps.keep(record, candidate)})
    steps.judged += 1
    steps.decided(record, gain.point if gain else 1.0)
    if gain is not None:
        outcome = Remembered(kind="incremental", supports=True, gain=gain, applies=proof.applies)
        steps.remember(record.id, mended.move.model_copy(update={"parts": ()}), outcome)
        final = FinalRecord(
            commit=record.commit or candidate.commit, metric=goal.objective.metric, start=before,
            best=mended.deviation, ratio=gain, verdicts=record.verdicts,
        )  # fmt: skip
        steps.ledger.note("final", final.commit, final)
        steps.show.final(final)
    return record


def _reason(mended: Mended, proof: Proof, before: float, needs: Sequence[str]) -> str:
    unasked = [v.layer for v in proof.verdicts if v.status is Status.UNSUPPORTED]
    served = [f"{v.layer} {v.status.value}: {v.observed}" for v in proof.verdicts if v.layer in SERVED]
    parts = [
        f"deviation {before:.3g} -> {mended.deviation:.3g} of what is allowed",
        *served,
        f"not served here: {'; '.join(proof.gaps)}" if proof.gaps else "",
        f"cannot be used: {'; '.join(proof.applies)}" if proof.applies else "",
        f"not checked here: {', '.join(unasked)}" if unasked else "",
        f"{', '.join(needs)}: needs a person" if needs else "",
    ]
    return "; ".join(part for part in parts if part)
