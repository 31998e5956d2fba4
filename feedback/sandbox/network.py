"""A network of one's own: a namespace with nothing but a loopback interface, for targets whose ranks are processes.

What a process in it sends reaches the processes that it starts, and nothing else. Worker side: ctypes only.
"""

from __future__ import annotations

import os
import socket
import struct

from .libc import checked, libc

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1


def leave_for_loopback() -> None:
    """Move the calling process (it must have one thread) into a network namespace of its own and bring its loopback
    interface up. Raises `OSError` where the kernel refuses.

    Needs no privilege where the kernel lets users have namespaces; the process keeps its user and group.
    """
    user, group = os.getuid(), os.getgid()
    if libc().unshare(_NEW_NETWORK) != 0:
        checked("unshare", libc().unshare(_NEW_USER | _NEW_NETWORK))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _raise_loopback()


def _raise_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(control, _GET_FLAGS, request))[1]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14s", b"lo", flags | _UP, b""))
