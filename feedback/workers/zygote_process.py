"""The parent's end of the warm parent: start it, have it fork, have it collect the dead."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedback.sandbox.policy import Interpreter, module_folders
from feedback.workers import wire
from feedback.workers.failures import WorkerFailure, one_line
from feedback.workers.scratch import environment

#: Imported once in the warm parent where installed: what inference engines in Python stand on. None of them starts a
#: thread. pydantic imports its parts when they are used, so they are named.
PRELOAD = (
    *("numpy", "torch", "triton", "safetensors.torch", "tokenizers", "gguf", "jinja2.sandbox"),
    *("pydantic.main", "pydantic.types", "pydantic.json_schema", "tomllib", "sysconfig", "subprocess"),
)


class ZygoteProcess:
    """A running warm parent. `folder` is its scratch space, removed by it should this process vanish."""

    def __init__(self, top: str, folder: Path, interpreter: Interpreter, preload: Sequence[str] = PRELOAD) -> None:
        ours, theirs = socket.socketpair()
        setup = {
            "path": [str(path) for path in module_folders(top, interpreter)],
            "prefix": sys.prefix,
            "exec_prefix": sys.exec_prefix,
            "preload": list(preload),
            "folder": str(folder),
        }
        self._log = folder / "warm-parent.txt"
        program = Path(__file__).with_name("zygote.py")
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-u", str(program), str(theirs.fileno()), json.dumps(setup)],
                env=environment(folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = wire.Channel(ours)
        self._ready: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def ready(self, seconds: float) -> Mapping[str, Any]:
        """Wait until everything is imported: `missing` packages and `threads` (1, or forking is unsafe)."""
        if self._ready is None:
            self._ready = self._answer("warm_up", time.monotonic() + seconds)
            if self._ready["threads"] != 1:
                what = f"the warm parent has {self._ready['threads']} threads, not 1; forking it is unsafe"
                raise WorkerFailure("protocol", "warm_up", what)
        return self._ready

    def fork(self, spec: dict[str, Any], fds: Sequence[int], seconds: float) -> int:
        """A new worker's process id."""
        reply = self._ask({"op": "fork", "spec": spec}, fds, seconds)
        if "pid" not in reply:
            raise WorkerFailure("crash", "open", f"no new process: {reply.get('failed')}")
        return int(reply["pid"])

    def reap(self, pid: int) -> tuple[int | None, float]:
        """Exit status (as of `os.wait`; None: it does not end) and CPU seconds of a worker that was killed or has died.

        When the warm parent is gone too, the status is that of SIGKILL: its children die with it.
        """
        try:
            reply = self._ask({"op": "reap", "pid": pid}, (), 30.0)
        except WorkerFailure:
            return int(signal.SIGKILL), 0.0
        return reply["status"], float(reply["cpu"])

    def close(self) -> None:
        """End it and all its workers."""
        self._channel.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def _ask(self, request: dict[str, Any], fds: Sequence[int], seconds: float) -> dict[str, Any]:
        self.ready(seconds)
        deadline = time.monotonic() + seconds
        try:
            self._channel.send(request, fds, deadline)
        except wire.WireError as error:
            raise self._failure(str(request["op"]), error) from error
        return self._answer(str(request["op"]), deadline)

    def _answer(self, what: str, deadline: float) -> dict[str, Any]:
        try:
            return self._channel.receive(deadline).value
        except wire.WireError as error:
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: wire.WireError) -> WorkerFailure:
        if isinstance(error, wire.TimedOut):
            return WorkerFailure("hang", what, "the warm parent does not answer")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        said = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        last = one_line(said[-1]) if said else "it said nothing"
        return WorkerFailure("crash", what, f"the warm parent ended: {last}")
