"""Answers that are kept for the whole process, up to a number of bytes: the oracle's, which cost a model to compute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

#: Most bytes of arrays that are remembered; logits of 1,000 positions over 49,152 tokens are 200 MB.
MEMORY_BYTES = 768 << 20


class Memory:
    """Least recently used values by key, bounded by the bytes of their arrays."""

    def __init__(self, limit: int = MEMORY_BYTES) -> None:
        self._limit, self._used = limit, 0
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The value of `key`, computed when it is not kept. Values are shared: callers do not change them."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        value = compute()
        size = _bytes(value)
        self._kept[key] = (value, size)
        self._used += size
        while self._used > self._limit and len(self._kept) > 1:
            self._used -= self._kept.popitem(last=False)[1][1]
        return value


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_bytes(item) for item in value)
    if isinstance(value, dict):
        return sum(_bytes(item) for item in value.values())
    return 64


MEMORY = Memory()
