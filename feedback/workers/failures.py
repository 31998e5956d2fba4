"""How a worker can fail, each as one precise line.

Everything that a line is made of comes from candidate code or its remains, so it is cut, put on one line and never
believed beyond being shown.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from feedback.target import Unsupported
from feedback.verdict import Location

Answer = TypeVar("Answer")
Kind = Literal["crash", "hang", "memory", "error", "protocol"]

_MESSAGE_CHARACTERS = 300
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+) in ', re.MULTILINE)

_SIGNALS = {
    signal.SIGSEGV: "invalid memory access",
    signal.SIGBUS: "invalid memory mapping",
    signal.SIGABRT: "the program aborted itself",
    signal.SIGFPE: "integer division by zero or the like",
    signal.SIGILL: "an instruction this processor does not have",
    signal.SIGKILL: "killed from outside, perhaps for memory by the kernel",
    signal.SIGXCPU: "used up its CPU time",
    signal.SIGSYS: "a system call that the sandbox forbids",
}


class WorkerFailure(Exception):
    """A worker failed while it did `method`.

    `kind`: `crash` (the process ended), `hang` (no answer in time), `memory`, `error` (an exception of the target),
    `protocol` (an answer that breaks the rules). `line` is the one line to show; `location` the innermost place
    inside the tree where one is known; `detail` the traceback or stack, for the evidence folder. After anything but
    `error` the worker is gone.
    """

    def __init__(
        self,
        kind: Kind,
        method: str,
        what: str,
        location: Location | None = None,
        detail: str = "",
        error_type: str = "",
    ) -> None:
        self.kind: Kind = kind
        self.method = method
        self.location = location
        self.detail = detail
        #: The exception's class name when `kind` is `error`.
        self.error_type = error_type
        place = "" if location is None or location.file is None else f"{location.label()} "
        if kind == "error":
            self.line = one_line(f"error in {method}: {place}{what}")
        else:
            self.line = one_line(f"{kind} in {method}: {what}" + (f"; at {place.strip()}" if place else ""))
        super().__init__(self.line)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.__dict__,)


def lacks(failure: BaseException | None, method: str) -> bool:
    """Whether a failure is that the target has no such method: optional ones are asked for by name."""
    if not isinstance(failure, WorkerFailure) or failure.error_type != "AttributeError":
        return False
    return failure.location is None and repr(method) in failure.line


def optional(method: str, ask: Callable[[], Answer]) -> Answer:
    """What `ask` gives; `Unsupported` where it fails because the target has no such method."""
    try:
        return ask()
    except WorkerFailure as failure:
        if lacks(failure, method):
            raise Unsupported(f"this target has no {method}") from failure
        raise


def _rebuild(state: dict[str, Any]) -> WorkerFailure:
    failure = WorkerFailure.__new__(WorkerFailure)
    failure.__dict__.update(state)
    failure.args = (state["line"],)
    return failure


def one_line(text: str, limit: int = _MESSAGE_CHARACTERS) -> str:
    """`text` without line breaks and control characters, cut at `limit` characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def from_report(method: str, payload: Any) -> WorkerFailure:
    """An exception's report (`report.report`) as a failure; a malformed one is itself a breach of protocol."""
    if not isinstance(payload, dict):
        return WorkerFailure("protocol", method, "an error without a description")
    kind, message = one_line(str(payload.get("type")), 80), one_line(str(payload.get("message")))
    what = f"{kind}: {message}" if message else kind
    failed: Kind = "memory" if payload.get("memory") is True else "error"
    location = _location(payload.get("file"), payload.get("line"))
    return WorkerFailure(failed, method, what, location, str(payload.get("traceback"))[:20_000], kind)


def from_status(method: str, status: int | None, trace: str, root: Path) -> WorkerFailure:
    """A process that ended without an answer. `status` as of `os.wait`; `trace` what faulthandler wrote."""
    location = innermost(trace, root)
    if status is None:
        return WorkerFailure("crash", method, "the process does not end, not even when killed", location, trace)
    number = status & 0x7F
    if number:
        name, words = _signal(number)
        kind: Kind = "hang" if number == signal.SIGXCPU else "crash"
        return WorkerFailure(kind, method, f"{name} ({words})" if words else name, location, trace)
    what = f"the process exited with status {status >> 8} and no answer"
    return WorkerFailure("crash", method, what, location, trace)


def innermost(trace: str, root: Path) -> Location | None:
    """The innermost frame inside `root` of the first thread that has one, in a stack as faulthandler writes it."""
    current = trace.find("Current thread")
    for text in (trace[max(current, 0) :], trace):  # the thread that crashed, else any
        for match in _FRAME.finditer(text):
            path = Path(match["file"])
            if path.is_relative_to(root):
                return _location(path.relative_to(root).as_posix(), int(match["line"]))
    return None


def _location(file: Any, line: Any) -> Location | None:
    if not isinstance(file, str) or not file or PurePosixPath(file).is_absolute():
        return None
    return Location(file=one_line(file, 200), line=line if type(line) is int and line > 0 else None)


def _signal(number: int) -> tuple[str, str]:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}", ""
    return known.name, _SIGNALS.get(known, "")
