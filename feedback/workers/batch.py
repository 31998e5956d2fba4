"""The layout of a timed batch in shared memory, the same on both sides.

The parent writes input sets and poisoned output slots, the worker calls the operator once per slot. Each call has its
own slot, so that the outputs of every timed call can be verified, and no result can stand in for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .memory import aligned

Arrays = dict[str, np.ndarray]
#: Name -> (dtype, shape) of the results of one call.
Signature = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Place:
    """One array in the segment."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its length."""
        count = 1
        for n in self.shape:
            count *= n
        return count * np.dtype(self.dtype).itemsize

    def view(self, segment: memoryview) -> np.ndarray:
        """The array over the segment's memory, writable where the segment is."""
        if self.bytes == 0:
            return np.empty(self.shape, self.dtype)
        flat = np.frombuffer(segment, self.dtype, self.bytes // np.dtype(self.dtype).itemsize, self.offset)
        return flat.reshape(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where everything lies. `outputs[i]` belongs to call i, which reads `inputs[order[i]]`."""

    size: int
    inputs: tuple[dict[str, Place], ...]
    outputs: tuple[dict[str, Place], ...]
    order: tuple[int, ...]

    @classmethod
    def plan(cls, inputs: Sequence[Arrays], signature: Signature, repeat: int) -> Layout:
        """Sets in turn, `repeat` rounds; `signature` is name -> (dtype, shape) of one call's results."""
        end = 0

        def place(dtype: str, shape: tuple[int, ...]) -> Place:
            nonlocal end
            made = Place(dtype, shape, end)
            end += aligned(made.bytes)
            return made

        sets = tuple({name: place(a.dtype.name, a.shape) for name, a in arrays.items()} for arrays in inputs)
        order = tuple(index for _ in range(repeat) for index in range(len(inputs)))
        slots = tuple({name: place(*what) for name, what in signature.items()} for _ in order)
        return cls(max(end, 1), sets, slots, order)

    def to_json(self) -> dict[str, Any]:
        """As it crosses the wire."""

        def rows(parts: Sequence[dict[str, Place]]) -> list[dict[str, list[Any]]]:
            return [{name: [p.dtype, list(p.shape), p.offset] for name, p in part.items()} for part in parts]

        return {
            "size": self.size,
            "inputs": rows(self.inputs),
            "outputs": rows(self.outputs),
            "order": list(self.order),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """Read `to_json` back (the worker trusts the parent)."""

        def parts(rows: list[dict[str, list[Any]]]) -> tuple[dict[str, Place], ...]:
            return tuple({name: Place(d, tuple(s), o) for name, (d, s, o) in row.items()} for row in rows)

        return cls(data["size"], parts(data["inputs"]), parts(data["outputs"]), tuple(data["order"]))

    def views(self, segment: memoryview) -> tuple[list[Arrays], list[Arrays]]:
        """Input sets and output slots over the segment's memory."""
        return (
            [{name: p.view(segment) for name, p in part.items()} for part in self.inputs],
            [{name: p.view(segment) for name, p in part.items()} for part in self.outputs],
        )


def poison(array: np.ndarray) -> None:
    """Fill with what no right result holds: NaN, the smallest integer, True."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    else:
        array.fill(np.iinfo(array.dtype).min if array.dtype.kind == "i" else np.iinfo(array.dtype).max)
