"""The budgets file of a gate: what is compared, what must hold, what may be lost. TOML, refused with file and line.

adapter = "target_engine.adapter"                        # the module that speaks for the target, in the repository
root = "."                                               # the repository's folder that goes on the module path
profile = "target_engine/profiles/production.toml"       # launch profile, below root; each commit's own is used
reference = "target_engine/profiles/sequential.toml"     # what the oracle runs, out of the base commit
workload = "main"                                        # a workload of the target, or a file beside this one
correctness = ["smoke", "operators"]                     # probes that must confirm

[counters]                                               # deterministic: how much a counter may rise (or fall)
steps = 0.0
cached_prompt_tokens = { fall = 0.02 }

[timing]                                                 # left out: nothing is timed
may_lose = 0.05
passes = 4
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra_agent import validation

#: Counters of which less is worse; of all others more is.
LESS_IS_WORSE = frozenset({"cached_prompt_tokens", "output_tokens"})


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Counter(_Section):
    """How far a counter may move, as a share of the base's value; None: that way it may move freely."""

    rise: float | None = Field(default=None, ge=0)
    fall: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.rise is None and self.fall is None:
            raise ValueError("give rise or fall, or both")
        return self

    def breach(self, base: float, head: float) -> str | None:
        """How a value breaks the bound, in words; None when it does not."""
        if self.rise is not None and head > base * (1 + self.rise) + 1e-9:
            return f"{base:g} -> {head:g} ({_percent(base, head)}), may rise by {100 * self.rise:g} %"
        if self.fall is not None and head < base * (1 - self.fall) - 1e-9:
            return f"{base:g} -> {head:g} ({_percent(base, head)}), may fall by {100 * self.fall:g} %"
        return None


class Timing(_Section):
    """Output throughput: the part that may be lost, and the most passes that are spent on finding out."""

    may_lose: float = Field(default=0.05, gt=0, lt=1)
    passes: int = Field(default=4, ge=1, le=40)


class Budgets(_Section):
    """A validated budgets file."""

    adapter: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    root: str = "."
    profile: str
    reference: str | None = None
    launch: dict[str, Any] = Field(default_factory=dict, description="launch parameters on top of every profile")
    workload: str = "main"
    seed: int = Field(default=0, ge=0)
    correctness: tuple[str, ...] = ("smoke", "operators")
    limits: dict[str, float] = Field(default_factory=dict, description="for the accuracy and load probes, by name")
    protected: Literal["refuse", "allow"] = Field(
        default="refuse", description="whether the head may change what the target calls protected"
    )
    counters: dict[str, Counter] = Field(default_factory=dict)
    timing: Timing | None = None

    @field_validator("counters", mode="before")
    @classmethod
    def _shorthand(cls, counters: Any) -> Any:
        """A plain number bounds the way that is worse."""
        if not isinstance(counters, dict):
            return counters
        return {
            name: {"fall" if name in LESS_IS_WORSE else "rise": bound} if isinstance(bound, int | float) else bound
            for name, bound in counters.items()
        }

    @field_validator("root", "profile", "reference")
    @classmethod
    def _inside(cls, path: str | None) -> str | None:
        if path is not None and (Path(path).is_absolute() or ".." in Path(path).parts):
            raise ValueError(f"must be a path inside the repository, not {path!r}")
        return path

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not (self.correctness or self.counters or self.timing):
            raise ValueError("it asks nothing: give correctness, counters or timing")
        return self

    @classmethod
    def load(cls, path: Path) -> Budgets:
        """Read and validate; `UserError` as `path:line: key: what`."""
        return validation.load(cls, path)


def _percent(base: float, head: float) -> str:
    return "from nothing" if base == 0 else f"{100 * (head / base - 1):+.1f} %"
