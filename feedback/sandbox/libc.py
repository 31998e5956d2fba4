"""The C library by ctypes: the few calls that Python has no binding for."""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """The process's own C library, with `errno` kept."""
    return ctypes.CDLL(None, use_errno=True)


def checked(what: str, result: int) -> int:
    """`result` of a call that says failure with a negative number; raises `OSError` naming `what` then."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
