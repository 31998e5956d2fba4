"""What a worker printed: the first and the last part of each stream, without limit on how much was printed."""

from __future__ import annotations

import os

_KEEP = 64 * 1024
#: A pipe holds up to 1 MiB where it was enlarged.
_LAST_READS = 16


class Output:
    """The reading end of a pipe.

    A worker that fills it blocks until the parent reads, which it does whenever it waits.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0
        self._open = True

    def fileno(self) -> int:
        """For `poll`."""
        return self._reader

    def close_writer(self) -> None:
        """Once the worker has its copy; else the stream would never end."""
        os.close(self.writer)

    def drain(self) -> bool:
        """Take a pipe's worth of what is there; False when the stream has ended.

        Once and no more: a worker that prints without end must not keep its parent from looking at the clock.
        """
        if self._open:
            try:
                data = os.read(self._reader, _KEEP)
            except BlockingIOError:
                return True
            if not data:
                os.close(self._reader)
                self._open = False
            self._total += len(data)
            room = _KEEP - len(self._head)
            self._head += data[:room]
            self._tail = (self._tail + data[room:])[-_KEEP:]
        return self._open

    def close(self) -> None:
        """Take what is left in the pipe and close."""
        for _ in range(_LAST_READS):
            if not self.drain():
                return
        os.close(self._reader)
        self._open = False

    def text(self) -> str:
        """Head and tail; says how much is missing between them."""
        left_out = self._total - len(self._head) - len(self._tail)
        gap = f"\n... {left_out} bytes left out ...\n" if left_out else ""
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")
