"""Path patterns of goals, starts and edit scopes: `*` and `?` stay within a folder, `**` crosses folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_WILD = (("**/", "(?:[^/]+/)*"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]"))


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    out = ""
    i = 0
    while i < len(pattern):
        wild, text = next((pair for pair in _WILD if pattern.startswith(pair[0], i)), (pattern[i], None))
        out += re.escape(wild) if text is None else text
        i += len(wild)
    return re.compile(out, re.DOTALL)


def matches(path: str, pattern: str) -> bool:
    """Whether a POSIX path matches a pattern as a whole; one whose last part is a plain name means all below it too."""
    whole = pattern.rstrip("/")
    if _compiled(whole).fullmatch(path):
        return True
    named = not set("*?") & set(whole.rsplit("/", 1)[-1])
    return named and _compiled(whole + "/**").fullmatch(path) is not None


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether a POSIX path matches one of the patterns."""
    return any(matches(path, pattern) for pattern in patterns)
