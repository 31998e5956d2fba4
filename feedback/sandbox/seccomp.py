"""A seccomp filter: system calls that no inference engine needs and that would reach out of the sandbox.

Landlock sees files; this sees the rest: sockets (also through io_uring, which would go round a filter on `socket`),
namespaces, in which a process has all rights over a small world of its own, other processes' memory, the system clock,
priorities by which a candidate could starve the base it is timed against. A denied call returns EPERM, so that Python
shows a plain `PermissionError`. `program` is pure; `install` binds the calling thread and all that it starts later.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import NamedTuple

from .libc import checked, libc

_SET_MODE_FILTER = 1
_ACTION_AVAILABLE = 2
_RETURN_ERRNO, _RETURN_ALLOW = 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38

# Classic BPF: load a word of `struct seccomp_data`, compare, return.
_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE = 0, 4
_AT_FIRST_ARGUMENT, _AT_SECOND_ARGUMENT, _AT_THIRD_ARGUMENT = 16, 24, 32  # little-endian: the low halves

_X32_BIT = 0x40000000  # x86-64 kernels accept a second numbering of the same calls


class Machine(NamedTuple):
    """What differs by architecture: the audit number, the number of `seccomp` itself, the column of `DENIED`."""

    audit: int
    seccomp: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 317, 0), "aarch64": Machine(0xC00000B7, 277, 1)}

#: Denied calls: numbers on (x86_64, aarch64); -1 where the call does not exist.
DENIED: dict[str, tuple[int, int]] = {
    # the network, and ways round this filter
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    # other processes and the kernel's keys
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # clocks
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    # priority over the base that runs beside it
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # the machine
    "open_by_handle_at": (304, 265),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "iopl": (172, -1),
    "ioperm": (173, -1),
}

#: AF_INET and AF_INET6; and AF_NETLINK, whose protocol 0 tells the interfaces of one's own network.
_INTERNET, _NETLINK = (2, 10), 16

#: Pairs of sockets are streams only: others could be sent from to a socket file of another program.
_SOCKETPAIR, _KIND, _STREAM = (53, 199), 0xF, 1

#: New threads and processes stay in the namespaces they are in. `clone3` hides its flags behind a pointer: it is said
#: not to exist, and C libraries use `clone`.
_CLONE, _CLONE3, _NAMESPACES = (56, 220), 435, 0x7E020000

#: `prlimit64` is allowed on oneself (pid 0) only: it would let a candidate cut its judge's limits.
_PRLIMIT = (302, 261)


class Instruction(NamedTuple):
    """One classic BPF instruction: operation, jump when true, jump when false, constant."""

    code: int
    true: int
    false: int
    constant: int


def program(machine: str, loopback: bool = False) -> list[Instruction]:
    """The filter for an architecture (a key of `MACHINES`). With `loopback` sockets of the internet's kind are allowed,
    for a process that is alone in its network; others, which reach past it by a file's name, are not.
    """
    here = MACHINES[machine]
    socket = DENIED["socket"][here.column]
    # (instruction, constant, label to jump to when it is true, label when it is false); None falls through
    steps: list[tuple[int, int, str | None, str | None]] = []
    labels: dict[str, int] = {}

    def only(number: int, name: str, *checks: tuple[int, int, str | None, str | None]) -> None:
        """Checks for one call, which come to an end; other calls go on behind them."""
        steps.append((_JUMP_EQUAL, number, None, name))
        steps.extend(checks)
        labels[name] = len(steps)

    steps += [
        (_LOAD, _AT_ARCHITECTURE, None, None),
        (_JUMP_EQUAL, here.audit, None, "deny"),
        (_LOAD, _AT_NUMBER, None, None),
    ]
    if machine == "x86_64":
        steps.append((_JUMP_AT_LEAST, _X32_BIT, "deny", None))
    denied = [numbers[here.column] for numbers in DENIED.values() if numbers[here.column] >= 0]
    steps += [(_JUMP_EQUAL, number, "deny", None) for number in denied if number != socket or not loopback]
    steps.append((_JUMP_EQUAL, _CLONE3, "absent", None))
    if loopback:
        only(
            socket,
            "after socket",
            (_LOAD, _AT_FIRST_ARGUMENT, None, None),
            *((_JUMP_EQUAL, family, "allow", None) for family in _INTERNET),
            (_JUMP_EQUAL, _NETLINK, None, "deny"),
            (_LOAD, _AT_THIRD_ARGUMENT, None, None),
            (_JUMP_EQUAL, 0, "allow", "deny"),
        )
    only(
        _SOCKETPAIR[here.column],
        "after socketpair",
        (_LOAD, _AT_SECOND_ARGUMENT, None, None),
        (_AND, _KIND, None, None),
        (_JUMP_EQUAL, _STREAM, "allow", "deny"),
    )
    only(
        _CLONE[here.column],
        "after clone",
        (_LOAD, _AT_FIRST_ARGUMENT, None, None),
        (_JUMP_ANY_BIT, _NAMESPACES, "deny", "allow"),
    )
    steps += [
        (_JUMP_EQUAL, _PRLIMIT[here.column], None, "allow"),
        (_LOAD, _AT_FIRST_ARGUMENT, None, None),
        (_JUMP_EQUAL, 0, "allow", "deny"),
    ]
    labels |= {"deny": len(steps), "absent": len(steps) + 1, "allow": len(steps) + 2}

    def distance(label: str | None, index: int) -> int:
        return 0 if label is None else labels[label] - index - 1

    code = [
        Instruction(operation, distance(true, index), distance(false, index), constant)
        for index, (operation, constant, true, false) in enumerate(steps)
    ]
    answers = (_RETURN_ERRNO | _EPERM, _RETURN_ERRNO | _ENOSYS, _RETURN_ALLOW)
    return [*code, *(Instruction(_RETURN, 0, 0, answer) for answer in answers)]


def available() -> bool:
    """Whether this kernel and architecture can run the filter. Asks, changes nothing."""
    machine = MACHINES.get(platform.machine())
    if machine is None or not hasattr(os, "memfd_create") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    action = ctypes.c_uint32(_RETURN_ERRNO)
    return libc().syscall(machine.seccomp, _ACTION_AVAILABLE, 0, ctypes.byref(action)) == 0


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(loopback: bool = False) -> None:
    """Bind the calling thread and its future children. Needs `no_new_privs`. Raises `OSError`."""
    machine = platform.machine()
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program(machine, loopback))
    buffer = ctypes.create_string_buffer(code, len(code))
    descriptor = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    checked("seccomp", libc().syscall(MACHINES[machine].seccomp, _SET_MODE_FILTER, 0, ctypes.byref(descriptor)))
