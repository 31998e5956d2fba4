"""The warm parent of all workers: imports what every target needs, runs no operator, forks one child per request.

Run by path as `python -I -S zygote.py FD SETUP`, so that neither environment nor current folder nor `.pth` files
decide what is
imported; `SETUP` is the JSON that `zygote_process` makes. It must have one thread when it forks: OpenMP and BLAS
threads would not survive in the child, hence nothing is computed here. Its parent's death, kill -9 included, shows as
the end of the control socket; then every worker is killed, and every process that a worker left behind.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import site
import socket
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

_PACKAGE = "_judge"
_REAP_SECONDS = 10.0
_SWEEP_SECONDS = 1.0


def main() -> None:
    """Serve fork and reap requests until the control socket closes."""
    control, setup = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    sys.path.extend(setup["path"])
    sys.prefix, sys.exec_prefix = setup["prefix"], setup["exec_prefix"]
    for give in (site.setquit, site.sethelper, site.setcopyright):  # `exit` and the like, which -S leaves out
        give()
    missing = []
    for name in setup["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    wire, worker, privileges = _own_modules("workers.wire", "workers.worker", "sandbox.privileges")
    privileges.adopt_orphans()
    privileges.set_name("ia-warm")
    gc.collect()
    gc.freeze()  # else the first collection in a child would copy every page that holds an object
    channel = wire.Channel(control)
    channel.send({"missing": missing, "threads": len(os.listdir("/proc/self/task"))})
    zygote = Zygote(channel, worker)
    try:
        zygote.serve(wire)
    except wire.Closed:
        zygote.end()
        shutil.rmtree(setup["folder"], ignore_errors=True)
    os._exit(0)


def _own_modules(*names: str) -> list[Any]:
    """Files of this room under a private package name, closed again: no later import finds anything through it."""
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules[_PACKAGE] = package
    found = [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and hasattr(module, "__path__"):
            module.__path__ = []
    return found


class Zygote:
    """Requests: `{"op": "fork", "spec"}` with four descriptors -> `{"pid"}`; `{"op": "reap", "pid"}` -> `{"status",
    "cpu"}`.
    """

    def __init__(self, channel: Any, worker: Any) -> None:
        self.channel = channel
        self.worker = worker
        self.workers: set[int] = set()

    def serve(self, wire: Any) -> None:
        """Until `wire.Closed`."""
        while True:
            try:
                message = self.channel.receive(time.monotonic() + _SWEEP_SECONDS if self.workers else None)
            except wire.TimedOut:
                self._sweep()
                continue
            request = message.value
            if request["op"] == "fork":
                self.channel.send(self._fork(request["spec"], message.fds))
            else:
                self.channel.send(self._reap(request["pid"]))

    def end(self) -> None:
        """Kill everything that was ever started here."""
        for pid in list(self.workers):
            _kill(pid)
            self._reap(pid)
        self._sweep()

    def _fork(self, spec: dict[str, Any], fds: tuple[int, ...]) -> dict[str, Any]:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            return {"failed": str(error)}
        if pid == 0:
            try:
                self.channel.close()
                self.worker.run(spec, list(fds), parent)
            except BaseException:
                traceback.print_exc()
            os._exit(70)
        for fd in fds:
            os.close(fd)
        self.workers.add(pid)
        return {"pid": pid}

    def _reap(self, pid: int) -> dict[str, Any]:
        """Wait for a worker that is dead or dying.

        `status` as of `os.wait`, None when it does not end; `cpu` in seconds.
        """
        end = time.monotonic() + _REAP_SECONDS
        status, cpu = None, 0.0
        while pid in self.workers:
            done, code, usage = os.wait4(pid, os.WNOHANG)
            if done:
                status, cpu = code, usage.ru_utime + usage.ru_stime
                self.workers.discard(pid)
            elif time.monotonic() > end:
                break
            else:
                time.sleep(0.0005)
        self._sweep()
        return {"status": status, "cpu": cpu}

    def _sweep(self) -> None:
        """Kill processes that workers left behind: whoever lost its parent is our child, and no worker."""
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        end = time.monotonic() + _REAP_SECONDS
        while time.monotonic() < end:
            try:
                orphans = {int(pid) for pid in children.read_text().split()} - self.workers
            except OSError:  # a kernel without this file; workers' groups are killed all the same
                return
            if not orphans:
                return
            for pid in orphans:
                _kill(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    """The process, and its group where it leads one."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
