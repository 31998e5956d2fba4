"""Confinement of worker processes: what candidate code may read, write and reach.

`policy` (parent side) decides the rules; `landlock`, `seccomp`, `network` and `privileges` (worker side, standard
library and ctypes only, no third-party import) apply them. What a machine cannot enforce is named: `level()` for
people, `gaps()` for verdicts. Nothing here may import another room: a worker loads these files by path.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import landlock, network, privileges, seccomp

FULL = "landlock+seccomp"
FILES_ONLY = "landlock"
PROCESS_ONLY = "process only"

_GAPS = {
    FULL: (),
    FILES_ONLY: (
        "candidate code could open network sockets: this kernel or architecture has no usable seccomp filter",
    ),
    PROCESS_ONLY: (
        "candidate code could read and write any file of this user: this kernel has no Landlock (Linux 5.13 and newer)",
        "candidate code could open network sockets",
    ),
}


def level() -> str:
    """What this machine can enforce: `landlock+seccomp`, `landlock`, or `process only`.

    The last means an own process with limits and a stripped environment, and no more. Asks the kernel, changes nothing.
    """
    if landlock.abi_version() < 1:
        # A seccomp filter alone would still let candidate code read the evaluator: no better name for it than the
        # weakest.
        return PROCESS_ONLY
    return FULL if seccomp.available() else FILES_ONLY


def gaps(enforced: str) -> tuple[str, ...]:
    """What a sandbox level leaves open, one sentence each; empty for the full level."""
    return _GAPS[enforced]


def confine(rules: Sequence[tuple[str, str]], loopback: bool = False) -> str:
    """Confine the calling process (it must have one thread) for good; children inherit it. Returns the level reached.

    `rules` are (path, access) pairs of `landlock.ACCESS`; everything else is out of reach. With `loopback` it and what
    it starts may talk to one another by TCP, in a network that has nobody else. Raises `OSError` when a mechanism that
    the kernel offers refuses: a half-built sandbox must not pass for one.
    """
    held = privileges.held_capabilities()
    if loopback:
        network.leave_for_loopback()
    privileges.give_up(held)
    reached = PROCESS_ONLY
    if landlock.abi_version() >= 1:
        landlock.restrict(rules, loopback)
        reached = FILES_ONLY
    if seccomp.available():
        seccomp.install(loopback)
        reached = FULL if reached == FILES_ONLY else reached
    return reached
