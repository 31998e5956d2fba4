"""An exception of candidate code as plain data (worker side): what, and where in the tree."""

from __future__ import annotations

import traceback
from typing import Any

from .tree import TargetTree

_TRACEBACK_CHARACTERS = 16_000
#: How allocators that do not raise `MemoryError` say it; torch's CPU allocator is the first.
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory")


def report(error: BaseException, tree: TargetTree) -> dict[str, Any]:
    """`{"type", "message", "file", "line", "memory", "traceback"}`; the place is the innermost frame inside the
    tree.
    """
    place, line = _innermost(error, tree)
    # A syntax error's own text repeats file and line.
    message = error.msg if isinstance(error, SyntaxError) else _text(error)
    return {
        "type": type(error).__name__,
        "message": message,
        "file": place,
        "line": line,
        "memory": isinstance(error, MemoryError)
        or (isinstance(error, (RuntimeError, OSError)) and any(words in message.lower() for words in _NO_MEMORY)),
        "traceback": _trace(error),
    }


def declines(error: NotImplementedError, tree: TargetTree) -> bool:
    """Whether this is the adapter's word that the target cannot do something.

    `NotImplementedError` out of candidate code is no such word: torch raises it for a missing kernel, and a candidate
    must not be able to excuse itself from a check. The adapter is a protected file, so where it was raised decides.
    """
    return tree.in_adapter(_innermost(error, tree)[0])


def _innermost(error: BaseException, tree: TargetTree) -> tuple[str | None, int | None]:
    if isinstance(error, SyntaxError) and (place := tree.relative(error.filename)):
        return place, error.lineno
    found: tuple[str | None, int | None] = None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if place := tree.relative(frame.f_code.co_filename):
            found = place, line
    return found


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:
        text = f"(its text raised {type(second).__name__})"
    return text


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = "".join(traceback.format_tb(error.__traceback__))
    half = _TRACEBACK_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n...\n{text[-half:]}"
