"""Inputs of operators as a running model has them, whole and on one rank: to try cuts on values that nobody drew.

Not for an agent to edit: a judge compares with what comes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from target_engine.engine import Engine
from target_engine.execution.runner import Runner
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.ops.registry import specification
from target_engine.ops.specification import Arrays, Case
from target_engine.parallel.simulate import to_array
from target_engine.scheduling.request import SamplingParams

DECODES = 2
"""Steps after the prompt, so that the operators of a decode step are called too."""

LARGEST = 16 << 20
"""Bytes of one call's inputs: larger ones (a vocabulary's table) are left out."""


class _Keeping:
    """An operator that keeps the inputs of its first call."""

    def __init__(self, operator: str, constants: dict[str, Tensor], implementation: Callable[..., Any]) -> None:
        self.operator, self.constants, self.implementation = operator, constants, implementation
        self.inputs: dict[str, Tensor] | None = None

    def __call__(self, *arguments: Tensor) -> Any:
        if self.inputs is None:
            names = [tensor.name for tensor in specification(self.operator).named("runtime", "inout")]
            given = dict(zip(names, arguments, strict=True)) | self.constants
            size = sum(tensor.numel() * tensor.element_size() for tensor in given.values())
            self.inputs = {} if size > LARGEST else {name: tensor.clone() for name, tensor in given.items()}
        return self.implementation(*arguments)


class CapturingRunner(Runner):
    """A runner whose operators keep what they are given first; `kept` has them in the order in which they were made."""

    kept: list[_Keeping]

    def build(self, operator: str, **constants: Tensor) -> _Keeping:
        """The chosen implementation around its constants, which keeps its first inputs."""
        if not hasattr(self, "kept"):
            self.kept = []
        self.kept.append(_Keeping(operator, constants, super().build(operator, **constants)))
        return self.kept[-1]


def captured(config: LaunchConfig, tokens: Sequence[int]) -> tuple[list[tuple[str, Case, Arrays]], list[str]]:
    """(operator, case, inputs) of the first and the last place of the model that calls each operator, for one greedy
    request with these tokens; and the operators that were left out, because their inputs are too large or they were not
    called. The ranks of the configuration are not looked at: the model runs whole.
    """
    whole = config.model_copy(update={"tp": 1, "cp": 1, "layer_split": False, "max_batch": 1, "num_blocks": 0})
    engine = Engine(whole, runner=CapturingRunner.open)
    try:
        sampling = SamplingParams(max_tokens=DECODES + 1, ignore_eos=True)
        engine.add_request("captured", list(tokens), sampling)
        while engine.has_work:
            engine.step()
        kept: list[_Keeping] = engine.runner.kept  # type: ignore[attr-defined]
        found, left_out = [], []
        for operator in dict.fromkeys(each.operator for each in kept):
            places = [each for each in kept if each.operator == operator]
            chosen = {index: places[index] for index in (0, len(places) - 1) if places[index].inputs}
            if not chosen:
                left_out.append(operator)
            for index, place in chosen.items():
                inputs = {name: to_array(tensor) for name, tensor in (place.inputs or {}).items()}
                dims = _dims(operator, inputs, engine.model_config)
                found.append((operator, Case(f"captured-{index}", dims, "captured", ("captured",)), inputs))
        return found, left_out
    finally:
        engine.close()


def _dims(operator: str, inputs: Arrays, model: ModelConfig) -> dict[str, int]:
    """Sizes of an operator's axes, and the model's heads, which cuts fall between."""
    spec = specification(operator)
    sizes: dict[str, int] = {}
    for tensor in spec.tensors:
        if tensor.name in inputs:
            axes = zip(tensor.shape, inputs[tensor.name].shape, strict=True)
            sizes |= {axis: size for axis, size in axes if isinstance(axis, str)}
    heads = {"H": model.linear_num_heads if spec.linear else model.num_heads}
    if model.num_heads * model.head_dim in sizes.values():  # the width of all heads of attention
        heads |= {"G": model.num_kv_heads, "D": model.head_dim}
    return heads | sizes
