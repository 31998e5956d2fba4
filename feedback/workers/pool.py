"""Workers for a session: one warm parent, forked for each worker that is opened."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from feedback import sandbox as confinement
from feedback.errors import UserError
from feedback.sandbox import policy
from feedback.workers import scratch, wire
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Role, Scores, SessionHandle, Worker, checked_imports
from feedback.workers.limits import Limits
from feedback.workers.output import Output
from feedback.workers.timed import Batch
from feedback.workers.watched import WatchedProcess
from feedback.workers.zygote_process import PRELOAD, ZygoteProcess

if TYPE_CHECKING:
    from feedback.probe import Tree

__all__ = [
    "Batch",
    "Limits",
    "Role",
    "SandboxWarning",
    "Scores",
    "SessionHandle",
    "Worker",
    "WorkerFailure",
    "WorkerPool",
]

#: Importing torch took 2 s here; a cold disk takes many times that.
_WARM_UP_SECONDS = 180.0


class SandboxWarning(RuntimeWarning):
    """Candidate code is confined less than it should be; the text says what it could do."""


class WorkerPool:
    """Opens workers for trees of the target whose adapter module is `adapter`. A context manager; used from one thread.

    The warm parent starts with `warm_up` or the first `open`, in the background on entering the context. `readable` are
    further paths that workers may read (weights outside the user's cache that no launch configuration names).
    `sandbox=False` is for looking into a fault of the sandbox: never for candidates of an agent.
    """

    def __init__(
        self,
        adapter: str,
        limits: Limits | None = None,
        sandbox: bool = True,
        *,
        readable: Sequence[Path] = (),
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise UserError(f"workers need Linux (memory files, /proc, process groups); this is {sys.platform}")
        self.adapter = adapter
        self.limits = limits or Limits()
        self.level = confinement.level() if sandbox else confinement.PROCESS_ONLY
        self._sandbox, self._preload = sandbox, tuple(preload)
        self._readable = [policy.Rule(str(Path(path).resolve()), "read") for path in readable]
        self._zygote: ZygoteProcess | None = None
        self._rules: list[policy.Rule] | None = None
        self._interpreter = policy.Interpreter.current()
        self._processes: list[WatchedProcess] = []
        self._folder: Path | None = None
        self._opened = 0

    def gaps(self) -> tuple[str, ...]:
        """What the sandbox in force leaves open, for a verdict's `gaps`."""
        return confinement.gaps(self.level)

    def warm_up(self) -> None:
        """Start the warm parent and wait until it has imported everything. Raises `WorkerFailure`."""
        self._started().ready(_WARM_UP_SECONDS)

    def open(
        self, tree: Tree, role: Role = "candidate", *, built_from: Tree | None = None, loopback: bool = False
    ) -> Worker:
        """A new process that has imported the target from `tree.root` and nowhere else.

        `oracle` is for the trusted tree: its worker may add to the user's cache of weights. `built_from` is the tree
        that this one was made from by one more move: what workers of it compiled is copied, so that only what the move
        changed is compiled again. Name a tree whose moves were kept, never another candidate. With `loopback` it may
        start processes that talk to one another, in a network with nobody else. Raises `WorkerFailure` (method
        `import`) when the target cannot be imported or the process breaks a rule on the way.
        """
        if loopback and not self._sandbox:
            raise UserError("without a sandbox a worker has no network of its own")
        zygote = self._started()
        zygote.ready(_WARM_UP_SECONDS)
        root = Path(tree.root).resolve()
        if not root.is_dir():
            raise WorkerFailure("error", "import", f"the tree {root} is not a folder")
        self._opened += 1
        assert self._folder is not None
        built = None if role == "oracle" else self._built(root)
        if built is not None and built_from is not None and not built.exists():
            scratch.copy_built(self._built(Path(built_from.root).resolve()), built)
        place = scratch.prepare(self._folder / f"{self._opened}-{role}", built)
        spec = {**self._spec(tree, root, role, place), "loopback": loopback}
        process = self._forked(zygote, spec, root, place)
        seconds = self.limits.start_seconds
        try:
            hello = process.wait("import", seconds, time.monotonic() + seconds)
            checked_imports(process, hello)
            if str(hello.get("level")) != self.level:
                raise process.end("protocol", "import", f"the sandbox is {hello.get('level')!r}, not {self.level!r}")
        except BaseException:
            process.close()
            raise
        return Worker(process, role, self.level)

    def sibling(self, adapter: str, limits: Limits | None = None) -> WorkerPool:
        """A pool for another adapter whose workers may read what those of this one may."""
        made = WorkerPool(adapter, limits or self.limits, self._sandbox, preload=self._preload)
        made._readable = list(self._readable)
        return made

    def close(self) -> None:
        """End every worker and the warm parent, and remove their folders."""
        for process in self._processes:
            process.close()
        self._processes.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _started(self) -> ZygoteProcess:
        if self._zygote is None or not self._zygote.alive:
            if self._zygote is not None:
                self.close()
            if self._sandbox and (gaps := self.gaps()):
                warnings.warn(f"sandbox level {self.level!r}: {'; '.join(gaps)}", SandboxWarning, stacklevel=3)
            self._folder = Path(tempfile.mkdtemp(prefix="infra-agent-workers-")).resolve()
            self._zygote = ZygoteProcess(self._top, self._folder, self._interpreter, self._preload)
        return self._zygote

    @property
    def _top(self) -> str:
        return self.adapter.partition(".")[0]

    def _built(self, root: Path) -> Path:
        """Where workers of a tree keep what they compile."""
        assert self._folder is not None
        return self._folder / "built" / scratch.tree_key(root, self._top)

    def _spec(self, tree: Tree, root: Path, role: Role, place: scratch.Scratch) -> dict[str, Any]:
        if self._rules is None:
            judge = Path(__file__).resolve().parents[2]
            self._rules = policy.interpreter_rules(self._top, self._interpreter, judge)
        rules = [
            *self._rules,
            *policy.tree_rules(root),
            *policy.weight_rules(tree.config),
            *self._readable,
            *place.rules,
        ]
        cpu, file = self.limits.cpu_seconds, self.limits.memory_bytes
        limits = {"RLIMIT_CORE": (0, 0), "RLIMIT_CPU": (cpu, cpu + 5)}
        if role != "oracle":  # which may write a large model into the cache
            limits["RLIMIT_FSIZE"] = (file, file)
        return {
            "role": role,
            "root": str(root),
            "adapter": self.adapter,
            "packages": [str(path) for path in self._interpreter.prefixes + self._interpreter.site_folders],
            "scratch": str(place.folder),
            "environment": place.environment,
            "rules": rules,
            "confine": self._sandbox,
            "rlimits": limits,
            "memory_bytes": self.limits.memory_bytes,
        }

    def _forked(
        self, zygote: ZygoteProcess, spec: dict[str, Any], root: Path, place: scratch.Scratch
    ) -> WatchedProcess:
        ours, theirs = socket.socketpair()
        outputs = {"stdout": Output(), "stderr": Output()}
        trace = os.memfd_create("stacks", os.MFD_CLOEXEC)
        fds = [theirs.fileno(), *(output.writer for output in outputs.values()), trace]
        try:
            pid = zygote.fork(spec, fds, self.limits.start_seconds)
        except BaseException:
            ours.close()
            os.close(trace)
            shutil.rmtree(place.folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
            for output in outputs.values():
                output.close_writer()
        channel = wire.Channel(ours, wire.Caps())
        process = WatchedProcess(zygote, pid, channel, outputs, trace, root, place.folder, self.limits)
        self._processes = [known for known in self._processes if known.alive] + [process]
        return process
