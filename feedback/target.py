"""The target protocol: all that the judging side knows of the thing it judges. A frozen contract (version 1).

Why it looks like this:

* It is structural. A target satisfies it without importing it: methods take and return JSON-able values and numpy
  arrays, and the parent validates them with the wire models below. A target can therefore not subclass, shadow or patch
  its judge.
* It is split in two. `Target` answers questions about files, launch parameters and operators without starting anything;
  `Session` is a started engine. A foreign engine known only by a launch command, an OpenAI-compatible endpoint and a
  metrics page can serve both: `start` runs the command, `submit` posts, `step` collects what has streamed in, `metrics`
  reads the page, and whatever it cannot do (operators, scores, spans) raises `NotImplementedError("why")`, which
  reaches the parent as `Unsupported`, never as a pass.
* Nothing in it carries a time or a verdict: the parent's clock counts, and the parent compares.
* Only worker processes call it (`feedback.workers`); an adapter module exposes `create() -> Target`.

Array convention: numpy, C order. bfloat16 has no numpy type, so half-width values cross the wire as float32.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

PROTOCOL_VERSION = 1

Arrays = dict[str, np.ndarray]


class Unsupported(Exception):
    """The target cannot do this; the text says why. A probe turns it into an `unsupported` verdict."""


class Wire(BaseModel):
    """Base of what crosses the process boundary: frozen, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(StrEnum):
    """What may be done to a file of the target."""

    EDITABLE = "editable"  # a candidate may change it
    PROTECTED = "protected"  # references, specs, adapter, spans, workloads: digested before and after every probe
    PROFILE = "profile"  # the launch profile of a run; launch moves edit it and nothing else does


class FileEntry(Wire):
    """One file of the target, `path` relative to the target's root, POSIX separators."""

    path: str
    role: Role


class Parameter(Wire):
    """One dimension of the launch space."""

    name: str
    kind: Literal["int", "float", "bool", "choice"]
    values: tuple[Any, ...] = Field(min_length=1, description="sensible values to try, in order")
    default: Any
    doc: str
    changes_numerics: bool = False


class WorkloadRef(Wire):
    """A pinned workload file (JSON lines, `feedback.load.workload`), path relative to the target's root."""

    name: str
    path: str
    held_out: bool = False
    doc: str = ""


class Scenario(Wire):
    """A phase that can be run alone or combined, to isolate it; `unsupported` says why where it cannot."""

    name: str
    doc: str
    unsupported: str | None = None


class Description(Wire):
    """What a target says of itself."""

    protocol_version: int
    name: str
    profile_path: str = Field(description="the launch profile that a run edits, relative to the root (TOML)")
    launch_space: tuple[Parameter, ...]
    workloads: tuple[WorkloadRef, ...]
    scenarios: tuple[Scenario, ...] = ()


class ConfigProblem(Wire):
    """One reason why a launch configuration cannot start."""

    parameter: str
    message: str


class Tensor(Wire):
    """One argument or result of an operator. `shape` mixes sizes and axis names."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = Field(description="numpy name, or 'compute' for the launch configuration's type")
    kind: Literal["constant", "runtime", "inout", "output"]


class Case(Wire):
    """One input condition: axis sizes, the distribution of values, and what the case is for.

    Tags: `typical` (what serving does), `odd` (lengths that divide nothing, size one), `constructed` (built to break
    something), `microbench` (worth timing).
    """

    name: str
    dims: dict[str, int]
    distribution: str = "normal"
    tags: tuple[str, ...] = ()


class Tolerance(Wire):
    """|got - reference| <= atol + rtol * |reference|, with the reason for the two numbers."""

    atol: float
    rtol: float
    reason: str


class OperatorInfo(Wire):
    """One operator: what it computes, on which inputs it is checked, which implementations exist and which one runs."""

    name: str
    role: str = Field(description="its name in the field, the same in any target: rms_norm, paged_decode_attention")
    doc: str
    tensors: tuple[Tensor, ...]
    cases: tuple[Case, ...] = Field(min_length=1)
    tolerance: dict[str, Tolerance] = Field(description="by compute type: float32, bfloat16")
    implementations: tuple[str, ...]
    selected: str
    files: dict[str, str] = Field(default_factory=dict, description="implementation -> file, relative to the root")
    deterministic: bool = True


class Request(Wire):
    """One generation request. Exactly one of `prompt` and `prompt_token_ids`; times are the parent's business."""

    id: str
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    max_tokens: int = Field(ge=1)
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Progress(Wire):
    """New tokens of one request since the last `step`; `finish_reason` is set with the last of them."""

    id: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None


class StepReport(Wire):
    """What `step(n)` did: at most n engine steps. `unfinished` requests remain afterwards."""

    steps: int
    progress: tuple[Progress, ...]
    unfinished: int


class Scored(Wire):
    """Teacher-forced score of one sequence, one entry per output token, natural logarithms.

    `logprob` of the given token, `best` the most likely token and `best_logprob` its value; regret = best_logprob -
    logprob.
    """

    logprob: tuple[float, ...]
    best: tuple[int, ...]
    best_logprob: tuple[float, ...]


@runtime_checkable
class Session(Protocol):
    """A started engine. All methods are called from one thread."""

    def submit(self, requests: list[dict[str, Any]]) -> None:
        """Queue requests (`Request` fields). Raises `ValueError` naming the request that cannot be served."""

    def abort(self, ids: list[str]) -> None:
        """End requests early; unknown ids are ignored."""

    def step(self, n: int) -> dict[str, Any]:
        """Run at most `n` engine steps, fewer when nothing is left; returns `StepReport` fields."""

    def score(self, sequences: list[dict[str, Any]], logits: bool = False) -> dict[str, Any]:
        """Score `{"prompt": ids, "output": ids}` sequences: `{"scored": [Scored...]}`; with `logits` also
        `{"logits": [float32 array of output length x vocabulary, ...]}`."""

    def tokenize(self, texts: list[str], chat: bool = False) -> list[list[int]]:
        """Token ids of each text, through the chat template as one user turn when `chat`."""

    def spans(self, level: int | None = None) -> dict[str, Any]:
        """Drain the span log: `{"version", "rows", "dropped"}` (`target_engine/spans.py` row format).

        Sets the level when given.
        """

    def metrics(self) -> dict[str, float]:
        """Counters since start, names with units: at least `steps`, `prompt_tokens`, `cached_prompt_tokens`,
        `output_tokens`, `scheduled_tokens`, `preemptions`, `batch_rows` (sum over steps of running requests),
        `kv_blocks`, `kv_blocks_peak`, `weight_bytes`, `kv_bytes`, `max_batch`."""

    def close(self) -> None:
        """Release everything; the session is unusable afterwards."""


@runtime_checkable
class Target(Protocol):
    """A target that nothing has been started of."""

    def describe(self) -> dict[str, Any]:
        """`Description` fields."""

    def validate_config(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """`ConfigProblem`s; empty when `start(config)` can be tried. Must be fast: no weights are read."""

    def files(self) -> list[dict[str, Any]]:
        """`FileEntry` for every file that makes up the target, relative to its root."""

    def operators(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """`OperatorInfo` for each operator that runs under `config`."""

    def operator_inputs(self, operator: str, case: dict[str, Any], config: dict[str, Any], seed: int) -> Arrays:
        """Fresh inputs (constants included) for a case. Called on the trusted checkout only."""

    def operator_reference(self, operator: str, case: dict[str, Any], config: dict[str, Any], inputs: Arrays) -> Arrays:
        """Expected outputs and inout arrays in float64 where they are floating. Called on the trusted checkout only."""

    def operator_open(self, operator: str, config: dict[str, Any], case: dict[str, Any], constants: Arrays) -> int:
        """Build the selected implementation around its constants; returns a handle. Called on the candidate."""

    def operator_run(self, handle: int, inputs: Arrays) -> Arrays:
        """Run once; returns outputs and inout arrays by name. Must not change `runtime` inputs."""

    def start(self, config: dict[str, Any]) -> Session:
        """Start an engine. Raises `ValueError` with one line that says what is wrong and what to do."""
