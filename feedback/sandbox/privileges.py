"""What a worker gives up of its own accord, and how it is tied to the life of its parent. ctypes and /proc only."""

from __future__ import annotations

import ctypes
import os
import signal

from .libc import checked, libc

_SET_DEATH_SIGNAL, _SET_NAME, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 15, 36, 38

#: Kept where held: as root in a container, files of other owners must stay readable (Landlock decides which files those
#: are).
_CAP_DAC_OVERRIDE = 1 << 1
_CAPABILITY_VERSION_3 = 0x20080522


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def give_up(held: int) -> None:
    """No new privileges through set-uid programs, and of the capabilities `held` (before a namespace of one's own gave
    more) nothing but passing file modes. Raises `OSError`.
    """
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)
    kept = held & held_capabilities() & _CAP_DAC_OVERRIDE
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)(_CapabilityData(kept, kept, 0), _CapabilityData(0, 0, 0))
    checked("capset", libc().capset(ctypes.byref(header), data))


def held_capabilities() -> int:
    """The permitted capabilities of this process as a bit mask."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that forked this process ends; exits at once when `parent` (a pid) is already gone."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none can slip away."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """What `top` and `ps` show (15 bytes)."""
    _prctl(_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def _prctl(option: int, value: object) -> None:
    checked(f"prctl {option}", libc().prctl(option, value, 0, 0, 0))
