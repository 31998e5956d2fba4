"""The host process that the engine runs in: its threads and its memory allocator."""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
LARGEST_MMAP_THRESHOLD = 32 << 20


def available_threads() -> int:
    """Cores that this process may use; OMP_NUM_THREADS goes before."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let the allocator keep what a step frees, instead of giving it back to the system; False where it is not glibc.

    A step allocates and frees the same few megabytes again and again. Given back, every page of them costs a page
    fault in the next step: more time than the arithmetic on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(TRIM_THRESHOLD, 1 << 30))
