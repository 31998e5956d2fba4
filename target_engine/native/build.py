"""Compiles a C file into a shared library at its first use and loads it.

A library is kept in the user's cache under a digest of everything that went into it: the source, the shared header,
the flags, the compiler and the processor (`-march=native` makes it this processor's). It is written beside its final
name and moved there, so a reader sees a whole library or none. Where the cache cannot be written, as in a sandbox,
the library lives in a folder of this process.

Calls release the GIL (`ctypes.CDLL`). Threads come from the OpenMP runtime that torch has loaded: the library is
linked against that very file, since a second runtime would bring a second pool whose threads compete for the same
cores.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from target_engine.cache import cache_dir
from target_engine.errors import EngineError

HEADERS = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wall", "-Wno-psabi")
COMPILE_SECONDS = 120.0


def unavailable(dtype: str = "float32") -> str | None:
    """Why native implementations cannot run on this machine, or None. They run in every compute type, or in none.

    What an implementation's `unavailable` returns.
    """
    return None if _compiler() else "it is compiled at first use and no C compiler (cc, gcc, clang or $CC) is on PATH"


def element_flags(dtype: torch.dtype) -> tuple[str, ...]:
    """The flags that make `element` of `vector.h` this type; `EngineError` for others than float32 and bfloat16."""
    if dtype == torch.float32:
        return ()
    if dtype == torch.bfloat16:
        return ("-DELEMENT_BF16",)
    raise EngineError(f"native implementations compute in float32 or bfloat16, not {dtype}")


@functools.cache
def load(source: Path, *flags: str) -> ctypes.CDLL:
    """The library of a C file, compiled with `flags` if it was not before.

    Raises `EngineError` with the compiler's first error.
    """
    compiler = _compiler()
    if compiler is None:
        raise EngineError(f"{source.name}: {unavailable()}")
    runtime = _openmp_runtime()
    recipe = Recipe(compiler, (*FLAGS, *flags), runtime if runtime and _is_gcc(compiler) else "-fopenmp")
    name = f"{source.stem}-{recipe.digest(source)}.so"
    for folder in (lambda: cache_dir() / "native", _private_folder):
        try:
            path = folder() / name
            if not (path.is_file() and path.stat().st_uid in (0, os.getuid())):
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                    os.replace(recipe.compile(source, Path(scratch)), path)
        except OSError:
            continue
        return ctypes.CDLL(str(path))
    raise EngineError(
        f"{source.name}: no place to compile: neither {cache_dir()} nor {tempfile.gettempdir()} is writable"
    )


@dataclass(frozen=True)
class Recipe:
    """How a C file becomes a library: the compiler's command, its flags, and the OpenMP library to link against."""

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    openmp: str

    def digest(self, source: Path) -> str:
        """Names everything that the library depends on; where the files lie is not part of it."""
        digest = hashlib.sha256()
        for part in (
            *(path.read_bytes() for path in (source, *sorted(HEADERS.glob("*.h")))),
            shlex.join([*self.compiler, *self.flags, self.openmp]).encode(),
            _version(self.compiler).encode(),
            _processor().encode(),
        ):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()[:24]

    def compile(self, source: Path, scratch: Path) -> Path:
        """Compile and link inside `scratch`; the path of the library."""
        compiled, library = scratch / "unit.o", scratch / "unit.so"
        environment = {**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"}
        for arguments in (
            [*self.flags, f"-I{HEADERS}", "-c", str(source), "-o", str(compiled)],
            ["-shared", str(compiled), self.openmp, "-lm", "-o", str(library)],
        ):
            command = [*self.compiler, *arguments]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=COMPILE_SECONDS, env=environment, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise EngineError(f"{source.name}: {command[0]} took more than {COMPILE_SECONDS:.0f} s") from error
            if done.returncode:
                lines = done.stderr.splitlines()
                first = next((line for line in lines if "error: " in line), lines[0] if lines else "no message")
                raise EngineError(f"{source.name} does not compile with {command[0]}: {first.strip()}")
        return library


@functools.cache
def _private_folder() -> Path:
    """A folder of this process alone, removed at its end."""
    folder = tempfile.mkdtemp(prefix="infra-agent-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _compiler() -> tuple[str, ...] | None:
    """The compiler's command: $CC, or the first of cc, gcc and clang on PATH."""
    chosen = tuple(shlex.split(os.environ.get("CC", "")))
    if chosen:
        return chosen if shutil.which(chosen[0]) else None
    return next(((name,) for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _is_gcc(compiler: tuple[str, ...]) -> bool:
    """Clang's OpenMP calls are another runtime's: its libraries bring their own."""
    return "clang" not in _version(compiler)


def _openmp_runtime() -> str | None:
    """The GNU OpenMP library that this process has loaded (torch's), or None."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"(/\S*/libgomp[^/\s]*\.so[^/\s]*)$", mapped, re.MULTILINE)
    return found.group(1) if found else None


@functools.cache
def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join([platform.machine(), *dict.fromkeys(kept)])
