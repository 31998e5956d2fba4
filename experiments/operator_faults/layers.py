"""The layers that faults are shown to, cheapest first, and what their verdicts say about the place of a fault."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.operator_faults.faults import OPS, Fault
from experiments.operator_faults.schedules import PROBE as SCHEDULES
from feedback.probe import Context, Probe, Question, discover
from feedback.verdict import Location, Status, Verdict
from feedback.workers.failures import one_line

#: Launch parameters of all questions; one thread, since as many workers as cores may run.
PLAIN: dict[str, Any] = {"dtype": "float32", "max_batch": 4, "max_model_len": 256, "threads": 1}

#: More ranks than key-value heads, and a number of them that divides nothing.
RANKS = {"tp": 4, "cp": 3}
SPLIT = {"tp": 1, "cp": 3, "layer_split": True}
HALF = {"dtype": "bfloat16"}


@dataclass(frozen=True)
class Layer:
    """One probe under one launch configuration. `cp` 2 has the operators of context parallelism run alone too."""

    name: str
    probe: str
    launch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The launch configuration, without the model."""
        return PLAIN | dict(self.launch)


STATIC = Layer("static", "static", {"cp": 2})
OPERATORS = Layer("operators", "operators", {"cp": 2})
SHARDING = Layer("sharding", "sharding", RANKS)
LAYER_SPLIT = Layer("sharding, layer split", "sharding", SPLIT)
OPERATORS_HALF = Layer("operators, bfloat16", "operators", {"cp": 2, **HALF})
SHARDING_HALF = Layer("sharding, bfloat16", "sharding", RANKS | HALF)
KERNEL = Layer("kernels", "kernels", {"cp": 2})
SMOKE = Layer("smoke", "smoke")
SCHEDULE = Layer("schedules", "schedules")
#: Prefills in small chunks: steps in which some requests decode while others are still read.
MODEL = Layer("sharded model", "sharded_model", {"tp": 4, "cp": 2, "prefill_chunk": 16})

#: Cheapest first, as they were measured.
LAYERS: tuple[Layer, ...] = (
    STATIC,
    SMOKE,
    OPERATORS,
    SCHEDULE,
    SHARDING,
    LAYER_SPLIT,
    OPERATORS_HALF,
    SHARDING_HALF,
    KERNEL,
    MODEL,
)

#: Files outside the operators' folders that only the combining code of operators uses.
_COMBINING = "target_engine/parallel/tokens.py"


def adequate(fault: Fault) -> tuple[Layer, ...]:
    """The layers that a change of these files is shown to, in order; all of them for no change.

    A kernel that the launch configuration does not choose is for `kernels` alone, which interprets it. The first tokens
    of a started engine would refute most faults of an operator, and name none: such faults are not shown to `smoke`.
    Schedules come last for them, since a wrong operator is wrong under any.
    """
    paths = list(fault.files)
    if not paths:
        return available(LAYERS)
    if all(path.endswith("/triton.py") for path in paths):
        return available((STATIC, KERNEL))
    if all(path.startswith(OPS) or path == _COMBINING for path in paths):
        return available((STATIC, OPERATORS, SHARDING, LAYER_SPLIT, OPERATORS_HALF, SHARDING_HALF, SCHEDULE, MODEL))
    if all(path.startswith("target_engine/parallel/") for path in paths):
        return available((STATIC, SHARDING, LAYER_SPLIT, MODEL))
    return available((STATIC, SMOKE, SCHEDULE, MODEL))


def available(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Those whose probe there is."""
    known = probes()
    return tuple(layer for layer in layers if layer.probe in known)


def probes() -> dict[str, Probe]:
    """All probes by name, the one of schedules among them."""
    return {"schedules": SCHEDULES, **discover()}


@dataclass(frozen=True)
class Answer:
    """What one layer said: its line, and where it saw the fault."""

    layer: str
    status: str
    seconds: float
    line: str
    operator: str = ""
    step: str = ""
    file: str = ""
    evidence: str = ""

    @property
    def refuted(self) -> bool:
        """Whether it turned the fault down."""
        return self.status == Status.REFUTED.value

    @property
    def outcome(self) -> str:
        """A short class for tables of outcomes: what a person would go on with."""
        if not self.refuted:
            return self.status
        return f"refuted: {' '.join(filter(None, (self.operator, self.step))) or self.file or 'no place'}"


def ask(layer: Layer, question: Question, context: Context) -> Answer:
    """One layer asked, on the parent's clock."""
    began = time.perf_counter()
    try:
        verdict = probes()[layer.probe].run(question, context)
    except Exception as error:  # a probe that breaks has given no answer: that is told, and the rest goes on
        what = f"the probe broke: {type(error).__name__}: {one_line(str(error))}"
        return Answer(layer.name, Status.INVALID.value, time.perf_counter() - began, what)
    seconds = time.perf_counter() - began
    operator, step, file = place_in(verdict)
    return Answer(
        layer.name, verdict.status.value, seconds, verdict.line(), operator, step, file, verdict.evidence or ""
    )


def place_in(verdict: Verdict) -> tuple[str, str, str]:
    """(operator, step, file) that a refutation names first; a schedule's feature is its step."""
    if verdict.status is not Status.REFUTED or not verdict.at:
        return "", "", ""
    first: Location = verdict.at[0]
    phase = first.phase or ""
    step = phase.rpartition("step ")[2] if "step " in phase else phase if verdict.layer == "schedules" else ""
    return first.operator or "", step, first.file or ""


def localised(fault: Fault, answer: Answer) -> bool:
    """Whether a refutation names what was changed: the operator, and the step where the layer tells one; the feature
    of a schedule; for what the text alone shows, the file.
    """
    if answer.layer == STATIC.name:
        return answer.file in fault.files
    if answer.layer == SCHEDULE.name:
        return answer.step in fault.steps
    if not fault.operators:  # a fault of no operator: it is enough to be sent to the ranks
        return answer.layer == MODEL.name
    told = not answer.step or answer.step in fault.steps
    return answer.operator in fault.operators and told
