"""Measurements from a table: a small world in which moves multiply the speed, some are wrong, and some cannot be made.

A table says what is true of each move; what a probe would have measured follows from that, with noise drawn from the
seed and the question, so that the same question has the same answer in every process. It serves simulations of the
loop, and replays of recorded runs (`infra_agent.measurements.replay`).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from feedback.verdict import Confidence, Predicate, Status, Verdict
from infra_agent.hypothesis import Move
from infra_agent.measurements import PAR, SEQUENTIAL, CandidateFailed, Openings, Remembered, Subject, Traffic
from infra_agent.proposers.causes import Facts
from infra_agent.records import BaselineRecord, CandidateRecord, MoveRecord, ProfileRecord, Record

START = "start"


class TableMove(Record):
    """One move of the world. `effect` is its true ratio alone, `together` its extra ratio when another move (by key)
    is there too.

    `refuted` maps a layer to the line with which it refutes the move; `fails` is why no candidate can be made;
    `needs` are moves that must be there before it is offered, `excludes` moves after which it is not.
    """

    move: Move
    effect: float = Field(gt=0)
    together: dict[str, float] = Field(default_factory=dict)
    refuted: dict[str, str] = Field(default_factory=dict)
    fails: str | None = None
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    half: float | None = Field(
        default=None, gt=0, description="half width of the log interval of a measurement that is repeated as it was"
    )
    tied: tuple[str, ...] = Field(
        default=(), description="moves built on this one's text: it cannot be taken out while they are there"
    )


class StateFacts(Record):
    """What a profile of a state showed; `applied` are the keys of the moves that are in it. `offered` are the moves
    with what they promised there; None: those of the table.
    """

    applied: tuple[str, ...]
    facts: dict[str, float | bool | str]
    offered: tuple[Move, ...] | None = None


class Table(Record):
    """The whole world. `noise` is the standard deviation of the log of a measured ratio; `par` and `sequential` are
    ratios to the start.
    """

    layers: dict[str, float]
    metrics: dict[str, float]
    states: tuple[StateFacts, ...]
    moves: tuple[TableMove, ...]
    noise: float = Field(default=0.008, gt=0)
    margin: float = 1.02
    par: float = Field(default=4.0, gt=0)
    sequential: float = Field(default=0.4, gt=0)
    seed: int = 0


class RecordedMeasurements:
    """Answers from a table. A state is named by what was done: `start`, `start+a`, `start+a+b&c` (a bundle of b and c
    after a).
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._moves = {entry.move.key: entry for entry in table.moves}
        if len(self._moves) != len(table.moves):
            raise ValueError("two moves of the table have the same key")
        if any(set("+&") & set(key) for key in self._moves):
            raise ValueError("keys of table moves must not contain + or &: states are named with them")

    @property
    def guesses(self) -> Mapping[str, float]:
        return self.table.layers

    def baseline(self, commit: str) -> BaselineRecord:
        metrics = {**self.table.metrics, "noise_floor": math.expm1(self.table.noise)}
        return BaselineRecord(label=START, commit=commit, metrics=metrics)

    def profile(self, commit: str) -> ProfileRecord:
        return ProfileRecord(commit=commit, facts=self._nearest(commit).facts)

    def _nearest(self, commit: str) -> StateFacts:
        """The recorded state with the same moves, else the one that has most of them and no others."""
        applied = set(_keys(commit))
        fitting = [state for state in self.table.states if set(state.applied) <= applied]
        return max(fitting, key=lambda state: (len(state.applied), state.applied))

    def openings(self, commit: str, facts: Facts) -> Openings:
        applied = set(_keys(commit))
        offered, declined = [], []
        told = self._nearest(commit).offered
        promised = None if told is None else {move.key: move for move in told}
        for entry in self.table.moves:
            if promised is not None and entry.move.key not in promised:
                continue
            missing, blocking = set(entry.needs) - applied, set(entry.excludes) & applied
            if entry.move.key in applied:
                continue
            if missing or blocking:
                declined.append(
                    f"{entry.move.family}: {'needs' if missing else 'excluded by'} {sorted(missing or blocking)[0]}"
                )
            else:
                offered.append(entry.move if promised is None else promised[entry.move.key])
        causes = sorted({entry.move.cause for entry in self.table.moves if entry.move.kind == "code"})
        return Openings(moves=tuple(offered), declined=tuple(declined), looked_for=tuple(causes))

    def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
        files = {f"{key}.py": f"# {key}\n" for key in _parts(move) if self._moves[key].move.kind == "code"}
        return {"files": files, "launch": dict(move.launch)}

    def candidate(self, name: str, base: str, move: Move, change: Mapping[str, Any]) -> CandidateRecord:
        for key in _parts(move):
            reason = self._moves[key].fails
            if reason is not None:
                raise CandidateFailed(reason)
        return CandidateRecord(
            move=name, commit=f"{base}+{'&'.join(_parts(move))}", base=base, changed=tuple(change["files"])
        )

    def ask(self, layer: str, subject: Subject) -> Verdict:
        for key in _keys(subject.candidate.removeprefix(subject.base)):
            line = self._moves[key].refuted.get(layer)
            if line is not None:
                return _verdict(
                    subject.hypothesis, layer, Status.REFUTED, line, self._cost(layer, subject.base, subject.candidate)
                )
        if layer == "load":
            return self._timed(subject.hypothesis, subject.base, subject.candidate, f"load {subject.n}")
        cost = self._cost(layer, subject.base, subject.candidate)
        if layer == "microbench":
            return self._timed(subject.hypothesis, subject.base, subject.candidate, "microbench", layer, cost)
        return _verdict(subject.hypothesis, layer, Status.CONFIRMED, f"{layer} held", cost)

    def keep(self, candidate: CandidateRecord, move: MoveRecord) -> str:
        return candidate.commit

    def compare(self, base: str, candidate: str, traffic: Traffic, label: str, n: int = 1) -> Verdict:
        return self._timed(label, base, candidate, f"{traffic} {n}")

    def without(self, tip: str, commits: tuple[str, ...], label: str) -> str:
        segments = tip.split("+")
        out = {commit.split("+")[-1] for commit in commits}
        left = [segment for segment in segments if segment not in out]
        for key in (key for segment in out for key in segment.split("&")):
            tied = set(self._moves[key].tied) & set(_keys("+".join(left)))
            if tied:
                raise CandidateFailed(f"{key} cannot be taken out alone: {sorted(tied)[0]} is built on it")
        return "+".join(left)

    def remember(self, move: Move, outcome: Remembered) -> None:
        """A table learns nothing."""

    def speed(self, commit: str) -> float:
        """True speed of a state, the start's being one."""
        if commit in (PAR, SEQUENTIAL):
            return self.table.par if commit == PAR else self.table.sequential
        applied = _keys(commit)
        ratio = math.prod(self._moves[key].effect for key in applied)
        pairs = ((self._moves[key].together.get(other, 1.0)) for key in applied for other in applied)
        return ratio * math.prod(pairs)

    def _timed(
        self, about: str, base: str, candidate: str, question: str, layer: str = "load", cost: float | None = None
    ) -> Verdict:
        # A microbench asks whether the operators got faster at all; how much that is worth is for load to say.
        noise, margin = self.table.noise, 1.0 if layer == "microbench" else self.table.margin
        true = self.speed(candidate) / self.speed(base)
        added = _keys(candidate.removeprefix(base)) if candidate.startswith(base) else ()
        halves = [half for key in added if (half := self._moves[key].half) is not None]
        drawn = 0.0 if halves else noise * _normal(self.table.seed, base, candidate, question)
        measured, half = true * math.exp(drawn), math.hypot(*halves) if halves else 2.2 * noise
        low, high = measured * math.exp(-half), measured * math.exp(half)
        status = Status.CONFIRMED if low >= margin else Status.REFUTED if high < margin else Status.INCONCLUSIVE
        throughput = self.table.metrics.get("output_throughput", 1.0)
        return _verdict(
            about,
            layer,
            status,
            f"{question}: {measured:.3f}x",
            self._cost("load", base, candidate) if cost is None else cost,
            effect=measured,
            interval=(low, high),
            margin=margin,
            minimal_detectable_effect=3 * noise,
            noise_floor=math.expm1(noise),
            n=1,
            metrics={**self.table.metrics, "output_throughput": throughput * self.speed(base) * measured},
        )

    def _cost(self, layer: str, base: str, candidate: str) -> float:
        """Load runs the whole workload on both arms, so it gets cheaper as the engine gets faster."""
        guess = self.table.layers.get(layer, 1.0)
        return guess * (0.5 / self.speed(base) + 0.5 / self.speed(candidate)) if layer == "load" else guess


def _parts(move: Move) -> tuple[str, ...]:
    return move.parts or (move.key,)


def _keys(commit: str) -> tuple[str, ...]:
    return tuple(key for segment in commit.split("+")[1:] for key in segment.split("&"))


def _normal(*parts: object) -> float:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return statistics.NormalDist().inv_cdf((int.from_bytes(digest[:7], "big") + 0.5) / 2**56)


def _verdict(about: str, layer: str, status: Status, observed: str, cost: float, **timing: Any) -> Verdict:
    predicate = Predicate(layer=layer, statement=f"{layer} holds")
    return Verdict(
        hypothesis=about,
        layer=layer,
        status=status,
        predicate=predicate.statement,
        predicate_digest=predicate.digest,
        observed=observed,
        confidence=Confidence.STATISTICAL if timing else Confidence.DIRECT,
        cost_seconds=cost,
        **timing,
    )
