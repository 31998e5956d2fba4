"""Frames between parent and worker over a Unix socket: JSON for structure, raw bytes for arrays, never pickle.

The peer of the parent runs candidate code, so nothing it sends is believed: lengths are capped before anything is
allocated, element types are on a list, shapes must multiply to the bytes that came, and memory files are read into
memory of our own.

A frame is `magic, header length, body length, header, body`. The header is JSON `{"value": ..., "arrays": [[dtype,
shape, offset], ...], "outside": n, "fds": n}`; an array stands in `value` as `{"$array": index}`. Arrays of up to 64
KiB in all lie in the body; more go outside of it, into one memory file of `outside` bytes whose descriptor rides along:
a socket would pass them on in small pieces, waking both sides for each.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import memory

MAGIC = b"IAW1"
_PREFIX = struct.Struct("<4sIQ")

#: Arrays beyond this many bytes a frame travel in a memory file.
INLINE_BYTES = 64 * 1024
#: Element types that may cross. No objects, no structures, no dates.
DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
_MAX_DIMENSIONS = 32
_MAX_DESCRIPTORS = 8
_CHUNK = 256 * 1024


class WireError(Exception):
    """The peer broke the rules of the wire, or a value cannot cross it."""


class Closed(WireError):
    """The peer closed its end."""


class TimedOut(WireError):
    """The deadline passed before the frame was through."""


@dataclass(frozen=True)
class Caps:
    """What one frame may weigh. `array_bytes` counts all arrays together."""

    header_bytes: int = 64 << 20
    array_bytes: int = 4 << 30
    arrays: int = 65_536


@dataclass(frozen=True)
class Message:
    """One frame: a JSON value with arrays in place, and descriptors that the receiver now owns."""

    value: Any
    fds: tuple[int, ...] = ()


def encode(value: Any) -> tuple[bytes, list[np.ndarray]]:
    """`value` (JSON values, numpy arrays and scalars; tuples become lists) as JSON text and the arrays it mentions, C
    order.

    Raises `WireError` for anything else.
    """
    arrays: list[np.ndarray] = []

    def replace(item: Any) -> Any:
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, np.ndarray):
            plain = np.ascontiguousarray(item).reshape(item.shape)
            native = plain.dtype.newbyteorder("=")
            if native.name not in DTYPES:
                raise WireError(f"an array of {item.dtype} cannot cross the wire; allowed: {', '.join(sorted(DTYPES))}")
            arrays.append(plain.astype(native, copy=False))
            return {"$array": len(arrays) - 1}
        raise WireError(f"a {type(item).__name__} cannot cross the wire: only JSON values and numpy arrays can")

    try:
        text = json.dumps(value, default=replace, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"a value cannot cross the wire: {error}") from error
    return text.encode(), arrays


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
        text, arrays = encode(value)
        layout, size = [], 0
        for array in arrays:
            layout.append((array.dtype.name, array.shape, size))
            size += memory.aligned(array.nbytes)
        outside = size if size > INLINE_BYTES else 0
        body = b"".join(_padded(array) for array in arrays) if not outside else b""
        head = json.dumps({"arrays": layout, "outside": outside, "fds": len(fds)}, separators=(",", ":")).encode()
        header = b'{"value":' + text + b"," + head[1:]
        if len(header) > self._caps.header_bytes:
            raise WireError(f"a frame of {len(header)} bytes of JSON is over the limit of {self._caps.header_bytes}")
        parts = [(entry[2], array) for entry, array in zip(layout, arrays, strict=True)]
        segment = [memory.written(parts, size)] if outside else []
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

    def _decode(self, header: bytes, body: bytearray) -> Message:
        try:
            parsed = json.loads(header)
            value, layout, outside, count = parsed["value"], parsed["arrays"], parsed["outside"], parsed["fds"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError(f"a frame's header is no valid JSON of a frame: {type(error).__name__}") from error
        if not (
            isinstance(layout, list) and type(outside) is int and type(count) is int and count >= 0 and outside >= 0
        ):
            raise WireError("a frame's header has fields of the wrong type")
        if len(layout) > self._caps.arrays or outside > self._caps.array_bytes:
            raise WireError(f"a frame with {len(layout)} arrays, {outside} bytes in memory, is over the limit")
        if len(self._fds) != count + (outside > 0):
            raise WireError(f"a frame announced {count + (outside > 0)} descriptors and brought {len(self._fds)}")
        segment = memoryview(body)
        if outside:
            fd = self._fds.popleft()
            try:
                segment = memory.read(fd, outside)
            except (memory.BadMemory, MemoryError, OSError) as error:
                raise WireError(f"a frame's memory cannot be read: {error}") from error
            finally:
                os.close(fd)
        try:
            arrays = [_view(entry, segment) for entry in layout]
            placed = _placed(value, arrays) if arrays else value
        except RecursionError as error:
            raise WireError("a frame's value is nested too deeply") from error
        fds = tuple(self._fds)
        self._fds.clear()
        return Message(placed, fds)


def _view(entry: Any, segment: memoryview) -> np.ndarray:
    """One array over received memory, its description checked first."""
    try:
        name, shape, offset = entry
        known = name in DTYPES
    except (TypeError, ValueError) as error:
        raise WireError("an array's description is not [dtype, shape, offset]") from error
    if not known:
        raise WireError(f"an array of type {str(name)[:40]!r} came over the wire")
    sizes = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not sizes or type(offset) is not int or offset < 0 or offset % memory.ALIGNMENT:
        raise WireError(f"an array with a shape or place that cannot be came over the wire: {str(entry)[:80]}")
    dtype, count = np.dtype(name), 1
    for n in shape:
        count *= n
    if offset + count * dtype.itemsize > len(segment):
        raise WireError(
            f"an array of {count} x {name} at {offset} does not fit into the {len(segment)} bytes that came"
        )
    try:
        flat = np.frombuffer(segment, dtype, count, offset) if count else np.empty(0, dtype)
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # an empty array can still have sizes that no machine holds
        raise WireError(f"an array with an impossible shape came over the wire: {str(shape)[:80]}") from error


def _placed(value: Any, arrays: list[np.ndarray]) -> Any:
    """`value` with `{"$array": i}` replaced."""
    if isinstance(value, dict):
        if len(value) == 1 and "$array" in value:
            index = value["$array"]
            if type(index) is not int or not 0 <= index < len(arrays):
                raise WireError(f"a frame mentions array {str(index)[:20]} of {len(arrays)}")
            return arrays[index]
        return {key: _placed(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, arrays) for item in value]
    return value


def _padded(array: np.ndarray) -> bytes:
    data = array.tobytes()
    return data + bytes(memory.aligned(len(data)) - len(data))


def _milliseconds(deadline: float | None) -> int | None:
    """Time left for `poll`, rounded up; raises `TimedOut` when there is none."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOut("the deadline passed")
    return int(left * 1000) + 1
