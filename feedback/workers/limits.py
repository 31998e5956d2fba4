"""What a worker may use before it is ended."""

from __future__ import annotations

from dataclasses import dataclass, field


def default_memory_bytes() -> int:
    """Three quarters of the machine's memory; 8 GiB where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as facts:
            kib = next(int(line.split()[1]) for line in facts if line.startswith("MemTotal:"))
    except (OSError, StopIteration):
        return 8 << 30
    return kib * 1024 * 3 // 4


@dataclass(frozen=True)
class Limits:
    """Seconds are wall time on the parent's clock, except `cpu_seconds`, the CPU time of a worker's whole life.

    `memory_bytes` bounds what a worker allocates itself (private and shared memory beyond what it was forked with;
    pages of mapped files, weights among them, do not count). `start_seconds` bounds `open` (import and `create()`),
    `call_seconds` every other call that does not say otherwise.
    """

    call_seconds: float = 120.0
    start_seconds: float = 60.0
    memory_bytes: int = field(default_factory=default_memory_bytes)
    cpu_seconds: int = 4 * 3600

    def __post_init__(self) -> None:
        for name in ("call_seconds", "start_seconds", "memory_bytes", "cpu_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"limit {name} must be positive, not {getattr(self, name)!r}")
