"""What the kernel says about another process. Each answer is 0 for a process that is gone."""

from __future__ import annotations

import os
import time

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, ended ones and collected children included.

    Own time from the process's CPU clock (nanoseconds), children's from `/proc` (ticks of 10 ms).
    """
    try:
        own = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3): the scheduler's clock of a process
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) * _TICK


def rss_bytes(pid: int) -> int:
    """Resident memory, pages of mapped files included."""
    return _status(pid, "VmRSS:")


def allocated_bytes(pid: int) -> int:
    """Resident or swapped memory that the process made itself: anonymous and shared, without mapped files."""
    return _status(pid, "RssAnon:", "RssShmem:", "VmSwap:")


def threads(pid: int) -> int:
    """How many threads it has."""
    return _status(pid, "Threads:", unit=1)


def _status(pid: int, *names: str, unit: int = 1024) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return sum(int(line.split()[1]) * unit for line in file if line.startswith(names))
    except OSError:
        return 0


def descendants(pid: int) -> dict[int, float]:
    """Seconds of CPU time of every process that a process has started, directly or not, and that is still there."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        parents[int(entry)] = int(fields[1])
        seconds[int(entry)] = (int(fields[11]) + int(fields[12])) * _TICK
    found: dict[int, float] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, of in parents.items():
            if of == parent and child not in found:
                found[child] = seconds[child]
                waiting.append(child)
    return found
