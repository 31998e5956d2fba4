"""Finds operators and their implementations by looking at the folders. Torch-free until an implementation is built."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from target_engine.errors import EngineError
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import ModelSizes, OperatorSpec

OPS = Path(__file__).parent
_NOT_IMPLEMENTATIONS = {"__init__", "spec", "reference", "shardings", "parallel"}


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


def running(sizes: ModelSizes) -> tuple[str, ...]:
    """The operators that a model of these sizes runs, launched like this, sorted."""
    return tuple(name for name in operator_names() if specification(name).runs_in(sizes))


def reference(operator: str) -> Any:
    """The operator's reference function: `reference(settings, **arrays) -> {output name: array}`."""
    return importlib.import_module(f"target_engine.ops.{operator}.reference").reference


def build(operator: str, implementation: str, settings: OperatorSettings, **constants: Any) -> Any:
    """An implementation around its constants. Raises `EngineError` when it does not exist or cannot run on this
    machine.
    """
    problem = problem_with_choice(operator, implementation)
    if problem:
        raise EngineError(f"operators.{operator}: {problem}")
    reason = unavailable(operator, implementation, settings.dtype)
    if reason:
        others = ", ".join(name for name in implementations(operator) if name != implementation)
        raise EngineError(
            f"operators.{operator}: {implementation} cannot run on this machine: {reason}; choose one of {others}"
        )
    module = importlib.import_module(f"target_engine.ops.{operator}.{implementation}")
    return module.Implementation(settings, **constants)


def unavailable(operator: str, implementation: str, dtype: str) -> str | None:
    """Why this machine cannot run an implementation in this compute type, or None.

    Its module may define `unavailable(dtype) -> str | None`; one whose import fails lacks a library.
    """
    try:
        module = importlib.import_module(f"target_engine.ops.{operator}.{implementation}")
    except ImportError as error:
        return str(error)
    return module.unavailable(dtype) if hasattr(module, "unavailable") else None
