"""GPUs that kernels are compiled for, and what one program may use of them. Pure.

Sources: CUDA C++ Programming Guide, "Technical specifications per compute capability" (shared memory that a block can
opt in to, registers of a thread); Triton 3.9 (512 columns of tensor memory); AMD CDNA 3 ISA guide (64 KiB of LDS, 256
vector and 256 accumulation registers). Triton checks none of them when it compiles for a device that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A compilation target `backend:arch` and its limits for one program: bytes of shared memory, 32-bit registers a
    thread, threads, columns of tensor memory.
    """

    name: str
    warp: int
    shared_bytes: int
    registers: int
    threads: int = 1024
    tensor_columns: int = 0

    @property
    def backend(self) -> str:
        """`cuda` or `hip`."""
        return self.name.partition(":")[0]

    @property
    def arch(self) -> int | str:
        """Compute capability times ten, or the name of the architecture."""
        arch = self.name.partition(":")[2]
        return int(arch) if self.backend == "cuda" else arch


DEVICES = {
    device.name: device
    for device in (
        Device("cuda:80", 32, 163 << 10, 255),
        Device("cuda:90", 32, 227 << 10, 255),
        Device("cuda:100", 32, 227 << 10, 255, tensor_columns=512),
        Device("hip:gfx942", 64, 64 << 10, 512),
    )
}


def excesses(device: Device, shared_bytes: int, warps: int, tensor_columns: int) -> tuple[str, ...]:
    """What a compiled program needs more of than the device has, one phrase each."""
    found = []
    if shared_bytes > device.shared_bytes:
        needed, there = f"{shared_bytes / 1024:.0f}", device.shared_bytes >> 10
        found.append(f"needs {needed} KiB of shared memory, {device.name} has {there}")
    if warps * device.warp > device.threads:
        found.append(f"needs {warps * device.warp} threads, {device.name} allows {device.threads}")
    if tensor_columns > device.tensor_columns:
        found.append(f"needs {tensor_columns} columns of tensor memory, {device.name} has {device.tensor_columns}")
    return tuple(found)
