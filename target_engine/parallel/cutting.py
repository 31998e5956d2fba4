"""Which part of an axis a rank has, and how parts are taken out of arrays and put together again. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LARGEST_TEST_HEAD = 16
"""Where a case names no head size, heads are taken to be at most this wide."""


def even(total: int, parts: int) -> list[int]:
    """`total` in `parts` sizes as equal as possible, the larger ones first; 0 where there is too little."""
    base, rest = divmod(total, parts)
    return [base + (part < rest) for part in range(parts)]


def span(total: int, parts: int, part: int) -> np.ndarray:
    """Indices of one of the `even` parts of 0 .. total-1."""
    sizes = even(total, parts)
    start = sum(sizes[:part])
    return np.arange(start, start + sizes[part])


def blocks(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices of the elements of blocks of `size`: block i is i * size .. (i + 1) * size - 1."""
    return (np.asarray(indices)[:, None] * size + np.arange(size)).reshape(-1)


def head_share(heads: int, kv_heads: int, ranks: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Query heads and key-value heads of a rank, in whole heads.

    Up to `kv_heads` ranks share out key-value heads with all their query heads. More ranks share out query heads, and
    each has its own copy of the key-value heads that these read; where its query heads do not read them evenly, one
    copy for each query head, so that grouped-query attention stays a plain division.
    """
    group = heads // kv_heads
    if ranks <= kv_heads:
        kv = span(kv_heads, ranks, rank)
        return blocks(kv, group), kv
    query = span(heads, ranks, rank)
    read, counts = np.unique(query // group, return_counts=True)
    return query, read if len(set(counts.tolist())) <= 1 else query // group


def head_size(*widths: int) -> int:
    """A head size that divides all widths: the largest one up to `LARGEST_TEST_HEAD`."""
    common = int(np.gcd.reduce(widths))
    return max(size for size in range(1, min(common, LARGEST_TEST_HEAD) + 1) if common % size == 0)


def shard_lengths(runs: Sequence[int], ranks: int, seed: int = 0) -> np.ndarray:
    """int64 [ranks, B]: how many tokens of run b lie on rank r, in order. Seed 0 cuts evenly, as the engine does; any
    other seed at random, so that pieces are uneven and often empty.
    """
    if seed == 0:
        columns = [even(length, ranks) for length in runs]
    else:
        rng = np.random.default_rng(seed)
        columns = [_random_parts(rng, length, ranks) for length in runs]
    return np.array(columns, np.int64).reshape(len(runs), ranks).T.copy()


def _random_parts(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    """Sizes between random cuts; one part in three is made empty."""
    cuts = np.sort(rng.integers(0, total + 1, parts - 1))
    sizes = np.diff(np.concatenate([[0], cuts, [total]]))
    for part in range(parts):
        if rng.random() < 1 / 3:
            other = int(rng.integers(0, parts))
            moved = sizes[part] if other != part else 0
            sizes[other] += moved
            sizes[part] -= moved
    return sizes.tolist()


def token_index(lengths: np.ndarray, rank: int) -> np.ndarray:
    """Which tokens of the whole, in order, lie on a rank: `lengths` int64 [ranks, B] as from `shard_lengths`."""
    runs = lengths.sum(axis=0)
    starts = np.cumsum(runs) - runs + lengths[:rank].sum(axis=0)
    pieces = [np.arange(start, start + count) for start, count in zip(starts, lengths[rank], strict=True)]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def take(array: np.ndarray, shape: Sequence[int | str], parts: dict[str, np.ndarray]) -> np.ndarray:
    """The part of an array whose axes are named by `shape`, along every axis in `parts`; contiguous."""
    for axis, letter in enumerate(shape):
        if isinstance(letter, str) and letter in parts:
            array = np.take(array, parts[letter], axis=axis)
    return np.ascontiguousarray(array)


class Whole:
    """An array put together from the parts that ranks have. What two ranks both have must be the same to the last bit:
    where it is not, the whole is NaN (integers: the smallest value), so that no comparison can pass.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype) -> None:
        self.array = np.zeros(shape, dtype)
        self._seen = np.zeros(shape, bool)
        self._bad = np.nan if self.array.dtype.kind == "f" else np.iinfo(self.array.dtype).min

    def put(self, part: np.ndarray, index: tuple[np.ndarray, ...]) -> None:
        """Put `part` where `index` (one array an axis) says; an index that occurs twice is put twice."""
        axis = next((axis for axis, places in enumerate(index) if len(np.unique(places)) < len(places)), None)
        if axis is not None:
            for place in range(len(index[axis])):
                one = (*index[:axis], index[axis][place : place + 1], *index[axis + 1 :])
                self.put(np.take(part, [place], axis=axis), one)
            return
        where = np.ix_(*index)
        before, seen = self.array[where], self._seen[where]
        differs = seen & ~((before == part) | ((before != before) & (part != part)))
        self.array[where] = np.where(differs, self._bad, part)
        self._seen[where] = True

    def result(self) -> np.ndarray:
        """The whole; what no rank has counts as wrong."""
        return np.where(self._seen, self.array, self._bad).astype(self.array.dtype)
