"""Frames between parent and worker over a Unix socket, with deadlines and descriptors. What they hold: `frames`.

A frame is `magic, header length, body length, header, body`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import memory
from .frames import INLINE_BYTES, Caps, WireError, encode, parse, placed

__all__ = ["MAGIC", "Caps", "Channel", "Closed", "Message", "TimedOut", "WireError"]

MAGIC = b"IAW1"
_PREFIX = struct.Struct("<4sIQ")
_MAX_DESCRIPTORS = 8
_CHUNK = 256 * 1024


class Closed(WireError):
    """The peer closed its end."""


class TimedOut(WireError):
    """The deadline passed before the frame was through."""


@dataclass(frozen=True)
class Message:
    """One frame: a JSON value with arrays in place, and descriptors that the receiver now owns."""

    value: Any
    fds: tuple[int, ...] = ()


class Channel:
    """One end of the wire. Not thread-safe; one frame may be in flight each way.

    Deadlines are `time.monotonic()` values; None waits for ever.
    """

    def __init__(self, sock: socket.socket, caps: Caps | None = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._caps = caps or Caps()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._lengths: tuple[int, int] | None = None
        self._closed = False

    def fileno(self) -> int:
        """The socket's descriptor, for `poll`."""
        return self._socket.fileno()

    def send(self, value: Any, fds: Sequence[int] = (), deadline: float | None = None) -> None:
        """Send one frame with descriptors `fds` (they stay the caller's). Raises `WireError`, `Closed`, `TimedOut`."""
        encoded = encode(value, len(fds))
        header, body = encoded.header, encoded.body()
        if len(header) > self._caps.header_bytes:
            raise WireError(f"a frame of {len(header)} bytes of JSON is over the limit of {self._caps.header_bytes}")
        segment = [] if encoded.inline else [memory.written(encoded.parts, encoded.size)]
        try:
            self._write(_PREFIX.pack(MAGIC, len(header), len(body)) + header + body, [*segment, *fds], deadline)
        finally:
            for fd in segment:
                os.close(fd)

    def receive(self, deadline: float | None = None) -> Message:
        """Wait for one whole frame. Raises `WireError`, `Closed`, `TimedOut`."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while (message := self.poll()) is None:
            poller.poll(_milliseconds(deadline))
        return message

    def poll(self) -> Message | None:
        """Take in what has arrived: a whole frame, or None while one is incomplete. Raises `WireError`, `Closed`."""
        while True:
            message = self._parse()
            if message is not None:
                return message
            if self._closed:
                raise Closed("the other end closed the connection")
            if not self._pull():
                return None

    def pending(self) -> bool:
        """Whether bytes lie here that no call asked for."""
        if not self._buffer and not self._closed:
            self._pull()
        return bool(self._buffer or self._fds)

    def close(self) -> None:
        """Close the socket and every descriptor that arrived and was not handed out."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _write(self, data: bytes, fds: Sequence[int], deadline: float | None) -> None:
        view = memoryview(data)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        while view:
            try:
                sent = self._socket.sendmsg([view[: 4 * _CHUNK]], ancillary)
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._socket, select.POLLOUT)
                poller.poll(_milliseconds(deadline))
                continue
            except (BrokenPipeError, ConnectionResetError) as error:
                raise Closed("the other end closed the connection") from error
            view, ancillary = view[sent:], []

    def _pull(self) -> bool:
        """One read; False when there is nothing to read now."""
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(_CHUNK, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds.extend(struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4]))
        if flags & socket.MSG_CTRUNC or len(self._fds) > _MAX_DESCRIPTORS:
            raise WireError("too many descriptors came over the wire")
        if not data:
            self._closed = True
        self._buffer += data
        return True

    def _parse(self) -> Message | None:
        if self._lengths is None:
            if len(self._buffer) < _PREFIX.size:
                return None
            magic, header_bytes, body_bytes = _PREFIX.unpack_from(self._buffer)
            if magic != MAGIC:
                raise WireError("bytes that are no frame came over the wire")
            if header_bytes > self._caps.header_bytes or body_bytes > INLINE_BYTES:
                raise WireError(f"a frame of {header_bytes} + {body_bytes} bytes is over the limit")
            self._lengths = header_bytes, body_bytes
        header_bytes, body_bytes = self._lengths
        end = _PREFIX.size + header_bytes
        if len(self._buffer) < end + body_bytes:
            return None
        header, body = bytes(self._buffer[_PREFIX.size : end]), self._buffer[end : end + body_bytes]
        del self._buffer[: end + body_bytes]
        self._lengths = None
        return self._decode(header, body)

    def _decode(self, text: bytes, body: bytearray) -> Message:
        header = parse(text, self._caps)
        expected = header.fds + (header.outside > 0)
        if len(self._fds) != expected:
            raise WireError(f"a frame announced {expected} descriptors and brought {len(self._fds)}")
        segment = memoryview(body)
        if header.outside:
            fd = self._fds.popleft()
            try:
                segment = memory.read(fd, header.outside)
            except (memory.BadMemory, MemoryError, OSError) as error:
                raise WireError(f"a frame's memory cannot be read: {error}") from error
            finally:
                os.close(fd)
        value = placed(header, segment)
        fds = tuple(self._fds)
        self._fds.clear()
        return Message(value, fds)


def _milliseconds(deadline: float | None) -> int | None:
    """Time left for `poll`, rounded up; raises `TimedOut` when there is none."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOut("the deadline passed")
    return int(left * 1000) + 1
