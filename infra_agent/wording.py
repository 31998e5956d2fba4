"""Small helpers for error lines."""

from __future__ import annotations

import re
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word (the same parts in another order first), else nothing."""
    import difflib

    words = list(known)
    same_parts = [each for each in words if _parts(each) == _parts(word)]
    near = same_parts or difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _parts(word: str) -> list[str]:
    return sorted(re.split(r"[_.\-\s]+", word.lower()))
