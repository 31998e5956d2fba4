"""Finds operators and their implementations by looking at the folders. Torch-free until an implementation is built."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from target_engine.errors import EngineError
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import OperatorSpec

OPS = Path(__file__).parent
_NOT_IMPLEMENTATIONS = {"__init__", "spec", "reference"}


def operator_names() -> tuple[str, ...]:
    """Every folder with a `spec.py`, sorted."""
    return tuple(sorted(path.parent.name for path in OPS.glob("*/spec.py")))


def implementations(operator: str) -> tuple[str, ...]:
    """Names of an operator's implementation files, `torch` first."""
    stems = {path.stem for path in (OPS / operator).glob("*.py")} - _NOT_IMPLEMENTATIONS
    return tuple(sorted((stem for stem in stems if not stem.startswith("_")), key=lambda stem: (stem != "torch", stem)))


def problem_with_choice(operator: str, implementation: str) -> str | None:
    """Why this operator cannot run this implementation, or None."""
    if operator not in operator_names():
        return f"unknown operator; known are {', '.join(operator_names())}"
    if implementation not in implementations(operator):
        return f"no implementation {implementation!r}; there are {', '.join(implementations(operator))}"
    return None


def specification(operator: str) -> OperatorSpec:
    """The operator's specification."""
    return importlib.import_module(f"target_engine.ops.{operator}.spec").SPEC


def reference(operator: str) -> Any:
    """The operator's reference function: `reference(settings, **arrays) -> {output name: array}`."""
    return importlib.import_module(f"target_engine.ops.{operator}.reference").reference


def build(operator: str, implementation: str, settings: OperatorSettings, **constants: Any) -> Any:
    """An implementation around its constants. Raises `EngineError` when it does not exist or cannot run on this
    machine.

    A module may define `unavailable(dtype) -> str | None` to say why this machine cannot run it in a compute type.
    """
    problem = problem_with_choice(operator, implementation)
    if problem:
        raise EngineError(f"operators.{operator}: {problem}")
    module = importlib.import_module(f"target_engine.ops.{operator}.{implementation}")
    reason = module.unavailable(settings.dtype) if hasattr(module, "unavailable") else None
    if reason:
        others = ", ".join(name for name in implementations(operator) if name != implementation)
        raise EngineError(
            f"operators.{operator}: {implementation} cannot run on this machine: {reason}; choose one of {others}"
        )
    return module.Implementation(settings, **constants)
