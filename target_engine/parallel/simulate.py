"""Runs one operator over simulated ranks, with the code that the engine itself combines with. Arrays in, arrays out.

Not for an agent to edit: what it returns is compared with the unsharded operator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.ops import registry
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays, Case, settings_of
from target_engine.parallel.collectives import Build, Group, simulate
from target_engine.parallel.combining import Combine
from target_engine.parallel.sharding import Sharding

BuildFor = Callable[[OperatorSettings], Build]


@dataclass(frozen=True)
class Outcome:
    """What simulated ranks gave: whole outputs and inout arrays, and for each rank its values after each step."""

    outputs: Arrays
    steps: list[dict[str, Arrays]]


def find_sharding(operator: str, name: str) -> Sharding:
    """A sharding by name; `EngineError` names those that there are."""
    found = registry.specification(operator).shardings
    for sharding in found:
        if sharding.name == name:
            return sharding
    known = ", ".join(sharding.name for sharding in found) or "none"
    raise EngineError(f"operators.{operator}: no sharding {name!r}; there are: {known}")


def combine(operator: str) -> Combine:
    """The operator's combining code."""
    return importlib.import_module(f"target_engine.ops.{operator}.parallel").run


def chosen(config: LaunchConfig) -> BuildFor:
    """Builds the implementations that a launch configuration chooses."""

    def for_settings(settings: OperatorSettings) -> Build:
        return lambda operator, **constants: registry.build(
            operator, config.implementation(operator), settings, **constants
        )

    return for_settings


def exact(settings: OperatorSettings) -> Build:
    """Builds every operator as its reference, in the type of its inputs (float64, to tell rounding from logic)."""

    def build(operator: str, **constants: Tensor) -> Callable[..., Any]:
        spec, reference = registry.specification(operator), registry.reference(operator)
        fixed = {name: tensor.numpy() for name, tensor in constants.items()}

        def call(*arguments: Tensor) -> Any:
            given = dict(zip((tensor.name for tensor in spec.named("runtime", "inout")), arguments, strict=True))
            found = reference(settings, **fixed, **{name: tensor.numpy() for name, tensor in given.items()})
            for tensor in spec.named("inout"):
                given[tensor.name].copy_(torch.from_numpy(found[tensor.name]))
            results = tuple(torch.from_numpy(np.ascontiguousarray(found[each.name])) for each in spec.named("output"))
            return results[0] if len(results) == 1 else results or None

        return call

    return build


def run_sharded(
    operator: str, name: str, case: Case, inputs: Arrays, ranks: int, dtype: str, build_for: BuildFor, *,
    seed: int = 0, timeout: float = 60.0,
) -> Outcome:  # fmt: skip
    """Cut `inputs` over `ranks` threads and combine what they compute. `dtype` is the compute type; under "float64" all
    floats are. Another `seed` than 0 cuts context unevenly. Raises `RankFailure` with one line when a rank fails.
    """
    sharding = find_sharding(operator, name)
    refused = sharding.ranks(case.dims, ranks)
    if refused:
        raise EngineError(f"operators.{operator}: {name} over {ranks} ranks: {refused}")
    split = sharding.split(case, inputs, ranks, seed)
    whole = settings_of(case.dims, dtype)
    steps: list[dict[str, Arrays]] = [{} for _ in range(ranks)]
    run = combine(operator)

    def body(group: Group) -> Arrays:
        mine = {name: to_tensor(operator, name, array, dtype) for name, array in split[group.rank].items()}
        settings = replace(settings_of(sharding.dims(case.dims, ranks, group.rank), dtype), rows=whole.rows)

        def record(step: str, tensors: dict[str, Tensor]) -> None:
            steps[group.rank][step] = {key: to_array(tensor) for key, tensor in tensors.items()}

        outputs = run(name, build_for(settings), settings, mine, group, record)
        record("output", outputs)
        return split[group.rank] | {key: to_array(tensor) for key, tensor in outputs.items()}

    return Outcome(sharding.join(case, simulate(ranks, body, timeout)), steps)


def run_whole(operator: str, case: Case, inputs: Arrays, dtype: str, build_for: BuildFor) -> Arrays:
    """The unsharded operator on the same inputs: outputs and inout arrays."""
    spec = registry.specification(operator)
    build = build_for(settings_of(case.dims, dtype))
    with torch.inference_mode():
        tensors = {name: to_tensor(operator, name, array, dtype) for name, array in inputs.items()}
        implementation = build(operator, **{each.name: tensors[each.name] for each in spec.named("constant")})
        result = implementation(*(tensors[each.name] for each in spec.named("runtime", "inout")))
    results = result if isinstance(result, tuple) else (result,)
    found = dict(zip((each.name for each in spec.named("output")), results, strict=False))
    found |= {each.name: tensors[each.name] for each in spec.named("inout")}
    return {name: to_array(tensor) for name, tensor in found.items()}


def to_tensor(operator: str, name: str, array: np.ndarray, dtype: str) -> Tensor:
    """A fresh tensor of an operator's input, or of what a rank must know of the cut."""
    tensor = torch.from_numpy(np.array(array))
    if array.dtype.kind != "f" or dtype == "float64":
        return tensor.double() if array.dtype.kind == "f" else tensor
    kinds = {each.name: each.dtype for each in registry.specification(operator).tensors}
    return tensor.to(getattr(torch, dtype if kinds[name] == "compute" else kinds[name]))


def to_array(tensor: Tensor) -> np.ndarray:
    """The values, copied; bfloat16 as float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().numpy().copy()
