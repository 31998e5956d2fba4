"""One worker process as the parent sees it: ask and wait, watching its memory, its output and its death meanwhile.

A worker that breaks a rule or a limit is ended with its whole process group; what it was doing is read from the stack
it writes on the way out. Used from one thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from feedback.target import Unsupported
from feedback.workers import procfs, wire
from feedback.workers.failures import Kind, WorkerFailure, from_report, from_status, innermost, one_line
from feedback.workers.limits import Limits
from feedback.workers.output import Output
from feedback.workers.zygote_process import ZygoteProcess

_WATCH_SECONDS = 0.1
_STACK_SECONDS = 0.25
_DYING_MILLISECONDS = 1000
_TRACE_BYTES = 64 * 1024


class WatchedProcess:
    """A forked worker. `root` is its tree, `folder` its scratch space, `trace` a memory file for its stacks."""

    def __init__(
        self,
        zygote: ZygoteProcess,
        pid: int,
        channel: wire.Channel,
        outputs: dict[str, Output],
        trace: int,
        root: Path,
        folder: Path,
        limits: Limits,
    ) -> None:
        self.pid, self.root, self.limits = pid, root, limits
        self.failure: WorkerFailure | None = None
        self._zygote, self._channel, self._outputs, self._trace, self._folder = zygote, channel, outputs, trace, folder
        self._number = 0
        self._cpu_seconds: float | None = None
        self._status: int | None = None
        self._last_trace = ""
        self._forked_with = procfs.allocated_bytes(zygote.pid)
        self._death = os.pidfd_open(pid)
        self._poller = select.poll()
        for watched in (channel.fileno(), self._death, *(output.fileno() for output in outputs.values())):
            self._poller.register(watched, select.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._cpu_seconds is None

    def ask(self, method: str, request: dict[str, Any], seconds: float, fds: Sequence[int] = ()) -> Any:
        """Send one request and return the target's answer. `method` is what failures call it.

        Raises `WorkerFailure`, `Unsupported`, and `wire.WireError` for an argument that cannot cross.
        """
        if not self.alive:
            why = f"the worker is gone: {self.failure.line}" if self.failure else "the worker was closed"
            raise WorkerFailure(self.failure.kind if self.failure else "protocol", method, why)
        if self._unasked():
            raise self.end("protocol", method, "bytes came that no call had asked for")
        self._number += 1
        deadline = time.monotonic() + seconds
        try:
            self._channel.send({"id": self._number, **request}, fds, deadline)
        except wire.Closed:
            raise self._ended_itself(method) from None
        except wire.TimedOut:
            raise self._hung(method, seconds) from None
        return self.wait(method, seconds, deadline)

    def wait(self, method: str, seconds: float, deadline: float) -> Any:
        """The answer to the request in flight (the handshake is the answer to request 0)."""
        while True:
            ready = {fd for fd, _ in self._poller.poll(self._slice(deadline))}
            self._drain(ready)
            try:
                message = self._channel.poll() if self._channel.fileno() in ready or self._death in ready else None
            except wire.Closed:
                raise self._ended_itself(method) from None
            except wire.WireError as error:
                raise self.end("protocol", method, str(error)) from None
            if message is not None:
                return self._answer(method, message)
            if self._death in ready:
                raise self._ended_itself(method)
            self._watch_memory(method)
            if time.monotonic() >= deadline:
                raise self._hung(method, seconds)

    def end(self, kind: Kind, method: str, what: str, stack: bool = False) -> WorkerFailure:
        """End the process for a reason and return that reason, to be raised; with `stack`, ask it first where it is."""
        trace = self._stack() if stack else ""
        self.close()
        self.failure = WorkerFailure(kind, method, what, innermost(trace, self.root), trace)
        return self.failure

    def close(self) -> None:
        """Kill the process group, collect the process, remove its folder. Twice is once."""
        if not self.alive:
            return
        self._kill()
        self._status, self._cpu_seconds = self._zygote.reap(self.pid)
        for output in self._outputs.values():
            output.close()
        self._last_trace = self._written_trace()
        self._channel.close()
        os.close(self._death)
        os.close(self._trace)
        shutil.rmtree(self._folder, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """CPU time so far; after the end, of its whole life."""
        return procfs.cpu_seconds(self.pid) if self._cpu_seconds is None else self._cpu_seconds

    def output(self) -> dict[str, str]:
        """What it printed so far, `stdout` and `stderr`, the middle left out when it is long."""
        if self.alive:
            self._drain({output.fileno() for output in self._outputs.values()})
        return {name: output.text() for name, output in self._outputs.items()}

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Hold all threads of the worker: what is read meanwhile is what was there when the clock stopped."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _unasked(self) -> bool:
        try:
            return self._channel.pending()
        except wire.WireError:
            return True

    def _answer(self, method: str, message: wire.Message) -> Any:
        reply = message.value
        for fd in message.fds:
            os.close(fd)
        # Any value may be an array, whose comparisons are arrays too: types come first.
        number = reply.get("id") if isinstance(reply, dict) else None
        if message.fds or type(number) is not int or number != self._number:
            raise self.end("protocol", method, "an answer to another question came")
        if "ok" in reply:
            return reply["ok"]
        if "unsupported" in reply:
            payload = reply["unsupported"]
            text = str(payload.get("message")) if isinstance(payload, dict) else ""
            raise Unsupported(one_line(text or f"{method} is not implemented"))
        if "error" in reply:
            failure = from_report(method, reply["error"])
            if failure.kind == "memory":
                self.close()
                self.failure = failure
            raise failure
        if "broken" in reply:
            raise self.end("protocol", method, str(reply["broken"]))
        raise self.end("protocol", method, f"an answer that cannot cross the wire: {reply.get('unwireable')}")

    def _ended_itself(self, method: str) -> WorkerFailure:
        """The wire closed or the process ended. One that closed the wire and lives on has broken the rules."""
        dying = select.poll()
        dying.register(self._death, select.POLLIN)
        if not dying.poll(_DYING_MILLISECONDS):
            return self.end("protocol", method, "the worker closed its connection and went on running")
        self.close()
        self.failure = from_status(method, self._status, self._last_trace, self.root)
        return self.failure

    def _hung(self, method: str, seconds: float) -> WorkerFailure:
        return self.end("hang", method, f"no answer within {seconds:g} s", stack=True)

    def _watch_memory(self, method: str) -> None:
        used = procfs.allocated_bytes(self.pid) - self._forked_with
        if used > self.limits.memory_bytes:
            what = f"{used / 2**20:.0f} MiB allocated, the limit is {self.limits.memory_bytes / 2**20:.0f} MiB"
            raise self.end("memory", method, what, stack=True)

    def _stack(self) -> str:
        """Have it write its Python stacks; waits until they are there."""
        before = os.fstat(self._trace).st_size
        self._signal(signal.SIGUSR1)
        end = time.monotonic() + _STACK_SECONDS
        size = before
        while time.monotonic() < end:
            time.sleep(0.005)
            grown = os.fstat(self._trace).st_size
            if grown == size != before:
                break
            size = grown
        return self._written_trace(before)

    def _written_trace(self, start: int = 0) -> str:
        return os.pread(self._trace, _TRACE_BYTES, start).decode(errors="replace")

    def _drain(self, ready: set[int]) -> None:
        for output in self._outputs.values():
            fd = output.fileno()
            if fd in ready and not output.drain():
                with contextlib.suppress(KeyError):
                    self._poller.unregister(fd)

    def _slice(self, deadline: float) -> int:
        return max(0, min(int((deadline - time.monotonic()) * 1000) + 1, int(_WATCH_SECONDS * 1000)))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._death, number)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)
