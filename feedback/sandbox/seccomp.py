"""A seccomp filter: system calls that no inference engine needs and that would reach out of the sandbox.

Landlock sees files; this sees the rest: sockets (also through io_uring, which would go round a filter on `socket`),
other processes' memory, the system clock, priorities by which a candidate could starve the base it is timed against. A
denied call returns EPERM, so that Python shows a plain `PermissionError`. `program` is pure; `install` binds the
calling thread and all that it starts later.
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
_EPERM = 1

# Classic BPF: load a word of `struct seccomp_data`, compare, return.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16  # little-endian: the low half of argument 0

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

#: AF_INET, AF_INET6, and AF_NETLINK, by which a library asks for the interfaces of its own network.
_INTERNET = (2, 10, 16)

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
    # (instruction, label to jump to when it is true, label when it is false); labels: "deny", "allow", None = fall
    # through
    steps: list[tuple[int, int, str | None, str | None]] = [
        (_LOAD, _AT_ARCHITECTURE, None, None),
        (_JUMP_EQUAL, here.audit, None, "deny"),
        (_LOAD, _AT_NUMBER, None, None),
    ]
    if machine == "x86_64":
        steps.append((_JUMP_AT_LEAST, _X32_BIT, "deny", None))
    denied = [numbers[here.column] for numbers in DENIED.values() if numbers[here.column] >= 0]
    steps += [(_JUMP_EQUAL, number, "deny", None) for number in denied if number != socket or not loopback]
    if loopback:
        steps += [
            (_JUMP_EQUAL, socket, None, "rest"),
            (_LOAD, _AT_FIRST_ARGUMENT, None, None),
            *((_JUMP_EQUAL, family, "allow", None) for family in _INTERNET),
            (_JUMP_EQUAL, socket, "deny", "deny"),
        ]
    rest = len(steps)
    steps += [
        (_JUMP_EQUAL, _PRLIMIT[here.column], None, "allow"),
        (_LOAD, _AT_FIRST_ARGUMENT, None, None),
        (_JUMP_EQUAL, 0, "allow", "deny"),
    ]
    labels = {"deny": len(steps), "allow": len(steps) + 1, "rest": rest}

    def distance(label: str | None, index: int) -> int:
        return 0 if label is None else labels[label] - index - 1

    code = [
        Instruction(operation, distance(true, index), distance(false, index), constant)
        for index, (operation, constant, true, false) in enumerate(steps)
    ]
    return [*code, Instruction(_RETURN, 0, 0, _RETURN_ERRNO | _EPERM), Instruction(_RETURN, 0, 0, _RETURN_ALLOW)]


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
