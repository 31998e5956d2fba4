"""A move, and the hypothesis that it tests.

"Because of *observation*, changing *x* moves *metric* by *predicted effect*; *probe* would refute it."
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from infra_agent.records import Prediction, Record

Kind = Literal["launch", "code", "bundle"]

#: Half-width of the central 80 % of a normal distribution, in standard deviations: what a prediction's interval covers.
EIGHTY_PERCENT = 1.2816


class Move(Record):
    """Something that could be changed about one state of the target, with what its skeleton expects of it.

    `key` identifies what the move does, not where it was found in a list: the same change on another state of the
    target has the same key. `share` is the part of the engine's busy time that it acts on (0..1); `gain` and `spread`
    are mean and standard deviation of the logarithm of the end-to-end ratio. A bundle names the keys of the moves it
    makes together in `parts`. `layers` are feedback layers that must confirm it beyond those that its kind needs.

    A move that `mends` results changes no speed on purpose: its ratio is that of the deviation, `slowdown` the log of
    the time that it is expected to cost, `places` the keys of the same move at single places (none where it has one),
    `where` the places in words.
    """

    key: str
    skeletons: tuple[str, ...]
    kind: Kind
    cause: str
    title: str
    share: float = Field(default=1.0, ge=0, le=1)
    gain: float
    spread: float = Field(ge=0)
    operators: tuple[str, ...] = ()
    changes_numerics: bool = False
    launch: dict[str, Any] = Field(default_factory=dict)
    parts: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    mends: bool = False
    slowdown: float = Field(default=0.0, ge=0)
    places: tuple[str, ...] = ()
    where: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """What its skill at predicting is learnt for: the skeleton, or the pair of a bundle."""
        return "+".join(self.skeletons)


class Hypothesis(Record):
    """Why a move is tried, what it should bring, and which probe would refute it most cheaply."""

    observation: str
    cause: str
    move: Move
    metric: str
    predicted: Prediction
    refuted_by: str

    def sentence(self) -> str:
        """One sentence for a person."""
        return (
            f"Because {self.observation}, {self.move.title} should move {self.metric} by {self.predicted.mean:.2f}x "
            f"({self.predicted.low:.2f} to {self.predicted.high:.2f}); {self.refuted_by} would refute it."
        )


def amdahl_ceiling(share: float) -> float:
    """The most that removing `share` of the time can bring, as a log ratio; infinite for a share of one."""
    return math.inf if share >= 1.0 else -math.log1p(-share)


def prediction(gain: float, spread: float, ceiling: float = math.inf) -> Prediction:
    """Mean and central 80 % of a normal log gain, as ratios, nothing above the ceiling."""
    mean, low, high = (
        min(value, ceiling) for value in (gain, gain - EIGHTY_PERCENT * spread, gain + EIGHTY_PERCENT * spread)
    )
    return Prediction(mean=math.exp(mean), low=math.exp(low), high=math.exp(high))
