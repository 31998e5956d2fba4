"""What the machine can do, as far as a diagnosis asks. Read from the system, nothing is run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
COMPILERS = ("cc", "gcc", "clang")


def machine_facts() -> dict[str, float | bool]:
    """`machine.cores` this process may use, `machine.compiler`, `machine.bf16` (hardware arithmetic).

    `machine.memory_gib`.
    """
    return {
        "machine.cores": float(len(os.sched_getaffinity(0))),
        "machine.compiler": any(shutil.which(name) for name in COMPILERS),
        "machine.bf16": bool(BF16_FLAGS & cpu_flags()),
        "machine.memory_gib": memory_bytes() / 2**30,
    }


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first processor (`flags` on x86, `Features` on Arm); empty where they cannot be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def memory_bytes(path: Path = Path("/proc/meminfo")) -> float:
    """Physical memory in bytes; 0.0 where it cannot be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return float(line.split()[1]) * 1024
    return 0.0
