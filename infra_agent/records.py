"""What a run writes into its ledger: one frozen model per kind of row.

The ledger stores JSON; these models are its meaning. A row's `kind` names the model (`KINDS`), and `summary` reads
nothing else.

Ratios are always oriented so that above 1 is better, whatever the direction of the metric (as `Verdict.effect` is),
and are candidate over base unless the field says otherwise. Absolute values are in the unit that the metric's name
carries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of every ledger payload: frozen, unknown fields refused, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Outcome(StrEnum):
    """What was decided about a move."""

    KEEP = "keep"
    REVISE = "revise"
    REJECT = "reject"
    ASK = "ask"  # a person has to approve it: set aside, but for what mends results, which is on the branch and marked


class EndStatus(StrEnum):
    """How a run ended. A run without an end row is still running or was interrupted."""

    IMPROVED = "improved"  # at least one kept move, confirmed at the end
    NO_WIN = "no_win"  # every move worth its cost was tried or declined: a clean ending
    REPAIRED = "repaired"  # a deviation was found and mended
    SOUND = "sound"  # no deviation was found
    UNREPAIRED = "unrepaired"  # a deviation was found, and nothing that was tried mends it
    FAILED = "failed"  # the run could not go on; the reason says why


class Ratio(Record):
    """A measured ratio with its interval."""

    point: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.point <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold its point {self.point}")
        return self


class Prediction(Record):
    """What a hypothesis expects of the objective: a ratio with the interval that would not surprise it."""

    mean: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold its mean {self.mean}")
        return self


class CostRecord(Record):
    """What has been spent. `wall_seconds` is the sum over recorded effects, the same after a resume as without one."""

    wall_seconds: float = Field(default=0.0, ge=0)
    candidates: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    usd: float = Field(default=0.0, ge=0)


class RunRecord(Record):
    """Kind `run`, key `run`: what the run is, complete enough to repeat it without the files it was started from."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run: str
    goal: str
    goal_digest: str
    goal_text: str = Field(description="the goal as resolved, TOML")
    start: str
    start_digest: str
    adapter: str
    metric: str
    direction: Literal["maximize", "minimize"]
    workload: str
    held_out: str | None = None
    seed: int
    base_commit: str = Field(description="the workspace commit that candidates start from")
    files: dict[str, str] = Field(description="target file -> SHA-256 before the start was applied")
    argv: tuple[str, ...] = ()
    started_at: str = Field(description="UTC, ISO 8601")
    version: str = ""


class BaselineRecord(Record):
    """Kind `baseline`, key = `label`: a state measured for reference: `start`, `par`, `sequential`.

    `metrics` by name with the unit in the name; `config` is the launch configuration; `evidence` the folder with raw
    samples.
    """

    label: str
    commit: str
    metrics: dict[str, float]
    config: dict[str, Any] = Field(default_factory=dict)
    evidence: str | None = None


class ProfileRecord(Record):
    """Kind `profile`, key = commit: observed facts about a kept state, the proposer's evidence."""

    commit: str
    facts: dict[str, float | bool | str]
    evidence: str | None = None


class ProposalRecord(Record):
    """Kind `proposal`, key = move id: a hypothesis and the change that would test it, before anything was spent on it.

    `change` is `{"files": {path: text or null}, "launch": {parameter: value}}`; null deletes the file.
    """

    id: str
    kind: Literal["launch", "code", "bundle"]
    title: str
    hypothesis: str
    cause: str
    predicted: Prediction
    base: str
    change: dict[str, Any]
    changes_numerics: bool = False
    skeletons: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()


class CandidateRecord(Record):
    """Kind `candidate`, key = move id: the commit made from a proposal."""

    move: str
    commit: str
    base: str
    changed: tuple[str, ...]


class VerdictRecord(Record):
    """Kind `verdict`: one probe's answer about one candidate. `verdict` is `Verdict.model_dump(mode="json")`."""

    move: str | None
    commit: str
    base: str
    verdict: dict[str, Any]


class MoveRecord(Record):
    """Kind `decision`, key = move id: the whole story of a move once it is decided.

    `commit` is the kept commit (after a keep), else the candidate's; None when no candidate could be made.
    `measured` is None when the move never reached a timing layer.
    """

    id: str
    kind: Literal["launch", "code", "bundle"]
    title: str
    hypothesis: str
    cause: str
    predicted: Prediction
    measured: Ratio | None = None
    decision: Outcome
    reason: str
    verdicts: tuple[str, ...] = ()
    commit: str | None = None
    changes_numerics: bool = False
    skeletons: tuple[str, ...] = ()
    seconds: float = Field(default=0.0, ge=0, description="spent on verifying it")
    needs: tuple[str, ...] = Field(default=(), description="what a person has to approve before it is merged")
    applies: tuple[str, ...] = Field(default=(), description="where it cannot be used, and why")
    regression: str | None = Field(default=None, description="the test inside the patch that fails on its base")


class RegressionRecord(Record):
    """Kind `regression`, key = move id: the patch's own test, run on the base with the test alone and on the whole
    patch. It holds when the first fails and the second passes.
    """

    path: str
    base_failed: bool
    patched_passed: bool
    base_line: str
    patched_line: str

    @property
    def holds(self) -> bool:
        """Whether the test tells the base from the patch."""
        return self.base_failed and self.patched_passed


class Comparison(Record):
    """Best state against another state, measured at the end in one session. `status` is the verdict's."""

    against: str = Field(description="start, par, sequential")
    workload: str
    held_out: bool = False
    ratio: Ratio
    verdict: str | None = None


class FinalRecord(Record):
    """Kind `final`, key = commit of the best state: the objective at start and end, measured side by side."""

    commit: str
    metric: str
    start: float
    best: float
    ratio: Ratio
    comparisons: tuple[Comparison, ...] = ()
    constraints: dict[str, float] = Field(default_factory=dict, description="name -> value measured at the end")
    verdicts: tuple[str, ...] = ()


class AblationRecord(Record):
    """Kind `ablation`, key = label: the best state with one kept move, one family of moves, or one place of a repair
    taken out.

    `gain` is best over best-without, so a move that pays has a gain above 1; None with a reason in `note` where it
    could not be taken out.
    """

    label: str = Field(description="a move id, the families `launch` and `code`, or `<id> without <place>`")
    moves: tuple[str, ...]
    gain: Ratio | None = None
    note: str = ""
    verdict: str | None = None


class EndRecord(Record):
    """Kind `end`, key `end`: the last row."""

    status: EndStatus
    reason: str
    cost: CostRecord
    commit: str = Field(description="tip of the kept branch")


#: Row kind -> the model of its result payload.
KINDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "baseline": BaselineRecord,
    "profile": ProfileRecord,
    "proposal": ProposalRecord,
    "candidate": CandidateRecord,
    "verdict": VerdictRecord,
    "decision": MoveRecord,
    "regression": RegressionRecord,
    "final": FinalRecord,
    "ablation": AblationRecord,
    "end": EndRecord,
}
