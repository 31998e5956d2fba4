"""The other ranks as processes of this machine: started, told each step, waited for, and ended, whatever happens.

A rank is `python -m target_engine.parallel.worker`. Steps go through a pipe, so that a rank waits for its next step as
long as it takes, and learns at once when the rank that schedules is gone; tensors go through the collectives.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError, RankFailure
from target_engine.execution.host import available_threads
from target_engine.launch import LaunchConfig
from target_engine.parallel.topology import Topology

STARTING = 120.0
"""Seconds that a rank may take to import, and again to load its weights."""
GRACE = 0.5
"""Seconds in which a rank that has died shows as dead."""
PER_CORE = 4
"""More ranks than so many on one core make no sense."""
AT_ONCE = 32 << 10
"""Bytes that a pipe takes without its other end reading."""
IF_SLOW = "raise rank_timeout if it is only slow"
SLOW_START = "give fewer ranks, or end what else runs on this machine"
SEE_STDERR = "standard error may tell why"
AGAIN = "start a new engine"


@dataclass(frozen=True)
class Start:
    """All that a rank needs to join."""

    config: LaunchConfig
    checkpoint: Checkpoint
    rank: int
    folder: str
    threads: int


@dataclass(frozen=True)
class Ready:
    """What a rank holds, in bytes."""

    weight_bytes: int
    kv_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class Failed:
    """Why a rank ends. `victim`: a collective failed it, so the fault is another rank's."""

    why: str
    victim: bool


class Progress:
    """How many collectives each rank has entered, in memory that all ranks share: tells which one holds up the rest."""

    def __init__(self, folder: str, ranks: int, rank: int) -> None:
        self.path, self.rank, self.last = Path(folder) / "progress", rank, "a collective"
        if not self.path.exists():
            self.path.write_bytes(bytes(8 * ranks))
        self._counts = np.memmap(self.path, np.int64, "r+", shape=(ranks,))

    def entered(self, name: str) -> None:
        """This rank comes to its next collective."""
        self.last = name
        self._counts[self.rank] += 1

    def last_ones(self) -> list[int]:
        """The ranks that have entered the fewest collectives, fewer than this one has."""
        counts = self._counts.tolist()
        return [rank for rank, count in enumerate(counts) if count == min(counts) < counts[self.rank]]


def threads_of_a_rank(config: LaunchConfig) -> int:
    """CPU threads of each rank: the machine's, shared out."""
    return max(1, (config.threads or available_threads()) // (config.tp * config.cp))


class Processes:
    """Ranks 1, 2, ... of a plan. After any failure all of them are gone, and every later call raises it again."""

    def __init__(self, config: LaunchConfig, checkpoint: Checkpoint) -> None:
        self.topology = Topology(config.tp, config.cp)
        self.timeout = config.rank_timeout
        size, cores = self.topology.size, os.cpu_count() or 1
        if size > PER_CORE * cores:
            raise EngineError(
                f"plan: tp {config.tp} x cp {config.cp} are {size} ranks, which make no sense on {cores} cores; "
                f"give at most {PER_CORE * cores}"
            )
        self.folder = tempfile.mkdtemp(prefix="target-engine-ranks-")
        self.progress = Progress(self.folder, size, 0)
        self.links: dict[int, Connection] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failure: RankFailure | None = None
        self._end = weakref.finalize(self, _end, self.processes, self.links, self.folder)
        for rank in range(1, size):
            self._spawn(Start(config, checkpoint, rank, self.folder, threads_of_a_rank(config)))

    def _spawn(self, start: Start) -> None:
        ours, theirs = Pipe()
        root = str(Path(__file__).parents[2])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": str(start.threads),
        }
        name = self.topology.name(start.rank)
        try:
            self.processes[start.rank] = subprocess.Popen(
                [sys.executable, "-P", "-m", "target_engine.parallel.worker", str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is rank 0's to handle
            )
        except OSError as error:
            raise self.fail(f"{name} could not be started: {error.strerror}: give fewer ranks") from error
        theirs.close()
        self.links[start.rank] = ours
        try:
            ours.send(start)
        except OSError as error:
            check = f"{sys.executable} -c 'import target_engine.parallel.worker'"
            raise self.fail(f"{name} ended as soon as it was started: see whether {check} works") from error

    def expect(self, what: type, seconds: float, doing: str, remedy: str) -> dict[int, Any]:
        """One answer of each rank, all of type `what`, within `seconds`; `remedy` for those that are late."""
        if self._failure is not None:
            raise self._failure
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < len(self.links):
            waiting = {self.links[rank]: rank for rank in self.links if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(self.topology.name(rank) for rank in waiting.values())
                raise self.fail_with(RankFailure(f"{late} did not {doing} within {seconds:g} s: {remedy}"))
            for link in ready:
                rank = waiting[link]  # pyrefly: ignore[bad-index]
                try:
                    answers[rank] = self.links[rank].recv()
                except (EOFError, OSError):
                    raise self.fail_with(self._ended(rank)) from None
                if not isinstance(answers[rank], what):
                    raise self.fail_with(self._ended(rank), {rank: answers[rank]})
        return answers

    def begin(self, what: str, batch: Any) -> None:
        """Send a step to every rank."""
        if self._failure is not None:
            raise self._failure
        message = pickle.dumps((what, batch), pickle.HIGHEST_PROTOCOL)
        for rank, link in self.links.items():
            if self.processes[rank].poll() is not None:
                raise self.fail_with(self._ended(rank))
            try:
                if not _sent(link, message, self.timeout):
                    late = f"{self.topology.name(rank)} did not take its step within {self.timeout} s"
                    raise self.fail(f"{late}: {IF_SLOW}")
            except OSError:
                raise self.fail_with(self._ended(rank)) from None

    def end(self) -> None:
        """Wait until every rank has computed the step."""
        self.expect(bool, self.timeout, "finish its step", IF_SLOW)

    def _ended(self, rank: int) -> RankFailure:
        """What is known when a rank is gone and has not said why."""
        return RankFailure(f"{self.topology.name(rank)} ended: {SEE_STDERR}")

    def fail_with(self, error: BaseException, said: dict[int, Any] | None = None) -> RankFailure:
        """End all ranks; the one line that tells which of them is at fault, found by what each said and did."""
        if self._failure is not None:
            return self._failure
        said = dict(said or {})
        deadline = time.monotonic() + GRACE
        died: list[int] = []
        while not died and not any(_guilty(words) for words in said.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
            ended = [rank for rank, process in self.processes.items() if process.poll() is not None]
            for rank, link in self.links.items():
                said |= _last_words(rank, link)
            died = [rank for rank in ended if rank not in said]
        for rank in died:
            code = self.processes[rank].returncode
            return self.fail(f"{self.topology.name(rank)} died ({_exit(code)}): {_why_dead(code)}")
        for rank, words in sorted(said.items()):
            if _guilty(words):
                return self.fail(f"{self.topology.name(rank)}: {words.why}")
        behind = [rank for rank in self.progress.last_ones() if rank not in said]
        if behind:
            hanging = ", ".join(self.topology.name(rank) for rank in behind)
            where = f"it did not come to {self.progress.last} within {self.timeout} s"
            return self.fail(f"{hanging} hangs: {where}: {IF_SLOW}")
        return self.fail(str(error))

    def fail(self, why: str) -> RankFailure:
        """End all ranks for this reason."""
        self._failure = self._failure or RankFailure(why)
        self.stop()
        return self._failure

    def stop(self) -> None:
        """End all ranks and wait until they are gone."""
        self._end()
        self._failure = self._failure or RankFailure(f"the ranks were stopped: {AGAIN}")


def _end(processes: dict[int, subprocess.Popen[bytes]], links: dict[int, Connection], folder: str) -> None:
    """Close the pipes, which ends idle ranks, and kill those that are busy."""
    for link in links.values():
        link.close()
    deadline = time.monotonic() + GRACE
    for process in processes.values():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _sent(link: Connection, message: bytes, seconds: float) -> bool:
    """Send; False when the other end does not read a message that the pipe cannot hold."""
    if len(message) <= AT_ONCE:
        link.send_bytes(message)
        return True
    errors: list[OSError] = []

    def send() -> None:
        try:
            link.send_bytes(message)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


def _last_words(rank: int, link: Connection) -> dict[int, Any]:
    """What a rank has said that nobody has read yet, if it says why it ends."""
    try:
        while link.poll():
            words = link.recv()
            if isinstance(words, Failed):
                return {rank: words}
    except (EOFError, OSError):
        pass
    return {}


def _guilty(words: Any) -> bool:
    """Whether a rank says that it failed by itself."""
    return isinstance(words, Failed) and not words.victim


def _exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"{signal.Signals(-code).name}, signal {-code}"
    except ValueError:
        return f"signal {-code}"


def _why_dead(code: int) -> str:
    """What to do about a rank that ended with this code and no word."""
    if code == -signal.SIGKILL:
        return "if memory ran out, give fewer ranks or lower max_batch or max_model_len"
    return SEE_STDERR
