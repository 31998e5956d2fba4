"""How much of the CPU other processes took between two moments.

Two sources, since neither is enough:

* `/proc/stat` sees everything, short-lived processes and stolen time included, but counts in ticks of 10 ms: over a
  unit of 150 ms on two cores that is an error of +-3 % a reading, as large as the 5 % that is to be told. So two ticks
  are held to be rounding.
* The CPU clocks of all visible processes (`clock_gettime`, nanoseconds) are exact, but a process that starts and ends
  in between is missed, and so is what lives in another process namespace.

The larger of the two counts. Where this process may use only some CPUs, only those lines of `/proc/stat` are read and
the process clocks are left out (they do not say where a process ran). Under a CPU quota of the container, the CPUs are
shared with strangers by design, so the process clocks against the quota are all that means anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

TICK_ROUNDING = 2


def process_cpu_seconds(pid: int) -> float:
    """CPU time of a process, dead threads included; 0.0 when it is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Seconds since boot: `busy` from /proc/stat, `ours` and `others` from process clocks (by pid)."""

    at: float
    busy: float
    ours: dict[int, float]
    others: dict[int, float]


class CpuMeter:
    """Reads CPU use of this process and `pids` (ours) against everything else. `blind` says why it cannot, if so."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.ours = frozenset((*pids, os.getpid()))
        allowed, quota = os.sched_getaffinity(0), cpu_quota()
        online = os.cpu_count() or len(allowed)
        self.capacity = min(float(len(allowed)), quota or float(len(allowed)))
        self._use_stat = quota is None
        self._use_clocks = quota is not None or len(allowed) == online
        self._names = {f"cpu{number}" for number in allowed}
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self.blind = self._blindness()

    def _blindness(self) -> str | None:
        try:
            reading = self.read()
        except (OSError, ValueError) as error:
            return f"cannot see other processes: {error}"
        if self._use_stat and reading.busy == 0.0:
            return "cannot see other processes: /proc/stat counts nothing here"
        return None

    def read(self) -> CpuReading:
        """One reading; about 0.15 ms with a hundred processes."""
        ours = {pid: process_cpu_seconds(pid) for pid in self.ours}
        others = {}
        if self._use_clocks:
            others = {
                int(name): process_cpu_seconds(int(name))
                for name in os.listdir("/proc")
                if name.isdigit() and int(name) not in self.ours
            }
        return CpuReading(time.monotonic(), self._busy() if self._use_stat else 0.0, ours, others)

    def _busy(self) -> float:
        busy = 0
        with open("/proc/stat", encoding="ascii") as lines:
            for line in lines:
                name, _, rest = line.partition(" ")
                if not name.startswith("cpu"):
                    break
                if name in self._names:
                    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, rest.split()[:8])
                    busy += user + nice + system + irq + softirq + steal
        return busy * self._tick

    def other_share(self, before: CpuReading, after: CpuReading) -> float:
        """Share of all CPU time between two readings that other processes took, 0..1."""
        available = (after.at - before.at) * self.capacity
        if available <= 0 or self.blind:
            return 0.0
        # A pid that was not there before may have run for long elsewhere; its time since then is unknown, /proc/stat
        # has it.
        clocks = sum(
            max(0.0, value - before.others[pid]) for pid, value in after.others.items() if pid in before.others
        )
        counted = 0.0
        if self._use_stat:
            counted = after.busy - before.busy - self.used(before, after) - TICK_ROUNDING * self._tick
        return min(1.0, max(clocks, counted, 0.0) / available)

    def used(self, before: CpuReading, after: CpuReading, pids: Iterable[int] | None = None) -> float:
        """CPU seconds of our own processes (of `pids` alone, when given) between two readings."""
        chosen = self.ours if pids is None else pids
        return sum(max(0.0, after.ours.get(pid, 0.0) - before.ours.get(pid, 0.0)) for pid in chosen)


@lru_cache(maxsize=1)
def cpu_quota() -> float | None:
    """CPUs that a control group grants this process, when it grants less than all.

    None without a quota (cgroup v1 and v2).
    """
    try:
        entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if controllers == "":
            for folder in _upwards(Path("/sys/fs/cgroup"), path):
                quota = _numbers(folder / "cpu.max")
                if quota:
                    return quota
        elif "cpu" in controllers.split(","):
            for folder in _upwards(Path("/sys/fs/cgroup/cpu"), path):
                quota = _numbers(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                if quota:
                    return quota
    return None


def _upwards(root: Path, path: str) -> list[Path]:
    inside = Path(path.lstrip("/"))
    return [root / inside, *(root / parent for parent in inside.parents)]


def _numbers(*files: Path) -> float | None:
    try:
        words = [word for file in files for word in file.read_text(encoding="ascii").split()]
        quota, period = float(words[0]), float(words[1])
    except (OSError, ValueError, IndexError):
        return None  # "max" is no number: no quota here
    return quota / period if quota > 0 < period else None
