"""The wire between parent and worker: faithful to values, deaf to lies."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedback.workers import frames, memory, wire

Pair = tuple[wire.Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[tuple[wire.Channel, wire.Channel]]:
    left, right = (wire.Channel(end) for end in socket.socketpair())
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def hostile() -> Iterator[Pair]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = wire.Channel(ours, wire.Caps(header_bytes=10_000, array_bytes=1 << 20, arrays=100))
    yield channel, theirs
    channel.close()
    theirs.close()


def frame(header: Any, body: bytes = b"", header_bytes: int | None = None, body_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = (len(text) if header_bytes is None else header_bytes, len(body) if body_bytes is None else body_bytes)
    return struct.pack("<4sIQ", wire.MAGIC, *lengths) + text + body


def described(value: Any = None, arrays: Any = (), outside: Any = 0, fds: Any = 0) -> dict[str, Any]:
    return {"value": value, "arrays": list(arrays), "outside": outside, "fds": fds}


def send_fd(sock: socket.socket, data: bytes, *fds: int) -> None:
    socket.send_fds(sock, [data], list(fds))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def same(got: Any, sent: Any) -> bool:
    if isinstance(sent, np.ndarray):
        return (
            type(got) is np.ndarray
            and got.dtype == sent.dtype
            and got.shape == sent.shape
            and np.array_equal(np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(sent).view(np.uint8))
            if sent.ndim
            else got.tobytes() == sent.tobytes()
        )
    if isinstance(sent, dict):
        return got.keys() == sent.keys() and all(same(got[key], sent[key]) for key in sent)
    if isinstance(sent, list):
        return len(got) == len(sent) and all(map(same, got, sent))
    return got == sent or (isinstance(sent, float) and math.isnan(sent) and math.isnan(got))


ARRAYS = hnp.arrays(
    st.sampled_from(sorted(frames.DTYPES)).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text().filter(lambda k: k != "$array"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=VALUES)
@settings(max_examples=150, deadline=None)
def test_what_is_sent_arrives(value: Any) -> None:
    left, right = (wire.Channel(end) for end in socket.socketpair())
    left.send(value)
    assert same(right.receive(time.monotonic() + 5).value, value)
    assert not right.pending()
    left.close()
    right.close()


def test_text_may_hold_any_brackets(pair: tuple[wire.Channel, wire.Channel]) -> None:
    value: Any = ["[" * 5000 + "{" * 5000]
    for _ in range(50):
        value = [value]
    pair[0].send(value)
    assert pair[1].receive(time.monotonic() + 5).value == value


@pytest.mark.parametrize("elements", [0, 1, 8191, 8192, 8193, 300_000])
def test_large_arrays_arrive_whole_and_writable(pair: tuple[wire.Channel, wire.Channel], elements: int) -> None:
    left, right = pair
    sent = [np.arange(elements, dtype=np.float64), np.arange(elements, dtype=np.int8)[::2]]
    before = open_descriptors()
    left.send(sent)
    got = right.receive(time.monotonic() + 5).value
    assert all(np.array_equal(a, b) for a, b in zip(got, sent, strict=True))
    if elements:
        got[0][0] = 5.0  # a private copy: the sender's array stays
        assert sent[0][0] == 0.0
    assert open_descriptors() == before


def test_descriptors_ride_along(pair: tuple[wire.Channel, wire.Channel]) -> None:
    left, right = pair
    reader, writer = os.pipe()
    left.send({"big": np.zeros(100_000)}, [writer])
    os.close(writer)
    (arrived,) = right.receive(time.monotonic() + 5).fds
    os.write(arrived, b"through")
    assert os.read(reader, 10) == b"through"
    for fd in (reader, arrived):
        os.close(fd)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, 1j, b"bytes", np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(2, "c16"), {(1, 2): 3}, lambda: 0],
)
def test_only_json_and_plain_arrays_cross(pair: tuple[wire.Channel, wire.Channel], value: Any) -> None:
    with pytest.raises(wire.WireError, match="cross the wire"):
        pair[0].send({"value": value})


def test_big_endian_arrives_as_native(pair: tuple[wire.Channel, wire.Channel]) -> None:
    pair[0].send(np.arange(4, dtype=">f4"))
    got = pair[1].receive(time.monotonic() + 5).value
    assert got.dtype == np.float32
    assert got.tolist() == [0.0, 1.0, 2.0, 3.0]


HOSTILE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "header over the limit": frame(b"", header_bytes=10_001),
    "body over the limit": frame(b"{}", body_bytes=1 << 40),
    "no json": frame(b"{nonsense"),
    "no utf-8": frame(b"\xff\xfe"),
    "no frame header": frame([]),
    "missing fields": frame({"value": 1}),
    "wrong types": frame(described(outside="many")),
    "huge integer": frame(b'{"value": ' + b"9" * 9000 + b', "arrays": [], "outside": 0, "fds": 0}'),
    "deep nesting": frame(b'{"value": ' + b"[" * 4900 + b"]" * 4900 + b', "arrays": [], "outside": 0, "fds": 0}'),
    "nesting": frame(b'{"value": ' + b'{"a":[' * 60 + b"]}" * 60 + b', "arrays": [], "outside": 0, "fds": 0}'),
    "array of objects": frame(described({"$array": 0}, [["object", [1], 0]]), bytes(64)),
    "array of strings": frame(described({"$array": 0}, [["U8", [1], 0]]), bytes(64)),
    "unhashable type": frame(described({"$array": 0}, [[["float32"], [1], 0]]), bytes(64)),
    "negative size": frame(described({"$array": 0}, [["float32", [-1], 0]]), bytes(64)),
    "boolean size": frame(described({"$array": 0}, [["float32", [True], 0]]), bytes(64)),
    "float size": frame(described({"$array": 0}, [["float32", [1.0], 0]]), bytes(64)),
    "larger than what came": frame(described({"$array": 0}, [["float32", [17], 0]]), bytes(64)),
    "overflowing size": frame(described({"$array": 0}, [["float32", [1 << 62, 1 << 62], 0]]), bytes(64)),
    "empty but impossible": frame(described({"$array": 0}, [["float32", [0, 1 << 80], 0]]), bytes(64)),
    "offset before the start": frame(described({"$array": 0}, [["float32", [1], -64]]), bytes(64)),
    "offset not aligned": frame(described({"$array": 0}, [["float32", [1], 4]]), bytes(64)),
    "too many dimensions": frame(described({"$array": 0}, [["float32", [1] * 33, 0]]), bytes(64)),
    "array that is not there": frame(described({"$array": 1}, [["float32", [1], 0]]), bytes(64)),
    "too many arrays": frame(described(0, [["bool", [0], 0]] * 101)),
    "descriptor that did not come": frame(described(fds=1)),
    "memory that did not come": frame(described({"$array": 0}, [["float32", [1], 0]], outside=64)),
    "memory over the limit": frame(described(0, outside=(1 << 20) + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_lies_are_refused(hostile: Pair, name: str) -> None:
    channel, attacker = hostile
    attacker.sendall(HOSTILE[name])
    with pytest.raises(wire.WireError):
        channel.receive(time.monotonic() + 5)


@pytest.mark.parametrize("kind", ["too small", "emptied", "device", "pipe", "folder"])
def test_memory_that_is_not_what_was_announced_is_refused(hostile: Pair, kind: str) -> None:
    channel, attacker = hostile
    before = open_descriptors()
    fds = []
    if kind == "pipe":
        fds += os.pipe()
    elif kind in ("device", "folder"):
        fds.append(os.open({"device": "/dev/zero", "folder": "/tmp"}[kind], os.O_RDONLY))
    else:
        fds.append(memory.written([], 64))
        os.ftruncate(fds[0], 4095 if kind == "too small" else 0)
    send_fd(attacker, frame(described({"$array": 0}, [["uint8", [4096], 0]], outside=4096)), fds[0])
    for fd in fds:
        os.close(fd)
    with pytest.raises(wire.WireError, match="memory"):
        channel.receive(time.monotonic() + 5)
    assert open_descriptors() == before


def test_descriptors_that_were_not_announced_are_refused_and_closed(hostile: Pair) -> None:
    channel, attacker = hostile
    fd = os.open("/dev/null", os.O_RDONLY)
    before = open_descriptors()
    send_fd(attacker, frame(described()), fd, fd)
    with pytest.raises(wire.WireError, match="announced 0 descriptors"):
        channel.receive(time.monotonic() + 5)
    channel.close()
    assert open_descriptors() == before - 1  # the channel's own socket
    os.close(fd)


@given(data=st.binary(max_size=300) | st.builds(frame, st.binary(max_size=200), st.binary(max_size=100)))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_the_reader(data: bytes) -> None:
    ours, attacker = socket.socketpair()
    channel = wire.Channel(ours, wire.Caps(header_bytes=1000, array_bytes=1000))
    attacker.sendall(data)
    attacker.close()
    try:
        while True:
            channel.receive(time.monotonic() + 5)
    except wire.WireError:  # `Closed` is one
        pass
    channel.close()


def test_a_frame_that_never_ends_meets_the_deadline(hostile: Pair) -> None:
    channel, attacker = hostile
    attacker.sendall(frame(described("x" * 500))[:-1])
    with pytest.raises(wire.TimedOut):
        channel.receive(time.monotonic() + 0.05)


def test_a_peer_that_does_not_read_meets_the_deadline(hostile: Pair) -> None:
    channel, _ = hostile

    def fill() -> None:
        for _ in range(1000):
            channel.send("x" * 9000, deadline=time.monotonic() + 0.05)

    with pytest.raises(wire.TimedOut):
        fill()


def test_a_frame_in_pieces_is_one_frame(hostile: Pair) -> None:
    channel, attacker = hostile
    data = frame(described({"a": {"$array": 0}}, [["uint8", [3], 0]]), b"abc" + bytes(61))

    def dribble() -> None:
        for at in range(0, len(data), 7):
            attacker.sendall(data[at : at + 7])
            time.sleep(0.0002)

    sender = threading.Thread(target=dribble)
    sender.start()
    assert channel.receive(time.monotonic() + 5).value["a"].tobytes() == b"abc"
    sender.join()


def test_the_end_of_the_other_side_is_told_apart(hostile: Pair) -> None:
    channel, attacker = hostile
    attacker.close()
    with pytest.raises(wire.Closed):
        channel.receive(time.monotonic() + 5)
