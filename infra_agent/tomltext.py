"""TOML as text that people read: errors that name the line, and edits that leave the rest of the file alone.

The standard library only parses. Written here is what goal, start and profile files need: scalars, lists of scalars,
and tables of them.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feedback.errors import UserError

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read(path: Path) -> str:
    """The text of a TOML file; `UserError` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def parse(text: str, name: str) -> dict[str, Any]:
    """The parsed document; `UserError` as `name:line: what` when it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        found = re.search(r"\s*\(at line (\d+), column \d+\)", what)
        if found:
            raise UserError(f"{name}:{found[1]}: not valid TOML: {what[: found.start()]}") from error
        last = max(1, len(text.splitlines()))
        raise UserError(f"{name}:{last}: not valid TOML: {what.removesuffix(' (at end of document)')}") from error


def line_of(text: str, key: tuple[str, ...]) -> int:
    """The line (from 1) where a key stands; of its nearest table when it is not written; 1 when that is not either."""
    where = {path: line for path, line, _ in _assignments(text)}
    for path, line in _headers(text):
        where.setdefault(path, line)
    for length in range(len(key), 0, -1):
        if key[:length] in where:
            return where[key[:length]]
    return 1


def value(item: Any) -> str:
    """One TOML value. `TypeError` for what has no TOML form (None among others)."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else {math.inf: "inf", -math.inf: "-inf"}.get(item, "nan")
    if isinstance(item, str):
        return _string(item)
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(each) for each in item) + "]"
    if isinstance(item, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {value(v)}" for k, v in item.items()) + " }" if item else "{}"
    raise TypeError(f"no TOML value for {type(item).__name__}")


def document(data: Mapping[str, Any]) -> str:
    """A whole document: scalars first, then one `[table]` per mapping, nested ones after their parent."""
    return "\n".join(_tables(data, ())).strip("\n") + "\n"


def edit(text: str, changes: Mapping[str, Any]) -> str:
    """The document with top-level `changes` made: other lines and comments stay; None removes a key.

    A change to a table (a mapping) is made key by key; keys that it does not name stay.
    """
    expected = _merged(parse(text, "document"), changes)
    edited = text
    for path, new in _leaves(changes, ()):
        edited = _edit_one(edited, path, new)
    try:
        right = tomllib.loads(edited) == expected
    except tomllib.TOMLDecodeError:
        right = False
    # Dotted keys, inline tables and the like are not edited in place: right before pretty.
    return edited if right else document(expected)


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(data)
    for key, new in changes.items():
        if new is None:
            out.pop(key, None)
        elif isinstance(new, Mapping) and new:
            out[key] = _merged(out[key] if isinstance(out.get(key), Mapping) else {}, new)
        else:
            out[key] = new
    return tomllib.loads(document(out))


def _leaves(changes: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, new in changes.items():
        if isinstance(new, Mapping) and new:
            yield from _leaves(new, (*prefix, key))
        else:
            yield (*prefix, key), new


def _edit_one(text: str, path: tuple[str, ...], new: Any) -> str:
    lines = text.removesuffix("\n").split("\n") if text.strip() else []
    for found, first, last in _assignments(text):
        if found == path:
            written = []
            if new is not None:
                comment = re.search(r"\s+#[^\"']*$", lines[first - 1]) if first == last else None
                left = lines[first - 1].split("=", 1)[0].rstrip()
                written = [f"{left} = {value(new)}{comment[0] if comment else ''}"]
            return _joined([*lines[: first - 1], *written, *lines[last:]])
    if new is None:
        return text
    written = f"{_key(path[-1])} = {value(new)}"
    table = path[:-1]
    headers = list(_headers(text))
    if table and table not in {found for found, _ in headers}:
        return _joined([*lines, *([""] if lines else []), f"[{_dotted(table)}]", written])
    # Behind the last assignment of the same table, else behind its header, else at the top.
    own = [last for found, _, last in _assignments(text) if found[:-1] == table]
    at = max(own, default=next((line for found, line in headers if table and found == table), 0))
    return _joined([*lines[:at], written, *lines[at:]])


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _tables(data: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[str]:
    plain = {k: v for k, v in data.items() if not isinstance(v, Mapping)}
    nested = {k: v for k, v in data.items() if isinstance(v, Mapping)}
    if prefix and (plain or not nested):
        yield f"\n[{_dotted(prefix)}]"
    for key, item in plain.items():
        yield f"{_key(key)} = {value(item)}"
    for key, table in nested.items():
        yield from _tables(table, (*prefix, key))


def _string(item: str) -> str:
    # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
    return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(_key(part) for part in path)


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(json.loads(part) if part.startswith('"') else part.strip("'") for part in re.findall(_KEY, dotted))


def _statements(text: str) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, text) of each header or assignment; lists and strings over several lines stay whole."""
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        if not _ASSIGNMENT.match(lines[i]):
            yield i + 1, i + 1, lines[i]
            i += 1
            continue
        end = i
        while end + 1 < len(lines) and not _complete("\n".join(lines[i : end + 1])):
            end += 1
        yield i + 1, end + 1, "\n".join(lines[i : end + 1])
        i = end + 1


def _complete(statement: str) -> bool:
    try:
        tomllib.loads(statement + "\n")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _assignments(text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """(key path, first line, last line) of each assignment."""
    table: tuple[str, ...] = ()
    for first, last, statement in _statements(text):
        if header := _HEADER.match(statement):
            table = _split(header[1])
        elif found := _ASSIGNMENT.match(statement):
            yield (*table, *_split(found[1])), first, last


def _headers(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    for first, _, statement in _statements(text):
        if header := _HEADER.match(statement):
            yield _split(header[1]), first
