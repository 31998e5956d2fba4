"""Peers as processes: each in a virtual environment of its own, stopped (SIGSTOP) while another one is timed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"


class PeerFailed(Exception):
    """A peer could not be installed, started or run; one line."""


@dataclass(frozen=True)
class Peer:
    """An engine to stand beside: `driver` is its program, `packages` what its environment needs (empty: ours)."""

    name: str
    driver: str
    setup: dict[str, Any]
    packages: tuple[str, ...] = ()
    #: Packages that come along and break at import beside this torch.
    unwanted: tuple[str, ...] = ()


def environment(peer: Peer, folder: Path, constraints: Sequence[str] = ("torch==2.13.0",)) -> Path:
    """The Python of the peer's environment, made on first use. Raises `PeerFailed` with pip's last line."""
    if not peer.packages:
        return Path(sys.executable)
    home = folder / "-".join(peer.packages).replace("==", "-")
    python, stamp = home / "bin" / "python", home / ".installed"
    if not stamp.is_file():
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        # torch first and alone, so that the peer's own requirement finds it and does not bring another build.
        if any(name.startswith("vllm") for name in peer.packages):
            _run([*pip, "install", *constraints])
        _run([*pip, "install", *peer.packages])
        if peer.unwanted:
            _run([*pip, "uninstall", "--yes", *peer.unwanted])
        stamp.touch()
    return python


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise PeerFailed(f"{' '.join(argv[1:5])} ...: {last}")


class Running:
    """A started peer. It runs only inside `one_pass`; the rest of the time its whole process group is stopped."""

    def __init__(self, peer: Peer, python: Path, log: Path, start_seconds: float = 600.0) -> None:
        self.peer = peer
        self.log = log
        self._log = log.open("wb")
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [str(python), str(DRIVERS / peer.driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        begun = time.perf_counter()
        try:
            self.configuration = str(self._ask(peer.setup, start_seconds)["ready"])
        except PeerFailed:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - begun
        self._signal(signal.SIGSTOP)

    def one_pass(self, prompts: Sequence[str], max_tokens: Sequence[int], seconds: float = 300.0) -> float:
        """Output tokens per second of one whole pass, on the parent's clock."""
        self._signal(signal.SIGCONT)
        try:
            begun = time.perf_counter()
            answer = self._ask({"prompts": list(prompts), "max_tokens": list(max_tokens)}, seconds)
            took = time.perf_counter() - begun
        finally:
            self._signal(signal.SIGSTOP)
        if answer["output_tokens"] != sum(max_tokens):
            asked = sum(max_tokens)
            raise PeerFailed(f"{self.peer.name} made {answer['output_tokens']} tokens where {asked} were asked for")
        return sum(max_tokens) / took

    def close(self) -> None:
        """End the process group."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            self._signal(number)
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self.peer.name} ended: {self._last_line()}") from None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            why = self._last_line() if ready else f"no answer in {seconds:.0f} s"
            raise PeerFailed(f"{self.peer.name}: {why}")
        return json.loads(line)

    def _last_line(self) -> str:
        self._log.flush()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"
