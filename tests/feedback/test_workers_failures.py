"""What candidate code can do to its worker, and the one line that comes of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.probe import Tree
from feedback.target import Unsupported
from feedback.verdict import Location
from feedback.workers.failures import from_report, from_status, innermost, one_line
from feedback.workers.pool import Limits, Worker, WorkerFailure, WorkerPool
from tests.feedback.fake_target import ENGINE, write_tree

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    limits = Limits(call_seconds=20, memory_bytes=200 << 20)
    with WorkerPool("faketarget.adapter", limits, preload=("numpy",)) as pool:
        yield pool


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return write_tree(tmp_path)


@pytest.fixture
def worker(pool: WorkerPool, tree: Tree) -> Iterator[Worker]:
    with pool.open(tree) as worker:
        yield worker


def line_of(text: str) -> int:
    """The number of the line in the engine's source that holds `text`."""
    return next(n for n, line in enumerate(ENGINE.splitlines(), start=1) if text in line)


def at(text: str) -> str:
    return f"faketarget/engine.py:{line_of(text)}"


def failure(worker: Worker, name: str, *args: object, timeout: float | None = None) -> WorkerFailure:
    with pytest.raises(WorkerFailure) as caught:
        worker.call("inside", name, *args, timeout=timeout)
    return caught.value


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends within some seconds (a zombie has ended)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_exception_is_one_line_with_its_place(worker: Worker) -> None:
    error = failure(worker, "divide", 1)
    assert error.line == f"error in inside: {at('n / 0')} ZeroDivisionError: division by zero"
    assert error.location == Location(file="faketarget/engine.py", line=line_of("n / 0"))
    assert (error.kind, error.method, error.error_type) == ("error", "inside", "ZeroDivisionError")
    assert "return n / 0" in error.detail
    assert worker.call("echo", 1) == [[1], {}], "an exception does not end the worker"


def test_only_the_first_place_inside_the_tree_counts(worker: Worker) -> None:
    error = failure(worker, "eat", "not a number")
    assert error.line.startswith(f"error in inside: {at('bytearray(step)')} TypeError: ")


def test_a_start_that_refuses(worker: Worker) -> None:
    with pytest.raises(
        WorkerFailure, match=r"^error in start: faketarget/adapter.py:\d+ ValueError: bad must not be set"
    ):
        worker.start({"bad": 1})


@pytest.mark.parametrize(
    ("name", "says"), [("system_exit", "SystemExit: bye"), ("unprintable", "Odd: (its text raised KeyError)")]
)
def test_odd_exceptions(worker: Worker, name: str, says: str) -> None:
    assert failure(worker, name).line.endswith(says)
    assert worker.call("echo") == [[], {}]


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("def broken(:\n", "error in import: faketarget/engine.py:1 SyntaxError: invalid syntax"),
        (
            "\n\nimport nowhere\n",
            "error in import: faketarget/engine.py:3 ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("x = undefined\n", "error in import: faketarget/engine.py:1 NameError: name 'undefined' is not defined"),
    ],
)
def test_a_target_that_does_not_import(pool: WorkerPool, tmp_path: Path, engine: str, says: str) -> None:
    with pytest.raises(WorkerFailure) as caught:
        pool.open(write_tree(tmp_path, engine=engine))
    assert caught.value.line == says


def test_a_target_that_hangs_or_dies_while_it_is_imported(tmp_path: Path) -> None:
    hanging = write_tree(tmp_path / "a", engine="import time\ntime.sleep(60)\n")
    dying = write_tree(tmp_path / "b", engine="import os\nos.abort()\n")
    limits = Limits(start_seconds=0.5)
    with WorkerPool("faketarget.adapter", limits, preload=("numpy",)) as pool:
        pool.warm_up()
        with pytest.raises(WorkerFailure) as caught:
            pool.open(hanging)
        assert caught.value.line == "hang in import: no answer within 0.5 s; at faketarget/engine.py:2"
        with pytest.raises(WorkerFailure) as caught:
            pool.open(dying)
        expected = "crash in import: SIGABRT (the program aborted itself); at faketarget/engine.py:2"
        assert caught.value.line == expected


@pytest.mark.parametrize(("name", "line"), [("crash", "SIGSEGV)"), ("null_pointer", "string_at(0)")])
def test_a_crash_names_signal_and_place(worker: Worker, name: str, line: str) -> None:
    error = failure(worker, name)
    assert error.line == f"crash in inside: SIGSEGV (invalid memory access); at {at(line)}"
    assert error.kind == "crash"
    assert gone(worker.pid, 0.1)
    with pytest.raises(WorkerFailure, match="crash in echo: the worker is gone: crash in inside: SIGSEGV"):
        worker.call("echo")


def test_leaving_without_an_answer_is_a_crash(worker: Worker) -> None:
    assert failure(worker, "leave", 0).line == "crash in inside: the process exited with status 0 and no answer"


@pytest.mark.parametrize(("name", "line"), [("hang", "sleep(0.01)"), ("spin", "pass")])
def test_a_hang_names_time_and_place(worker: Worker, name: str, line: str) -> None:
    begin = time.monotonic()
    error = failure(worker, name, timeout=0.3)
    assert 0.3 <= time.monotonic() - begin < 3
    assert error.kind == "hang"
    assert error.line.startswith("hang in inside: no answer within 0.3 s; at faketarget/engine.py:")
    assert error.location is not None
    # a loop may be caught on its head or in its body
    assert error.location.line in (line_of(line), line_of(line) - 1)
    assert gone(worker.pid, 0.1)


def test_printing_without_end_is_a_hang_like_any_other(worker: Worker) -> None:
    with pytest.raises(WorkerFailure, match=r"hang in evaluate: no answer within 0.3 s"):
        worker.call("evaluate", "while True: os.write(1, b'x' * 65536)", timeout=0.3)


def test_a_hang_that_takes_its_children_along(worker: Worker) -> None:
    text = (
        "child = subprocess.Popen(['sleep', '300'])\n"
        "daemon = subprocess.Popen(['sleep', '300'], start_new_session=True)\nresult = [child.pid, daemon.pid]"
    )
    pids = worker.call("evaluate", text)
    failure(worker, "hang", timeout=0.2)
    assert all(gone(pid, 2.0) for pid in pids), "the group is killed, and what left the group by its adopter"


def test_a_detached_grandchild_is_ended_with_its_worker(worker: Worker) -> None:
    text = """
        r, w = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if pid := os.fork():
                os.write(w, str(pid).encode())
                os._exit(0)
            time.sleep(300)
        result = int(os.read(r, 20))
    """
    pid = worker.call("evaluate", textwrap.dedent(text))
    worker.close()
    assert gone(pid, 2.0)


def test_memory_is_watched(worker: Worker) -> None:
    error = failure(worker, "eat", 1 << 20)
    assert error.kind == "memory"
    said = r"memory in inside: [23]\d\d MiB allocated, the limit is 200 MiB; at faketarget/engine.py:\d+"
    assert re.fullmatch(said, error.line)
    assert gone(worker.pid, 0.1)


def test_one_allocation_that_is_too_large_has_its_place(worker: Worker) -> None:
    error = failure(worker, "eat_at_once")
    assert error.line == f"memory in inside: MemoryError; at {at('1 << 50')}"
    with pytest.raises(WorkerFailure, match="the worker is gone"):
        worker.call("echo")


def test_shared_memory_counts_too(worker: Worker) -> None:
    text = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor at in range(0, len(m), 4096): m[at] = 1\ntime.sleep(60)"
    with pytest.raises(WorkerFailure, match="memory in evaluate"):
        worker.call("evaluate", text)


def test_printing_does_not_touch_the_wire(worker: Worker) -> None:
    text = "print('out', flush=True); os.write(1, b'raw '); os.system('echo shell'); sys.stderr.write('err\\n')"
    worker.call("evaluate", text)
    assert worker.output() == {"stdout": "out\nraw shell\n", "stderr": "err\n"}


def test_much_output_is_cut_in_the_middle_and_does_not_block(worker: Worker) -> None:
    worker.call("evaluate", "print('first'); [os.write(1, b'x' * 65536) for _ in range(200)]; print('last')")
    printed = worker.output()["stdout"]
    assert printed.startswith("first\n")
    assert printed.endswith("last\n")
    assert "bytes left out" in printed
    assert len(printed) < 140_000
    worker.close()
    assert worker.output()["stdout"] == printed


#: In the worker: `wire` is the descriptor that leads to the parent, `forged(reply)` the bytes of an answer with one
#: array.
WIRE = """
import json, struct
wire = next(fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode))
array = {"$array": 0}
def forged(reply):
    head = json.dumps({"value": reply, "arrays": [["float32", [2, 2], 0]], "outside": 0, "fds": 0}).encode()
    return struct.pack("<4sIQ", b"IAW1", len(head), 64) + head + bytes(64)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("os.write(wire, b'garbage' * 9)", "bytes that are no frame came over the wire"),
        ("os.close(wire); time.sleep(60)", "the worker closed its connection and went on running"),
        (
            "socket.socket(fileno=wire).shutdown(2); time.sleep(60)",
            "the worker closed its connection and went on running",
        ),
        ("os.write(wire, forged({'id': 99, 'ok': 1}))", "an answer to another question came"),
        ("os.write(wire, forged({'id': array, 'ok': 1}))", "an answer to another question came"),
        ("os.write(wire, forged(array))", "an answer to another question came"),
        ("os.write(wire, forged({'id': 1, 'broken': array}))", "[[0. 0.] [0. 0.]]"),
        ("os.write(wire, forged({'id': 1}))", "an answer that cannot cross the wire: None"),
    ],
)
def test_forging_the_wire_ends_the_worker(worker: Worker, text: str, says: str) -> None:
    with pytest.raises(WorkerFailure) as caught:
        worker.call("evaluate", WIRE + text)
    assert caught.value.line == f"protocol in evaluate: {says}"
    assert gone(worker.pid, 0.1)


@pytest.mark.parametrize("key", ["error", "unsupported", "ok"])
@pytest.mark.parametrize(
    "payload", ["array", "{'type': array, 'message': array, 'file': array, 'line': array}", "None"]
)
def test_forged_answers_do_not_break_the_parent(worker: Worker, key: str, payload: str) -> None:
    text = WIRE + f"os.write(wire, forged({{'id': 1, {key!r}: {payload}}}))"
    with contextlib.suppress(WorkerFailure, Unsupported):
        worker.call("evaluate", text)


@pytest.mark.parametrize("level", ["array", "'process only'", "None"])
def test_a_forged_handshake_is_refused(pool: WorkerPool, tmp_path: Path, level: str) -> None:
    text = (
        "import os, stat\n"
        + WIRE
        + f"os.write(wire, forged({{'id': 0, 'ok': {{'level': {level}, 'files': {{}}, 'foreign': []}}}}))"
    )
    with pytest.raises(WorkerFailure, match="protocol in import: the sandbox is"):
        pool.open(write_tree(tmp_path, engine=text))


def test_an_answer_ahead_of_its_question_is_noticed(worker: Worker) -> None:
    """A thread answers the next request before it is asked, as a candidate would that wants to stop the clock early."""
    text = """
def early():
    time.sleep(0.05)
    os.write(wire, forged({"id": 2, "ok": 1}))
threading.Thread(target=early).start()
"""
    worker.call("evaluate", WIRE + text)
    time.sleep(0.2)
    with pytest.raises(WorkerFailure, match="bytes came that no call had asked for"):
        worker.call("echo")


def test_a_value_that_cannot_cross(worker: Worker) -> None:
    expected = "protocol in inside: an answer that cannot cross the wire: a set cannot cross the wire"
    assert failure(worker, "not_on_the_wire").line.startswith(expected)


def test_a_killed_warm_parent_takes_its_workers_along_and_is_replaced(tree: Tree) -> None:
    with WorkerPool("faketarget.adapter", preload=("numpy",)) as pool:
        old = pool.open(tree)
        assert pool._zygote is not None
        os.kill(pool._zygote.pid, signal.SIGKILL)
        assert gone(old.pid)
        with pytest.raises(WorkerFailure, match="crash in echo: SIGKILL"):
            old.call("echo")
        with pool.open(tree) as new:
            assert new.call("echo", 1) == [[1], {}]


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """kill -9 of the process that holds the pool, one worker idle, one busy, each with a process of its own."""
    tree = write_tree(tmp_path / "tree")
    program = f"""
        import json, sys, threading
        sys.path.insert(0, {str(CHECKOUT)!r})
        from pathlib import Path
        from feedback.probe import Tree
        from feedback.workers.pool import WorkerPool
        pool = WorkerPool("faketarget.adapter", preload=("numpy",))
        workers = [pool.open(Tree(Path({str(tree.root)!r}), "", {{}})) for _ in range(2)]
        text = "result = subprocess.Popen(['sleep', '300'], start_new_session=True).pid"
        pids = [pool._zygote.pid, *(w.pid for w in workers), *(w.call("evaluate", text) for w in workers)]
        print(json.dumps([pids, str(pool._folder)]), flush=True)
        workers[1].call("inside", "spin")
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        import json

        pids, folder = json.loads(parent.stdout.readline())
        assert not any(gone(pid, 0.02) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
    assert all(gone(pid) for pid in pids)
    deadline = time.monotonic() + 5
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(folder).exists()


def test_a_tree_that_is_not_there(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailure, match="nowhere is not a folder"):
        pool.open(Tree(tmp_path / "nowhere", "", {}))


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="limit call_seconds must be positive, not 0"):
        Limits(call_seconds=0)


@given(st.text(max_size=600))
def test_any_text_is_one_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= 300
    assert line.isprintable()
    assert line == line.strip()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("type", "message", "file", "line", "memory", "traceback")


@given(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)))
def test_no_report_breaks_the_parent(payload: object) -> None:
    failed = from_report("run", payload)
    assert failed.line.isprintable()
    assert failed.kind in ("error", "memory", "protocol")


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (signal.SIGSEGV, "crash in run: SIGSEGV (invalid memory access)"),
        (signal.SIGSEGV | 0x80, "crash in run: SIGSEGV (invalid memory access)"),
        (signal.SIGXCPU, "hang in run: SIGXCPU (used up its CPU time)"),
        (signal.SIGUSR2, "crash in run: SIGUSR2"),
        (40, "crash in run: signal 40"),
        (3 << 8, "crash in run: the process exited with status 3 and no answer"),
        (None, "crash in run: the process does not end, not even when killed"),
    ],
)
def test_every_ending_has_its_words(status: int | None, line: str) -> None:
    assert from_status("run", status, "", Path("/tree")).line == line


def test_the_crashing_thread_is_looked_at_first() -> None:
    waits = 'Thread 0x1 (most recent call first):\n  File "/tree/a.py", line 1 in wait\n\n'
    crashes = (
        'Current thread 0x2 (most recent call first):\n  File "/x.py", line 9 in f\n  File "/tree/b.py", line 2 in g\n'
    )
    trace = waits + crashes
    assert innermost(trace, Path("/tree")) == Location(file="b.py", line=2)
    assert innermost(waits, Path("/tree")) == Location(file="a.py", line=1)
    assert innermost(trace, Path("/elsewhere")) is None


def test_a_failure_survives_pickling() -> None:
    failed = WorkerFailure("error", "step", "X: y", Location(file="a.py", line=3), "detail", "X")
    copy = pickle.loads(pickle.dumps(failed))
    assert vars(copy) == vars(failed)
    assert str(copy) == "error in step: a.py:3 X: y"
