"""What a frame holds: JSON for structure, raw bytes for arrays, never pickle. Pure functions; `wire` moves the bytes.

The header is JSON `{"value": ..., "arrays": [[dtype, shape, offset], ...], "outside": n, "fds": n}`; an array stands in
`value` as `{"$array": index}`. Arrays of up to 64 KiB in all lie in the frame's body; more go outside of it, into one
memory file of `outside` bytes whose descriptor rides along: a socket would pass them on in small pieces, waking both
sides for each.

The peer of the parent runs candidate code, so nothing that comes is believed: lengths are capped before anything is
allocated, element types are on a list, shapes must fit the bytes that came, values must not be so deep that recursion
into them fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import memory

#: Arrays beyond this many bytes a frame travel in a memory file.
INLINE_BYTES = 64 * 1024
#: Element types that may cross. No objects, no structures, no dates.
DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
_MAX_DIMENSIONS = 32
_MAX_DEPTH = 100


class WireError(Exception):
    """The peer broke the rules of the wire, or a value cannot cross it."""


@dataclass(frozen=True)
class Caps:
    """What one frame may weigh. `array_bytes` counts all arrays together."""

    header_bytes: int = 64 << 20
    array_bytes: int = 4 << 30
    arrays: int = 65_536


@dataclass(frozen=True)
class Encoded:
    """A value ready to be sent: the header, and the arrays with their offsets in `size` bytes of body or memory
    file.
    """

    header: bytes
    parts: tuple[tuple[int, np.ndarray], ...]
    size: int

    @property
    def inline(self) -> bool:
        """Whether the arrays lie in the body."""
        return self.size <= INLINE_BYTES

    def body(self) -> bytes:
        """The arrays as the body holds them; empty when they lie outside."""
        return b"".join(_padded(array) for _, array in self.parts) if self.inline else b""


@dataclass(frozen=True)
class Header:
    """A header whose form was checked; the arrays it describes are checked by `placed`."""

    value: Any
    arrays: list[Any]
    outside: int
    fds: int


def encode(value: Any, fds: int = 0) -> Encoded:
    """`value` (JSON values, numpy arrays and scalars; tuples become lists), to be sent with `fds` descriptors.

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
    layout, size = [], 0
    for array in arrays:
        layout.append((array.dtype.name, array.shape, size))
        size += memory.aligned(array.nbytes)
    outside = size if size > INLINE_BYTES else 0
    rest = json.dumps({"arrays": layout, "outside": outside, "fds": fds}, separators=(",", ":"))
    parts = tuple((entry[2], array) for entry, array in zip(layout, arrays, strict=True))
    return Encoded(f'{{"value":{text},{rest[1:]}'.encode(), parts, size)


def parse(header: bytes, caps: Caps) -> Header:
    """Read a header. Raises `WireError`."""
    try:
        parsed = json.loads(header)
        value, arrays, outside, fds = parsed["value"], parsed["arrays"], parsed["outside"], parsed["fds"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"a frame's header is no valid JSON of a frame: {type(error).__name__}") from error
    if _too_deep(header, value):
        raise WireError(f"a frame's value is nested more than {_MAX_DEPTH} deep")
    if not isinstance(arrays, list) or any(type(n) is not int or n < 0 for n in (outside, fds)):
        raise WireError("a frame's header has fields of the wrong type")
    if len(arrays) > caps.arrays or outside > caps.array_bytes:
        raise WireError(f"a frame with {len(arrays)} arrays, {outside} bytes in memory, is over the limit")
    return Header(value, arrays, outside, fds)


def placed(header: Header, segment: memoryview) -> Any:
    """The header's value with its arrays, views of `segment`, in place. Raises `WireError`."""
    arrays = [_view(entry, segment) for entry in header.arrays]
    return _placed(header.value, arrays) if arrays else header.value


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


def _too_deep(header: bytes, value: Any) -> bool:
    """Whether a value would break code that recurses into it. Three looks, the cheap ones first."""
    if header.count(b"[") + header.count(b"{") <= _MAX_DEPTH:
        return False
    text = np.frombuffer(header, np.uint8)
    opened = np.isin(text, (ord("["), ord("{"))).astype(np.int8)
    opened -= np.isin(text, (ord("]"), ord("}"))).astype(np.int8)
    if np.cumsum(opened, dtype=np.int32).max() <= _MAX_DEPTH:
        return False
    level = [value]  # the brackets may have been text
    for _ in range(_MAX_DEPTH):
        parts = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [child for part in parts for child in part]
        if not level:
            return False
    return True


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
