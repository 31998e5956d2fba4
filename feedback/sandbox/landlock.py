"""Landlock (Linux 5.13 and newer) by ctypes: an allow-list of paths that a process binds itself to for good.

Interface: https://docs.kernel.org/userspace-api/landlock.html. The ABI number says which rights the kernel knows; all
that it knows are handled, so whatever no rule grants is denied. From ABI 4 on TCP is denied too, from ABI 6 on signals
and abstract sockets to processes outside.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

from .libc import checked, libc

# The same numbers on every architecture (added after the system call tables were unified).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
#: Rights that make, remove or move directory entries (bits 4 to 12).
_ENTRIES = 0x1FF0
#: Making device nodes (bits 6 and 11) is never granted.
_NODES = 1 << 6 | 1 << 11
#: Rights that make sense for something that is no directory; others make the kernel refuse the rule.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

#: The words of a rule. `list` shows names and nothing in them: Python's import system has to list a folder to search
#: it.
ACCESS = {
    "list": _READ_DIR,
    "read": _READ_FILE | _READ_DIR,
    "execute": _READ_FILE | _READ_DIR | _EXECUTE,
    "device": _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV,
    "write": _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _REFER | (_ENTRIES & ~_NODES),
}


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi_version() -> int:
    """The kernel's Landlock ABI, 0 where there is none (old kernel, switched off, not Linux)."""
    if not hasattr(os, "memfd_create"):  # Linux alone has it; elsewhere the number below means another system call
        return 0
    version = libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, version)


def handled(abi: int) -> int:
    """All file-system rights that a kernel of this ABI knows."""
    rights = _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _ENTRIES
    if abi >= 2:
        rights |= _REFER
    if abi >= 3:
        rights |= _TRUNCATE
    if abi >= 5:
        rights |= _IOCTL_DEV
    return rights


def restrict(rules: Sequence[tuple[str, str]], loopback: bool = False) -> int:
    """Bind the calling thread to `rules`, (path, word of `ACCESS`) pairs; returns the ABI used. With `loopback` TCP is
    not denied: the process is alone in its network.

    A path that does not exist grants nothing and is skipped. Needs `no_new_privs` (`privileges.give_up`). Raises
    `OSError`.
    """
    abi = abi_version()
    rights = handled(abi)
    attributes = _Ruleset(rights, 0b11 if abi >= 4 and not loopback else 0, 0b11 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = checked(
        "landlock_create_ruleset",
        libc().syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0),
    )
    try:
        for path, access in rules:
            _add(ruleset, path, ACCESS[access] & rights)
        checked("landlock_restrict_self", libc().syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return abi


def _add(ruleset: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            allowed &= _OF_FILES
        if allowed:
            rule = _PathBeneath(allowed, place)
            checked(
                f"landlock_add_rule {path}", libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
            )
    finally:
        os.close(place)
