"""Comparing what an operator did with what it should have done. Pure numpy; everything here happens in the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feedback.operators.patterns import ErrorPattern, compare
from feedback.target import Arrays, OperatorInfo, Tensor, Tolerance

#: In the order in which they are told: an earlier one explains the later ones.
Kind = Literal["failure", "shape", "mutation", "stale", "error", "weights", "repeat"]
ORDER: tuple[Kind, ...] = ("failure", "shape", "mutation", "stale", "error", "weights", "repeat")


@dataclass(frozen=True)
class Deviation:
    """One thing that is wrong in one case. `text` is a phrase; `pattern` is there for numerical errors."""

    kind: Kind
    case: str
    text: str
    pattern: ErrorPattern | None = None


@dataclass(frozen=True)
class Call:
    """One call: the inputs that the parent wrote, those among them that were written to, and the results."""

    given: Arrays
    mutated: tuple[str, ...]
    results: Arrays


def signature_problem(info: OperatorInfo, results: Arrays, expected: Arrays) -> str | None:
    """What is wrong with names, shapes or types of one call's results, or None."""
    missing = sorted(expected.keys() - results.keys())
    if missing:
        return f"returned no {', '.join(missing)}"
    for tensor in info.tensors:
        if tensor.name not in expected:
            continue
        got, want = results[tensor.name], expected[tensor.name]
        if got.shape != want.shape:
            return f"{tensor.name} has shape {list(got.shape)}, expected {list(want.shape)}"
        wanted = "float32" if tensor.dtype == "compute" else tensor.dtype
        if got.dtype.name != wanted:
            return f"{tensor.name} is {got.dtype.name}, expected {wanted}"
    return None


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal byte for byte: NaN equals the same NaN, 0.0 differs from -0.0."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


def errors(
    info: OperatorInfo, results: Arrays, expected: Arrays, tolerance: Tolerance
) -> list[tuple[str, ErrorPattern]]:
    """(tensor, pattern) of every result outside the tolerance. Names, shapes and types must agree."""
    found = []
    for tensor in info.tensors:
        if tensor.name in expected:
            pattern = compare(results[tensor.name], expected[tensor.name], tolerance, axis_names(tensor))
            if pattern is not None:
                found.append((tensor.name, pattern))
    return found


def axis_names(tensor: Tensor) -> tuple[str, ...]:
    """How the axes of a result are called: its own axis names in two dimensions are rows and columns."""
    return ("",) * len(tensor.shape) if len(tensor.shape) <= 2 else tuple(str(axis) for axis in tensor.shape)


def worst_ratio(results: Arrays, expected: Arrays, tolerance: Tolerance) -> float:
    """Largest |error| / allowed error over all floating results; infinite where one is not finite and should be."""
    worst = 0.0
    for name, want in expected.items():
        if want.dtype.kind != "f" or not want.size:
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(results[name].astype(np.float64) - want) / (tolerance.atol + tolerance.rtol * np.abs(want))
        off = np.where(results[name] == want, 0.0, off)
        worst = max(worst, float(np.nan_to_num(off, nan=np.inf).max()))
    return worst


def judge_case(
    info: OperatorInfo,
    case: str,
    calls: Sequence[Call],
    expected: Sequence[Arrays],
    inputs: Sequence[str],
    tolerance: Tolerance,
) -> list[Deviation]:
    """Everything wrong with the calls of one handle, in the order of `ORDER`.

    `expected[i]` belongs to call i and `inputs[i]` names its input set, for example A, B, A, B. Calls on equal inputs
    must give equal bits when the operator is deterministic, and an output that is right for an earlier call's input is
    told as such.
    """
    for call, want in zip(calls, expected, strict=True):
        problem = signature_problem(info, call.results, want)
        if problem:
            return [Deviation("shape", case, problem)]
    found: list[Deviation] = []
    changed = sorted({name for call in calls for name in call.mutated})
    if changed:
        found.append(Deviation("mutation", case, f"changes its input {', '.join(changed)}"))
    for index, (call, want) in enumerate(zip(calls, expected, strict=True)):
        wrong = errors(info, call.results, want, tolerance)
        if not wrong:
            continue
        earlier = _earlier(call.results, calls[:index], inputs[:index], inputs[index])
        name, pattern = wrong[0]
        if earlier:
            found.append(
                Deviation("stale", case, f"returned the result of an earlier call with other inputs ({name})", pattern)
            )
        else:
            found.append(Deviation("error", case, f"{name}: {pattern.text()}", pattern))
        break
    if info.deterministic and not found:
        first: dict[str, Arrays] = {}
        for call, label in zip(calls, inputs, strict=True):
            known = first.setdefault(label, call.results)
            differing = [name for name in known if not same_bits(known[name], call.results[name])]
            if differing:
                text = f"the same input gave different {', '.join(differing)} in two calls"
                found.append(Deviation("repeat", case, text))
                break
    return sorted(found, key=lambda deviation: ORDER.index(deviation.kind))


def _earlier(results: Arrays, calls: Sequence[Call], inputs: Sequence[str], own: str) -> bool:
    others = [call for call, label in zip(calls, inputs, strict=True) if label != own]
    return any(all(same_bits(results[n], call.results[n]) for n in results if n in call.results) for call in others)


def tolerance_for(info: OperatorInfo, dtype: str) -> Tolerance | None:
    """The tolerance of a compute type, or the only one there is."""
    known: Mapping[str, Tolerance] = info.tolerance
    if dtype in known:
        return known[dtype]
    return next(iter(known.values())) if len(known) == 1 else None
