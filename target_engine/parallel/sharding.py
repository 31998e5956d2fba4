"""How an operator is cut over ranks: a description that the plan prints, checks run, and the engine cuts weights by.

Torch-free, and not for an agent to edit: it says what a sharded run must give. The code that combines the ranks' pieces
is `ops/<operator>/parallel.py`. A cut is told by axis letters of the operator's tensors (`TensorSpec.shape`): whatever
has a letter's axis is cut along it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from target_engine.ops.registry import specification
from target_engine.ops.specification import Arrays, Case, TensorSpec, Tolerance
from target_engine.parallel.cutting import Whole, shard_lengths, span, take, token_index

Dims = Mapping[str, int]
Parts = dict[str, np.ndarray]
"""Axis letter -> indices of the elements that a rank has, in its order; a letter that is missing is not cut."""

EXACT = {
    dtype: Tolerance(0.0, 0.0, "values are copied, or added to zeros: nothing is rounded")
    for dtype in ("float32", "bfloat16")
}
"""Tolerance where a cut moves values and computes none."""

ALONE = {
    "float32": Tolerance(
        1e-6, 2e-6, "every element is computed as before; a kernel may take another path for another size"
    ),
    "bfloat16": Tolerance(1e-3, 8e-3, "a rounding to 8 significant bits may fall the other way"),
}
"""Tolerance where every element is still computed whole by one rank, without long sums."""

ATTENTION = {
    "float32": Tolerance(
        2e-5, 2e-5, "each head of a token is attended whole by one rank, in another grouping of float32 sums"
    ),
    "bfloat16": Tolerance(2e-2, 2e-2, "weights are rounded to 8 significant bits, in another grouping of sums"),
}
"""Tolerance where attention is cut by heads, tokens or layers and nothing of one head and token is shared out."""

RECURRENCE = {
    "float32": Tolerance(
        1e-5, 1e-5, "the recurrence of a head stays on one rank; products may be grouped in another way"
    ),
    "bfloat16": Tolerance(5e-3, 2e-2, "outputs are rounded to 8 significant bits, the state is float32"),
}
"""Tolerance where linear attention is cut by heads."""


@dataclass(frozen=True)
class Sharding:
    """One way to run an operator over several ranks."""

    operator: str
    name: str
    axis: Literal["tp", "cp"]
    cuts: dict[str, str]
    """Tensor -> how it is cut, in words."""
    collective: str
    steps: tuple[str, ...]
    """Named inner steps in order, as `ops/<operator>/parallel.py` records them; the last is the outputs."""
    tolerance: dict[str, Tolerance]
    """Sharded against unsharded, by compute type."""
    parts: Callable[[Dims, int, int], Parts]
    """`parts(dims, ranks, rank)`: what a rank has of every cut axis, when tokens are cut evenly."""
    refusal: Callable[[Dims, int], str | None] = field(default=lambda dims, ranks: None)
    whole: frozenset[str] = frozenset()
    """Tensors that are not cut although they have a cut axis."""
    extras: Callable[[Dims, int, int], Arrays] = field(default=lambda dims, ranks, rank: {})
    """What a rank must know of the cut besides its piece."""
    by_tokens: bool = False
    owned: frozenset[str] = frozenset()
    """Tensors that one rank, `owner`, keeps whole while the others keep none of their rows (the first axis)."""

    def ranks(self, dims: Dims, ranks: int) -> str | None:
        """Why these sizes cannot be cut over so many ranks, or None."""
        return self.refusal(dims, ranks)

    def dims(self, dims: Dims, ranks: int, rank: int) -> dict[str, int]:
        """Sizes of one rank's piece."""
        return {**dims, **{letter: len(part) for letter, part in self.parts(dims, ranks, rank).items()}}

    def split(self, case: Case, arrays: Arrays, ranks: int, seed: int = 0) -> list[Arrays]:
        """The inputs of each rank, and the extras. Context cuts are even for seed 0, and uneven with empty pieces for
        any other.
        """
        lengths = shard_lengths(_runs(case, arrays), ranks, seed) if self.by_tokens else None
        keeper = (case.dims.get("N", case.dims.get("B", 0)) + seed) % ranks
        split = []
        for rank in range(ranks):
            parts = self._parts(case.dims, ranks, rank, lengths)
            mine = {
                tensor.name: self._piece(tensor, arrays[tensor.name], parts, rank == keeper)
                for tensor in specification(self.operator).named("constant", "runtime", "inout")
            }
            mine |= self.extras(case.dims, ranks, rank)
            if lengths is not None:
                mine["shard_lengths"] = lengths.copy()
            if self.owned:
                mine["owner"] = np.array([keeper], np.int64)
            split.append(mine)
        return split

    def join(self, case: Case, ranks: list[Arrays]) -> Arrays:
        """Whole outputs and inout arrays. `ranks` holds each rank's inputs of `split`, updated by its outputs."""
        lengths = ranks[0].get("shard_lengths")
        joined = {}
        for tensor in specification(self.operator).named("output", "inout"):
            shape = [case.dims[axis] if isinstance(axis, str) else axis for axis in tensor.shape]
            whole = Whole(shape, ranks[0][tensor.name].dtype)
            for rank, mine in enumerate(ranks):
                if tensor.name in self.owned and rank != int(mine["owner"][0]):
                    continue
                parts = {} if tensor.name in self.whole else self._parts(case.dims, len(ranks), rank, lengths)
                index = tuple(
                    parts.get(str(axis), np.arange(size)) for axis, size in zip(tensor.shape, shape, strict=True)
                )
                wanted = tuple(map(len, index))
                if mine[tensor.name].shape != wanted:
                    raise ValueError(
                        f"{self.operator}, {self.name} over {len(ranks)} ranks: {tensor.name} of rank {rank} has the "
                        f"shape {list(mine[tensor.name].shape)}, not {list(wanted)}"
                    )
                whole.put(mine[tensor.name], index)
            joined[tensor.name] = whole.result()
        return joined

    def _parts(self, dims: Dims, ranks: int, rank: int, lengths: np.ndarray | None) -> Parts:
        return self.parts(dims, ranks, rank) if lengths is None else {"N": token_index(lengths, rank)}

    def _piece(self, tensor: TensorSpec, array: np.ndarray, parts: Parts, keeps: bool) -> np.ndarray:
        """A rank's piece of one tensor."""
        if tensor.name in self.owned:
            return array.copy() if keeps else array[:0].copy()
        return array.copy() if tensor.name in self.whole else take(array, tensor.shape, parts)


def _runs(case: Case, arrays: Arrays) -> list[int]:
    """Lengths of the runs of tokens that a case has; two runs where the operator does not know of runs."""
    if "query_starts" in arrays:
        return np.diff(arrays["query_starts"]).tolist()
    count = case.dims["N"]
    return [count // 2, count - count // 2]


def words(cut: str, tensors: Iterable[str], replicated: Iterable[str] = ()) -> dict[str, str]:
    """`cuts` of tensors that are all cut in the same way, and of those that every rank has."""
    return dict.fromkeys(tensors, cut) | dict.fromkeys(replicated, "replicated")


def share(letter: str) -> Callable[[Dims, int, int], Parts]:
    """Parts of one axis, as even as possible."""
    return lambda dims, ranks, rank: {letter: span(dims[letter], ranks, rank)}


def at_most(letter: str, things: str) -> Callable[[Dims, int], str | None]:
    """Refuses more ranks than an axis has elements."""

    def refusal(dims: Dims, ranks: int) -> str | None:
        return f"{ranks} ranks are more than the {dims[letter]} {things}" if ranks > dims[letter] else None

    return refusal


def rows(
    operator: str, tensors: Iterable[str], tolerance: dict[str, Tolerance], replicated: Iterable[str] = ()
) -> Sharding:
    """Context parallel for an operator that computes each token alone: a rank has its tokens, nothing is combined."""
    return Sharding(
        operator=operator,
        name="context",
        axis="cp",
        cuts=words("tokens N", tensors, replicated),
        collective="none",
        steps=("output",),
        tolerance=tolerance,
        parts=share("N"),
        by_tokens=True,
    )
