"""Compiles launches for GPUs that are not here and reads what became of them (worker side).

The way is that of a launch: a driver that names the device is made active, and the kernel is asked to warm up with the
arguments that it was launched with, so that the same specialisation results. Compilation runs in a forked child: it may
take minutes, and only a process can be stopped. What the child compiled lies in Triton's cache, where this process
finds it. A kernel that does not compile for a device is a fact about where it can be used, not an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from . import disassembly
from .devices import DEVICES, Device, excesses
from .observed import Launch

#: A compilation takes 0.4 to 5 s; one of a product with one warp ran for minutes.
COMPILE_SECONDS = 60.0

_ABSENT = object()


@dataclass(frozen=True)
class Report:
    """One kernel on one device. `problem` says why it does not compile; the figures are then 0.

    `dots` counts instructions of the matrix units by name, `excess` what the device has too little of.
    """

    kernel: str
    device: str
    seconds: float
    problem: str = ""
    timed_out: bool = False
    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    spilled_registers: int = 0
    shared_bytes: int = 0
    tensor_columns: int = 0
    warps: int = 0
    instructions: int = 0
    dots: dict[str, int] = field(default_factory=dict)
    excess: tuple[str, ...] = ()


class PretendedDriver(DriverBase):
    """Says that a device is there. Its name keys Triton's caches, so that one process can compile for many."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @classmethod
    def is_active(cls) -> Any:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> Any:
        return GPUTarget(self._device.backend, self._device.arch, self._device.warp)

    def get_current_device(self) -> str:
        return self._device.name

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        raise RuntimeError(f"{self._device.name} is not here: nothing can be put on it")

    def get_benchmarker(self) -> Any:
        raise RuntimeError(f"{self._device.name} is not here: nothing can be timed on it")


@contextlib.contextmanager
def pretending(device: Device) -> Generator[None]:
    """Triton believes that its current device is `device`."""
    before = driver._active
    driver.set_active(PretendedDriver(device))
    try:
        yield
    finally:
        driver._active = before


@contextlib.contextmanager
def _cache_in(folder: Path) -> Generator[None]:
    """Triton's cache in `folder`; its own place was decided before this process knew where it may write."""
    before = knobs.cache.__dict__.get("dir", _ABSENT)
    knobs.cache.__dict__["dir"] = str(folder)
    try:
        yield
    finally:
        if before is _ABSENT:
            knobs.cache.__dict__.pop("dir", None)
        else:
            knobs.cache.__dict__["dir"] = before


def compiled(launches: Sequence[Launch], devices: Sequence[str], seconds: float = COMPILE_SECONDS) -> list[Report]:
    """A report for every different specialisation of `launches` on every device, in order. `seconds` for each."""
    different = {_specialisation(launch): launch for launch in launches}
    return [report(launch, DEVICES[name], seconds) for launch in different.values() for name in devices]


def report(launch: Launch, device: Device, seconds: float = COMPILE_SECONDS) -> Report:
    """Compile one launch for one device and read the result."""
    began = time.monotonic()
    name = launch.kernel.__name__
    folder = Path(tempfile.gettempdir()) / "triton-cache"
    folder.mkdir(parents=True, exist_ok=True)
    with pretending(device), _cache_in(folder):
        answer = _in_child(lambda: _warm_up(launch), seconds)
        if answer is None:
            what = f"no result after {seconds:g} s"
            return Report(name, device.name, time.monotonic() - began, what, timed_out=True)
        if answer:
            return Report(name, device.name, time.monotonic() - began, answer)
        kernel = _warm_up(launch)
    read = _read_nvidia if device.backend == "cuda" else _read_amd
    resources, instructions, dots = read(kernel, device)
    columns = getattr(kernel.metadata, "tmem_size", 0) or 0
    warps, shared = kernel.metadata.num_warps, kernel.metadata.shared
    return Report(
        name,
        device.name,
        time.monotonic() - began,
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        spill_bytes=resources.spill_bytes,
        spilled_registers=resources.spilled_registers,
        shared_bytes=shared,
        tensor_columns=columns,
        warps=warps,
        instructions=instructions,
        dots=dots,
        excess=excesses(device, shared, warps, columns),
    )


def _warm_up(launch: Launch) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about defaults that will change in another version
        return JITFunction.run(launch.kernel, *launch.args, grid=launch.grid, warmup=True, **launch.kwargs)


def _specialisation(launch: Launch) -> tuple[Any, ...]:
    """What decides how a launch is compiled, as Triton sees it: types, alignment, and the values of constants."""
    given = {**dict(zip(launch.kernel.arg_names, launch.args, strict=False)), **launch.kwargs}
    runtime = {parameter.name for parameter in launch.kernel.params if not parameter.is_constexpr}
    return id(launch.kernel), *sorted((name, _described(value, name in runtime)) for name, value in given.items())


def _described(value: Any, runtime: bool) -> str:
    if hasattr(value, "data_ptr"):
        return f"{value.dtype} {value.data_ptr() % 16 == 0}"
    if runtime and isinstance(value, int) and not isinstance(value, bool):
        return f"int {value == 1} {value % 16 == 0} {value.bit_length() > 31}"
    return type(value).__name__ if runtime and isinstance(value, float) else repr(value)


def _in_child(work: Callable[[], Any], seconds: float) -> str | None:
    """Do it in a forked child: the empty text when it went well, what went wrong otherwise, None after `seconds`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            # Compilers print whole programs when they fail.
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(nothing, stream)
            try:
                work()
                answer = ""
            except BaseException as error:
                answer = _reason(error)
            os.write(writer, json.dumps(answer).encode()[:65_000])
        os._exit(0)
    os.close(writer)
    try:
        return _answer(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(reader: int, deadline: float) -> str | None:
    data = b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(reader, 65_536)
        if not part:
            break
        data += part
    try:
        return str(json.loads(data))
    except ValueError:
        return "the compiler ended its process"


def _reason(error: BaseException) -> str:
    """The first cause in a chain of compilation errors, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(getattr(error, "error_message", None) or error).split())
    return f"{type(error).__name__}: {text}"[:600]


def _read_nvidia(kernel: Any, device: Device) -> tuple[disassembly.Resources, int, dict[str, int]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = disassembly.nvidia_usage(_printed(knobs.nvidia.cuobjdump.path, "-res-usage", file.name))
        instructions = disassembly.nvidia_instructions(_printed(knobs.nvidia.nvdisasm.path, "-c", file.name))
    if usage.stack_bytes:  # spills lie on the stack; only the assembler says how many bytes of it they are
        spilled = _spilled(kernel.asm["ptx"], device)
        usage = disassembly.Resources(usage.registers, usage.stack_bytes, spilled)
    return usage, instructions.total(), disassembly.nvidia_dots(instructions)


def _spilled(ptx: str, device: Device) -> int:
    """Bytes spilled, by the assembler's own account."""
    arch = int(device.arch)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = (get_ptxas(arch).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={sm_arch_from_capability(arch)}")
        printed = _printed(*command, str(source), "-o", str(Path(folder) / "kernel.cubin"))
    return disassembly.nvidia_spill_bytes(printed) or 0


def _read_amd(kernel: Any, device: Device) -> tuple[disassembly.Resources, int, dict[str, int]]:
    text = kernel.asm["amdgcn"]
    instructions = disassembly.amd_instructions(text)
    return disassembly.amd_usage(text), instructions.total(), disassembly.amd_dots(instructions)


def _printed(*command: str) -> str:
    """Both streams of a program; raises `RuntimeError` when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout + done.stderr
