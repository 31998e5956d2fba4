"""The target protocol: all that the judging side knows of the thing it judges. A frozen contract (version 2).

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
* Version 2 adds what a target that runs over several ranks may answer besides (`Sharded`), and takes nothing away: a
  target of version 1, or one that has none of these methods, is whole. What they would have answered is `unsupported`
  then. They are methods of their own, since what a rank must give cannot be told from the whole operator: only the
  target knows how it cuts its inputs. The trusted side cuts them (`sharded_question`); the side that is judged gets
  the pieces and no expected value (`sharded_run`).

Array convention: numpy, C order. bfloat16 has no numpy type, so half-width values cross the wire as float32.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

PROTOCOL_VERSION = 2

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


class PlanRow(Wire):
    """One operator in one phase under one cut. `sharding` None: nothing is cut, for the reason in `note`.

    `shapes` are those that the cut divides, `local` those of rank 0; `reference` names the unsharded path, `tolerance`
    how far from it the pieces may be when they are put together.
    """

    operator: str
    role: str
    phase: str
    layers: int
    implementation: str
    axis: Literal["tp", "cp"] | None
    sharding: str | None
    ranks: int
    shapes: dict[str, tuple[int, ...]]
    local: dict[str, tuple[int, ...]]
    cuts: dict[str, str]
    collective: str
    steps: tuple[str, ...]
    reference: str
    tolerance: Tolerance | None
    note: str = ""


class OperatorPlan(Wire):
    """Which operators a launch configuration runs and how each is cut; or `problems`, for which it cannot run.

    `unsharded` is the launch configuration of the path that everything must equal: the same on one rank.
    """

    rows: tuple[PlanRow, ...]
    problems: tuple[ConfigProblem, ...] = ()
    unsharded: dict[str, Any]


class ShardingInfo(Wire):
    """One way to cut an operator over ranks: `tp` shares out heads, columns or vocabulary, `cp` tokens or layers.

    `steps` are the named inner steps of the combination in order, the last of them the outputs; `uneven`: cuts may be
    uneven and pieces empty; `file` is the combining code; `cases` are input conditions of the configured model's own
    numbers of heads, to be checked besides the operator's.
    """

    name: str
    axis: Literal["tp", "cp"]
    cuts: dict[str, str]
    collective: str
    steps: tuple[str, ...] = Field(min_length=1)
    tolerance: dict[str, Tolerance]
    uneven: bool = False
    file: str = ""
    cases: tuple[Case, ...] = ()


class Shardings(Wire):
    """All ways to cut an operator, or the reason why it is never cut."""

    shardings: tuple[ShardingInfo, ...]
    unsharded: str = ""


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


@runtime_checkable
class Sharded(Protocol):
    """What a target that runs over several ranks may answer besides `Target` (version 2; all optional)."""

    def operator_plan(self, config: dict[str, Any]) -> dict[str, Any]:
        """`OperatorPlan` fields. Fast: no weights are read."""

    def operator_shardings(self, operator: str, config: dict[str, Any]) -> dict[str, Any]:
        """`Shardings` fields."""

    def sharded_question(
        self,
        operator: str,
        sharding: str,
        case: dict[str, Any],
        config: dict[str, Any],
        inputs: Arrays,
        ranks: int,
        cut: int,
    ) -> dict[str, Any]:
        """Whole inputs cut over ranks; called on the trusted checkout only.

        `pieces`: each rank's inputs, with whatever it must know of the cut. `expected`: each rank's outputs and inout
        arrays, float64 where floating. `steps`: each rank's arrays by step and name, from the whole inputs and not by
        the combining code; None where the reference has no inner steps. `copies`: for results of which several ranks
        hold the same elements, each rank's places in the whole (integers of the result's shape). Or `refused`, the
        reason why these sizes cannot be cut so. `cut` 0 is the cut that the engine makes; any other number, where cuts
        may be uneven, another one.
        """

    def captured_inputs(self, config: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
        """`calls`: `operator`, `case` (`Case` fields) and whole `inputs`, constants included, as the running model gave
        them to its operators for these tokens, a few calls an operator; called on the trusted checkout only.
        `left_out` names operators of which none could be kept.
        """

    def sharded_run(
        self,
        operator: str,
        sharding: str,
        case: dict[str, Any],
        config: dict[str, Any],
        pieces: list[Arrays],
        options: dict[str, Any],
    ) -> dict[str, Any]:
        """Run the engine's own combining code over simulated ranks; called on the candidate.

        `ranks`: each one's outputs and inout arrays; `steps`: what each recorded; `changed`: the names of inputs that
        it wrote to; `used`: operators that the combining code ran. Or `failed`, one line that names the rank, with `at`
        (file, line) and the steps that were reached. Options: `exact`, operators to run as references in float64 (`*`:
        all); `wide`, all floating inputs in float64; `patience`, how long a rank may keep the others waiting; `serial`,
        one rank at a time computes.
        """

    def unavailable_operators(self, config: dict[str, Any], operators: list[str]) -> dict[str, str]:
        """Operators whose chosen implementation cannot run on this machine, with the reason."""

    def start_simulated(self, config: dict[str, Any]) -> Session:
        """As `start`, with all ranks in this process. The session may have `hidden(tokens, layer)`, which returns
        `layers` (their number) and `hidden` float32 [tokens, size], what enters that layer.
        """
