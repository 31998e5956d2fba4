"""Comparing what the ranks gave with what each must give. Pure numpy; all of it happens in the parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feedback.operators.checks import axis_names, same_bits
from feedback.operators.patterns import ErrorPattern, compare
from feedback.target import Arrays, OperatorInfo, Tolerance
from feedback.verdict import Location

Kind = Literal["failure", "mutation", "stale", "shape", "error", "copies", "repeat"]

#: In the order in which they are told: an earlier one explains the later ones.
ORDER: tuple[Kind, ...] = ("failure", "mutation", "stale", "shape", "error", "copies", "repeat")

Steps = dict[str, Arrays]


@dataclass(frozen=True)
class Question:
    """What each rank is given and must give; fields as `feedback.target.Sharded.sharded_question` has them."""

    pieces: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]
    steps: tuple[Steps, ...] | None
    copies: tuple[Arrays, ...]


@dataclass(frozen=True)
class Answer:
    """What came of a run; fields as `feedback.target.Sharded.sharded_run` has them."""

    ranks: tuple[Arrays, ...] = ()
    steps: tuple[Steps, ...] = ()
    changed: tuple[tuple[str, ...], ...] = ()
    used: tuple[str, ...] = ()
    failed: str = ""
    at: Location | None = None


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with one answer. `ranks` are those that it is wrong on, `pattern` is of the worst."""

    kind: Kind
    text: str
    ranks: tuple[int, ...] = ()
    tensor: str = ""
    pattern: ErrorPattern | None = None
    at: Location | None = None


def judge(info: OperatorInfo, question: Question, answer: Answer, tolerance: Tolerance) -> Fault | None:
    """The first thing that is wrong with an answer, or None."""
    if answer.failed:
        return Fault("failure", answer.failed, at=answer.at)
    for rank, (got, want) in enumerate(zip(answer.ranks, question.expected, strict=True)):
        problem = _signature(info, got, want)
        if problem:
            return Fault("shape", f"rank {rank} {problem}", (rank,))
    changed = {name: rank for rank, names in reversed(list(enumerate(answer.changed))) for name in names}
    if changed:
        rank = min(changed.values())
        return Fault("mutation", f"rank {rank} changes its input {', '.join(sorted(changed))}", (rank,))
    return _wrong(info, question, answer, tolerance) or _copies(question, answer)


def _signature(info: OperatorInfo, got: Arrays, want: Arrays) -> str | None:
    """What is wrong with names, shapes or types of one rank's results."""
    missing = sorted(want.keys() - got.keys())
    if missing:
        return f"gives no {', '.join(missing)}"
    kinds = {tensor.name: "float32" if tensor.dtype == "compute" else tensor.dtype for tensor in info.tensors}
    for name, array in want.items():
        if got[name].shape != array.shape:
            return f"gives {name} of shape {list(got[name].shape)}, not {list(array.shape)}"
        if got[name].dtype.name != kinds[name]:
            return f"gives {name} as {got[name].dtype.name}, not {kinds[name]}"
    return None


def _wrong(info: OperatorInfo, question: Question, answer: Answer, tolerance: Tolerance) -> Fault | None:
    """The result with the worst error on the first tensor that is wrong on any rank."""
    for tensor in info.tensors:
        if tensor.name not in question.expected[0]:
            continue
        found = {
            rank: pattern
            for rank, (got, want) in enumerate(zip(answer.ranks, question.expected, strict=True))
            if (pattern := compare(got[tensor.name], want[tensor.name], tolerance, axis_names(tensor))) is not None
        }
        if found:
            worst = max(found, key=lambda rank: (found[rank].worst, -rank))
            text = f"{tensor.name} wrong on {ranks_in_words(list(found), len(answer.ranks))}"
            return Fault("error", text, tuple(found), tensor.name, found[worst])
    return None


def _copies(question: Question, answer: Answer) -> Fault | None:
    """Ranks that hold the same elements must hold the same bits: what they compute of them next would differ."""
    for name in question.copies[0] if question.copies else ():
        size = 1 + max((int(places[name].max(initial=-1)) for places in question.copies), default=-1)
        kind = answer.ranks[0][name].dtype
        whole, seen = np.zeros(size, kind), np.zeros(size, bool)
        for rank, places in enumerate(question.copies):
            where, values = places[name].ravel(), answer.ranks[rank][name].ravel()
            again = seen[where]
            if not same_bits(whole[where][again], values[again]):
                text = f"ranks that hold the same elements of {name} have different values"
                return Fault("copies", text, (rank,), name)
            whole[where], seen[where] = values, True
    return None


def repeats(info: OperatorInfo, first: Answer, again: Answer) -> Fault | None:
    """The same input must give the same bits, where the operator is deterministic."""
    if not info.deterministic:
        return None
    for rank, (one, other) in enumerate(zip(first.ranks, again.ranks, strict=True)):
        differing = [name for name in one if not same_bits(one[name], other[name])]
        if differing:
            return Fault("repeat", f"the same input gave different {', '.join(differing)} in two calls", (rank,))
    return None


def stale(answer: Answer, earlier: Sequence[Answer]) -> Fault | None:
    """Whether a wrong answer is, to the bit, one that was given to other inputs before."""
    for other in earlier:
        if len(other.ranks) == len(answer.ranks) and any(answer.ranks):
            pairs = list(zip(answer.ranks, other.ranks, strict=True))
            if all(one.keys() == two.keys() and all(same_bits(one[n], two[n]) for n in one) for one, two in pairs):
                return Fault("stale", "returned the result of an earlier call with other inputs")
    return None


def relative_error(info: OperatorInfo, question: Question, answer: Answer) -> float:
    """Largest |error| of any result over the usual size of the outputs; infinite for an answer without results."""
    if answer.failed:
        return float("inf")
    outputs = {tensor.name for tensor in info.tensors if tensor.kind == "output"}
    worst, sizes = 0.0, []
    for got, want in zip(answer.ranks, question.expected, strict=True):
        for name, array in want.items():
            if array.dtype.kind != "f" or not array.size or name not in got or got[name].shape != array.shape:
                continue
            with np.errstate(invalid="ignore"):
                off = np.where(got[name] == array, 0.0, np.abs(got[name].astype(np.float64) - array))
            worst = max(worst, float(np.nan_to_num(off, nan=np.inf).max()))
            if name in outputs or not outputs:  # places of a state that nobody owns hold large values
                sizes.append(float(np.sqrt(np.mean(np.square(array[np.isfinite(array)])))))
    size = max(sizes, default=0.0)
    return worst / size if size else worst


def ratio_of(question: Question, answer: Answer, tolerance: Tolerance) -> float:
    """Largest |error| / allowed error of any floating result."""
    if answer.failed:
        return float("inf")
    worst = 0.0
    for got, want in zip(answer.ranks, question.expected, strict=True):
        for name, array in want.items():
            if name not in got or got[name].shape != array.shape:
                return float("inf")
            if array.dtype.kind != "f" or not array.size:
                continue
            room = tolerance.atol + tolerance.rtol * np.abs(array)
            with np.errstate(invalid="ignore", divide="ignore"):
                off = np.where(got[name] == array, 0.0, np.abs(got[name].astype(np.float64) - array) / room)
            worst = max(worst, float(np.nan_to_num(off, nan=np.inf).max()))
    return worst


def ranks_in_words(ranks: Sequence[int], size: int) -> str:
    """`all 4 ranks`, `rank 2 of 4`, `ranks 1-3 of 4`, `ranks 0, 2 of 4`."""
    if len(ranks) == size:
        return f"all {size} ranks"
    ordered = sorted(ranks)
    run = len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1))
    spelled = f"{ordered[0]}-{ordered[-1]}" if run else ", ".join(map(str, ordered))
    return f"rank{'s' * (len(ordered) > 1)} {spelled} of {size}"
