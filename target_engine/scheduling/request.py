"""A request and its life: WAITING -> RUNNING -> FINISHED, and back from RUNNING to WAITING when it is preempted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from target_engine.errors import EngineError

SEEDS = 2**128
"""Seeds are the keys of a counter-based generator: 0 <= seed < SEEDS."""


class State(StrEnum):
    """Where a request is in its life. Only a RUNNING request holds blocks, and a state slot if the model has states."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end-of-sequence token or stop string
    LENGTH = "length"  # max_tokens, or the model's longest sequence
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch those filters
    off.
    """

    max_tokens: int = 128
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise EngineError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not 0.0 <= self.temperature < float("inf"):
            raise EngineError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise EngineError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise EngineError(f"top_p must lie in (0, 1], not {self.top_p}")
        if not 0 <= self.seed < SEEDS:
            raise EngineError(f"seed must be 0 or more and less than 2**128, not {self.seed}")
        if any(not text for text in self.stop):
            raise EngineError("a stop string must not be empty: it would end every request at once")

    @classmethod
    def of(cls, values: Mapping[str, Any], seed: int = 0) -> SamplingParams:
        """From a request's plain values, where `stop` is a list of strings or absent."""
        given: dict[str, Any] = dict(values)
        stop = given.pop("stop", None) or ()
        if isinstance(stop, str):
            raise EngineError(f"stop must be a list of strings, not the string {stop!r}")
        return cls(**given, stop=tuple(stop), seed=seed)


class Request:
    """One generation request. The scheduler alone changes it.

    `tokens` is prompt then output; the first `computed` of them have their keys and values in `block_ids`, which only
    grows while the request runs. `cached` counts the tokens of the current run that came out of the prefix cache. Times
    are the scheduler's clock.
    """

    __slots__ = (
        "_computed",
        "arrival",
        "block_ids",
        "cached",
        "finish_reason",
        "finish_time",
        "first_cached",
        "first_scheduled_time",
        "first_token_time",
        "id",
        "preemptions",
        "prompt_length",
        "published",
        "sampling",
        "sequence",
        "state",
        "tokens",
    )

    def __init__(
        self, id: str, prompt_token_ids: list[int] | tuple[int, ...], sampling: SamplingParams | None = None
    ) -> None:
        if not prompt_token_ids:
            raise EngineError(f"request {id}: the prompt has no tokens")
        self.id = id
        self.tokens: list[int] = list(prompt_token_ids)
        self.prompt_length = len(self.tokens)
        self.sampling = sampling or SamplingParams()
        self.state = State.WAITING
        self.finish_reason: FinishReason | None = None
        self.block_ids: list[int] = []
        self.published = 0  # how many of block_ids were offered to the prefix cache
        self.cached = 0
        self.first_cached = 0  # `cached` at the first admission: what the prefix cache saved this request's prompt
        self.preemptions = 0
        self.sequence = -1  # order of arrival, given by the scheduler
        self.arrival = 0.0
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.finish_time: float | None = None
        self._computed = 0

    @property
    def computed(self) -> int:
        """Number of leading tokens whose keys and values are in the blocks; 0 <= computed <= len(tokens)."""
        return self._computed

    @computed.setter
    def computed(self, value: int) -> None:
        assert 0 <= value <= len(self.tokens), f"request {self.id}: {value} of {len(self.tokens)} tokens computed"
        self._computed = value

    @property
    def remaining(self) -> int:
        """Number of tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self._computed

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens (a copy)."""
        return self.tokens[: self.prompt_length]

    @property
    def output_token_ids(self) -> list[int]:
        """The sampled tokens so far (a copy)."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """Number of sampled tokens so far."""
        return len(self.tokens) - self.prompt_length

    def __repr__(self) -> str:
        return (
            f"Request({self.id}, {self.state}, {self.computed}/{len(self.tokens)} computed, {self.output_length} out)"
        )
