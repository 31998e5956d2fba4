"""What the loop asks of the world, and the two ways of answering it.

`Measurements` is the whole outside of the loop: states are named by commits, and every answer is a record that the
ledger can store. `live.LiveMeasurements` answers with workers and probes, `recorded.RecordedMeasurements` from a
table, so that the loop can be driven through thousands of situations without an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import Field

from feedback.verdict import Verdict
from infra_agent.hypothesis import Move
from infra_agent.proposers.causes import Facts
from infra_agent.records import (
    BaselineRecord,
    CandidateRecord,
    MoveRecord,
    ProfileRecord,
    Ratio,
    Record,
    RegressionRecord,
)

#: States that are not commits of the run: what the trusted target does with a shipped profile.
PAR, SEQUENTIAL = "par", "sequential"

Traffic = Literal["main", "held_out", "short"]


class CandidateFailed(Exception):
    """The candidate could not be made (one line); the move is rejected with it and the run goes on."""


class Openings(Record):
    """What a library offers on one state, what it declined with the reason (`skeleton: reason`), and the causes that it
    can look for in the code.
    """

    moves: tuple[Move, ...]
    declined: tuple[str, ...] = ()
    looked_for: tuple[str, ...] = ()


class Subject(Record):
    """What a probe is asked about: a move on a base. `hypothesis` is the move's id, `n` counts how often this layer was
    asked. `changes_numerics` holds for the candidate as a whole: a kept move before this one may have changed a type.
    `limits` are the goal's bounds by name, as absolute numbers. `explain`: whether a refutation is worth the time of
    finding out why.
    """

    hypothesis: str
    base: str
    candidate: str
    move: Move
    changes_numerics: bool = False
    changed: tuple[str, ...] = ()
    limits: dict[str, float] = Field(default_factory=dict)
    n: int = 1
    explain: bool = True


class Remembered(Record):
    """What came of a skeleton's move: its measured gain, whether that speaks for the skeleton, and where it cannot be
    used.
    """

    kind: Literal["incremental", "ablation"]
    supports: bool
    gain: Ratio
    applies: tuple[str, ...] = ()


class Measurements(Protocol):
    """Everything that the loop cannot compute itself. Implementations raise only for what ends the run."""

    @property
    def guesses(self) -> Mapping[str, float]:
        """The layers that can be asked, each with a first guess of its cost in seconds."""
        ...

    def baseline(self, commit: str) -> BaselineRecord:
        """Measure the start: the A/A noise floor of the session (`noise_floor` in its metrics) and every figure a
        bound may be relative to.
        """
        ...

    def profile(self, commit: str) -> ProfileRecord:
        """Run a state under the profiler and return facts about it."""
        ...

    def openings(self, commit: str, facts: Facts) -> Openings:
        """The moves whose conditions hold on a state."""
        ...

    def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
        """The text of a move on a state: `{"files": {path: text or null}, "launch": {...}}`. Raises
        `CandidateFailed`.
        """
        ...

    def candidate(self, name: str, base: str, move: Move, change: Mapping[str, Any]) -> CandidateRecord:
        """Commit a change on its base; `name` is the move's id. Raises `CandidateFailed`."""
        ...

    def ask(self, layer: str, subject: Subject) -> Verdict:
        """Run one probe."""
        ...

    def keep(self, candidate: CandidateRecord, move: MoveRecord) -> str:
        """Put a candidate on the run's branch with its story as trailers; returns the kept commit."""
        ...

    def compare(self, base: str, candidate: str, traffic: Traffic, label: str, n: int = 1) -> Verdict:
        """Measure two states side by side in fresh instances; `load` verdict, effect = candidate over base. A state
        may be `PAR` or `SEQUENTIAL`.
        """
        ...

    def without(self, tip: str, commits: tuple[str, ...], label: str) -> str:
        """A commit of `tip` with kept commits taken out. Raises `CandidateFailed` on a conflict."""
        ...

    def remember(self, move: Move, outcome: Remembered) -> None:
        """Let later runs learn from a measured move."""
        ...


class Repairing(Measurements, Protocol):
    """What runs that mend results ask besides."""

    def deviation(self, commit: str, verdict: Verdict) -> ProfileRecord:
        """Facts about a state of which a layer that compares ranks with one rank has found that it deviates."""
        ...

    def applicability(self, verdict: Verdict) -> tuple[str, ...]:
        """Where the compile reports of a `kernels` verdict say that its kernels cannot be used, a line each."""
        ...

    def test_text(self, commit: str, facts: Facts, observed: str) -> tuple[str, str]:
        """Path and text of a regression test for what deviates on a state."""
        ...

    def regression(self, base: str, candidate: str, path: str, text: str, facts: Facts) -> RegressionRecord:
        """Run a test that the candidate brings at `path`, on the base with the test alone and on the candidate."""
        ...

    def served(self, layer: str, base: str, candidate: str, changes_numerics: bool, n: int = 1) -> Verdict:
        """`accuracy`, or `load` of a change that is to cost little, of two states in a configuration that this machine
        can serve.
        """
        ...

    def not_served(self, base: str) -> tuple[str, ...]:
        """What that configuration leaves out, a phrase each, for a base and what is built on it."""
        ...
