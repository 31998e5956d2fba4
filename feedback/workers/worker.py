"""The child that candidate code runs in: confine itself, import the target from its tree, serve calls."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import sandbox
from ..sandbox import privileges
from . import memory, wire
from .batch import Layout
from .report import declines, report
from .tree import TargetTree


def run(spec: dict[str, Any], fds: list[int], parent: int) -> None:
    """Never returns.

    `fds`: the wire, standard output, standard error, a file for stack traces (`spec`: `pool._spec`).
    """
    wire_fd, stdout, stderr, trace = fds
    _become_worker(spec, stdout, stderr, trace, parent)
    channel = wire.Channel(socket.socket(fileno=wire_fd))
    tree = TargetTree(spec["root"], spec["adapter"], spec["packages"])
    try:
        rules = [*spec["rules"], (f"/proc/{os.getpid()}", "read")]
        level = sandbox.confine(rules, spec["loopback"]) if spec["confine"] else sandbox.PROCESS_ONLY
    except OSError as error:
        channel.send({"id": 0, "broken": f"the sandbox could not be set up: {error}"})
        os._exit(1)
    server = Server(channel, tree)
    server.answer(0, lambda: server.hello(level))
    server.serve()


def _become_worker(spec: dict[str, Any], stdout: int, stderr: int, trace: int, parent: int) -> None:
    """Own session, streams, limits and environment; tied to the life of the warm parent."""
    os.setsid()
    privileges.die_with_parent(parent)
    privileges.set_name(f"ia-{spec['role']}")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    for name, (soft, hard) in spec["rlimits"].items():
        _limit(getattr(resource, name), soft, hard)
    # Data already there (torch's tables, copied on write) is not the target's doing.
    _limit(resource.RLIMIT_DATA, *[_data_bytes() + 2 * spec["memory_bytes"]] * 2)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    os.environ.clear()
    os.environ.update(spec["environment"])
    os.chdir(spec["scratch"])
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    sys.argv = ["worker"]
    # After a crash, and on SIGUSR1 before the parent ends a hang, the Python stack says where it was.
    faulthandler.enable(trace, all_threads=True)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=True, chain=False)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Lower a limit; an existing lower hard limit stays."""
    current = resource.getrlimit(kind)[1]
    if current != resource.RLIM_INFINITY:
        soft, hard = min(soft, current), min(hard, current)
    resource.setrlimit(kind, (soft, hard))


def _data_bytes() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:")), 0)


class Server:
    """Answers one request at a time: `{"id", "op", ...}` -> `{"id", "ok" | "error" | "unsupported" | "unwireable"}`."""

    def __init__(self, channel: wire.Channel, tree: TargetTree) -> None:
        self.channel = channel
        self.tree = tree
        self.target: Any = None
        self.sessions: dict[int, Any] = {}
        self.numbers = itertools.count(1)
        self.batch: Callable[[], int] | None = None

    def hello(self, level: str) -> dict[str, Any]:
        """Import the target; the handshake says from which files it came."""
        try:
            self.target = self.tree.load()
        except ImportError:
            if foreign := self.tree.foreign():
                return {"level": level, "files": {}, "foreign": foreign}
            raise
        return {"level": level, **self.imported()}

    def imported(self) -> dict[str, Any]:
        """Digests of the files imported so far, and modules of the target that came from elsewhere."""
        return {"files": self.tree.imported(), "foreign": self.tree.foreign()}

    def serve(self) -> None:
        """Until the parent closes the wire."""
        while True:
            try:
                message = self.channel.receive()
            except wire.WireError:
                os._exit(0)
            request = message.value
            self.answer(request["id"], lambda request=request, fds=message.fds: self._perform(request, fds))

    def answer(self, number: int, perform: Callable[[], Any]) -> None:
        """Do it and send what came of it: exactly one frame."""
        try:
            reply = {"id": number, "ok": perform()}
        except NotImplementedError as error:
            key = "unsupported" if declines(error, self.tree) else "error"
            reply = {"id": number, key: report(error, self.tree)}
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of the target too: they end the call, not the worker.
            reply = {"id": number, "error": report(error, self.tree)}
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            self.channel.send(reply)
        except wire.Closed:
            os._exit(0)
        except wire.WireError as error:
            self.channel.send({"id": number, "unwireable": str(error)})

    def _perform(self, request: dict[str, Any], fds: tuple[int, ...]) -> Any:
        match request["op"]:
            case "call":
                return getattr(self.target, request["method"])(*request["args"], **request["kwargs"])
            case "start":
                number = next(self.numbers)
                self.sessions[number] = getattr(self.target, request["method"])(request["config"])
                return number
            case "session":
                session = self.sessions[request["session"]]
                return getattr(session, request["method"])(*request["args"], **request["kwargs"])
            case "end":
                self.sessions.pop(request["session"]).close()
                return None
            case "imported":
                return self.imported()
            case "batch_learn":
                results = self.target.operator_run(request["handle"], request["inputs"])
                return {name: [str(array.dtype), list(array.shape)] for name, array in results.items()}
            case "batch_map":
                self.batch = self._mapped(request["handle"], Layout.from_json(request["layout"]), fds[0])
                return None
            case "batch_go":
                assert self.batch is not None, "batch_map comes first"
                return self.batch()
            case "batch_end":
                self.batch = None
                return None
        raise ValueError(f"unknown request {request['op']!r}")

    def _mapped(self, handle: int, layout: Layout, fd: int) -> Callable[[], int]:
        segment = memory.mapped(fd, layout.size)
        os.close(fd)
        inputs, outputs = layout.views(segment)
        calls = [(inputs[index], slot) for index, slot in zip(layout.order, outputs, strict=True)]
        operator_run = self.target.operator_run

        def go() -> int:
            for arguments, slots in calls:
                results = operator_run(handle, dict(arguments))
                for name, slot in slots.items():
                    result = results[name]
                    if result.shape != slot.shape or result.dtype != slot.dtype:
                        raise TypeError(
                            f"operator_run returned {name} as {result.dtype}{list(result.shape)}, "
                            f"before as {slot.dtype}{list(slot.shape)}"
                        )
                    np.copyto(slot, result, casting="no")
            return len(calls)

        return go
