"""The oracle of a whole engine: a runner whose every operator is its plain reference, in float64.

It is slow and serves tests and judges. Rounding is far below any difference between two tokens, so what an engine
generates on it depends on nothing but the model: not on the batch, the chunks, preemption or what was cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from target_engine.execution.runner import Runner
from target_engine.launch import LaunchConfig
from target_engine.ops.registry import reference, specification
from target_engine.ops.settings import OperatorSettings


class ReferenceOperator:
    """An operator's reference function with the call of an implementation."""

    def __init__(self, operator: str, settings: OperatorSettings, constants: dict[str, Tensor]) -> None:
        self.specification = specification(operator)
        self.settings = settings
        self.constants = tuple(constants.values())  # tensors, so that their bytes are counted like an implementation's
        self._function = reference(operator)
        self._arrays = {name: _wide(tensor) for name, tensor in constants.items()}

    def __call__(self, *arguments: Tensor) -> Any:
        spec = self.specification
        given = dict(zip((tensor.name for tensor in spec.named("runtime", "inout")), arguments, strict=True))
        result = self._function(self.settings, **self._arrays, **{name: _wide(given[name]) for name in given})
        for tensor in spec.named("inout"):
            given[tensor.name].copy_(torch.from_numpy(result[tensor.name]))
        outputs = tuple(torch.from_numpy(np.ascontiguousarray(result[item.name])) for item in spec.named("output"))
        return outputs[0] if len(outputs) == 1 else outputs or None


class ReferenceRunner(Runner):
    """A runner on references: weights, caches and states in float64, whatever the launch configuration says."""

    state_dtype = torch.float64

    @staticmethod
    def dtype_of(config: LaunchConfig) -> torch.dtype:
        """float64."""
        return torch.float64

    def build(self, operator: str, **constants: Tensor) -> ReferenceOperator:
        """The operator's reference around its constants."""
        return ReferenceOperator(operator, self.settings, constants)


def _wide(tensor: Tensor) -> np.ndarray:
    """The values in float64 where they are floating."""
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
