"""Memory that two processes see, as `memfd` files: they vanish with their last user and cannot be left behind in
/dev/shm.

Frames' memory is read, not mapped: a mapping that its maker can still shrink would let the maker kill the reader with
SIGBUS, and each mapping would hold a descriptor as long as its arrays live. Batches' memory is mapped by both sides;
the parent makes it, and its size is sealed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64
#: F_SEAL_SHRINK | F_SEAL_GROW; Linux alone has them, and `fcntl` elsewhere no such names.
_FIXED_SIZE = 0x0002 | 0x0004


class BadMemory(ValueError):
    """What came from elsewhere is no memory file, or not as it was announced."""


def aligned(size: int) -> int:
    """`size` rounded up to the alignment of arrays in a segment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def written(parts: Sequence[tuple[int, np.ndarray]], size: int) -> int:
    """A memory file of `size` bytes with each C-ordered array at its offset; the caller owns the descriptor."""
    fd = os.memfd_create("frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        for offset, array in parts:
            view = array.reshape(-1).view(np.uint8).data
            while view:
                done = os.pwrite(fd, view, offset)
                view, offset = view[done:], offset + done
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int, size: int) -> memoryview:
    """A private copy of the first `size` bytes of a memory file. Raises `BadMemory` when it is none or has fewer."""
    _seals(fd)
    copy = memoryview(np.empty(size, np.uint8).data)
    done = 0
    while done < size:
        count = os.preadv(fd, [copy[done:]], done)
        if count == 0:
            raise BadMemory(f"the memory holds {done} bytes, not {size}")
        done += count
    return copy


def fixed(size: int) -> int:
    """A memory file that keeps its size for ever; the caller owns the descriptor."""
    fd = os.memfd_create("batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FIXED_SIZE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size: int) -> memoryview:
    """A view of `fixed` memory that both sides write, its pages mapped now: the first touch of each is not for the
    clock.

    Raises `BadMemory` when its size is not sealed or too small.
    """
    if _seals(fd) & _FIXED_SIZE != _FIXED_SIZE or os.fstat(fd).st_size < size:
        raise BadMemory("the memory's size is not fixed, or too small")
    return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE))


def _seals(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadMemory("the descriptor is no memory file") from error
