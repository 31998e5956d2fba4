"""The machine and software that a measurement was made on: without it a figure means nothing elsewhere."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from feedback import sandbox

#: Packages whose version decides results or times.
_PACKAGES = ("infra-agent", "torch", "numpy", "triton", "tokenizers", "safetensors", "gguf")

#: Processor features that decide which kernels run.
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve")


@cache
def environment() -> dict[str, Any]:
    """Python, packages, processor, memory, kernel, sandbox level, and the commit of the checkout where there is one.

    Read once per process; None where the machine does not say.
    """
    cpu = _cpu()
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "cpu": cpu.get("model name") or cpu.get("CPU part") or platform.machine(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": [flag for flag in _FLAGS if flag in (cpu.get("flags") or cpu.get("Features") or "").split()],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "sandbox": sandbox.level(),
        "threads": {name: os.environ[name] for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY") if name in os.environ},
        "git": _commit(Path(__file__).resolve().parent.parent),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, str]:
    """The first processor's block of `/proc/cpuinfo`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, `+changes` when files differ from it; None without git or outside a
    repository.
    """
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()
