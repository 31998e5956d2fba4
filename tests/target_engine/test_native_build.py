"""Compiling C at first use: cached by all that matters, whole or absent, one OpenMP runtime, clear when it cannot."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from target_engine.errors import EngineError
from target_engine.native import build
from target_engine.ops import registry
from target_engine.ops.settings import OperatorSettings

needs_compiler = pytest.mark.skipif(build.unavailable() is not None, reason=f"native code {build.unavailable()}")

SOURCE = """
#include <omp.h>
int answer(void) { return ANSWER; }
int team(int threads)
{
    int size = 0;
#pragma omp parallel num_threads(threads)
#pragma omp single
    size = omp_get_num_threads();
    return size;
}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A C file, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    path = tmp_path / "small.c"
    path.write_text(SOURCE)
    yield path
    forget()


def forget() -> None:
    """What this process remembers of compilers and libraries."""
    for function in (build.load, build._compiler, build._version, build._private_folder):
        function.cache_clear()


def libraries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "infra-agent" / "native").iterdir())


@needs_compiler
def test_a_library_is_compiled_once_and_found_again(source: Path, tmp_path: Path) -> None:
    assert build.load(source, "-DANSWER=41").answer() == 41
    (library,) = libraries(tmp_path)
    before = library.stat().st_mtime_ns
    build.load.cache_clear()
    assert build.load(source, "-DANSWER=41").answer() == 41
    assert [path.stat().st_mtime_ns for path in libraries(tmp_path)] == [before]


@needs_compiler
def test_flags_and_source_are_part_of_what_a_library_is(source: Path, tmp_path: Path) -> None:
    assert build.load(source, "-DANSWER=1").answer() == 1
    assert build.load(source, "-DANSWER=2").answer() == 2
    source.write_text(SOURCE.replace("return ANSWER", "return 3 * ANSWER"))
    build.load.cache_clear()
    assert build.load(source, "-DANSWER=2").answer() == 6
    assert len(libraries(tmp_path)) == 3


@needs_compiler
def test_the_place_of_the_source_is_not(source: Path, tmp_path: Path) -> None:
    """A copy of the tree finds the library of the first."""
    build.load(source, "-DANSWER=1")
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "small.c"
    copy.write_text(SOURCE)
    build.load(copy, "-DANSWER=1")
    assert len(libraries(tmp_path)) == 1


@needs_compiler
def test_an_error_is_one_line_that_names_the_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"^small\.c does not compile with \w+: .*small\.c:3:.*ANSWER.*$") as caught:
        build.load(source)
    assert "\n" not in str(caught.value)
    assert libraries(tmp_path) == []


@needs_compiler
def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build.load(source, "-DANSWER=7").answer() == 7


def test_without_a_compiler_native_is_refused_and_nothing_else_is_taken(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EngineError, match=r"operators\.silu_mul: native cannot run on this machine: .* no C compiler"):
        registry.build("silu_mul", "native", OperatorSettings())
    monkeypatch.setenv("CC", "no-such-compiler")
    forget()
    assert "no C compiler" in (build.unavailable() or "")


@needs_compiler
def test_threads_come_from_the_runtime_that_torch_has_loaded(source: Path) -> None:
    torch.set_num_threads(2)
    assert build.load(source, "-DANSWER=1").team(torch.get_num_threads()) == 2
    maps = Path("/proc/self/maps").read_text()
    runtimes = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line or "libomp" in line}
    assert len(runtimes) == 1, f"two OpenMP runtimes are loaded: {runtimes}"


@needs_compiler
def test_a_call_releases_the_interpreter(tmp_path: Path, source: Path) -> None:
    """While C runs, another thread of the interpreter goes on: it sets the flag that the C code waits for."""
    source.write_text(
        "#include <unistd.h>\n"
        "int wait_for(volatile int *flag) { for (int i = 0; i < 10000 && !*flag; i++) usleep(1000); return *flag; }\n"
    )
    flag = ctypes.c_int(0)
    thread = threading.Thread(target=lambda: (time.sleep(0.01), setattr(flag, "value", 5)))
    thread.start()
    assert build.load(source).wait_for(ctypes.byref(flag)) == 5
    thread.join()


@needs_compiler
def test_processes_that_compile_the_same_at_once_all_get_a_whole_library(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from target_engine.native.build import load;"
        "assert load(Path(sys.argv[1]), '-DANSWER=9').answer() == 9"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(source)], env=os.environ) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert len(libraries(tmp_path)) == 1
