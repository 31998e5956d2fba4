"""What candidate code can reach: tried from inside a real worker, and the rules and the filter as pure functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback import sandbox
from feedback.probe import Tree
from feedback.sandbox import landlock, policy, seccomp
from feedback.workers.pool import Limits, SandboxWarning, Worker, WorkerFailure, WorkerPool
from tests.feedback.fake_target import write_tree

CHECKOUT = Path(__file__).resolve().parents[2]

confined = pytest.mark.skipif(
    sandbox.level() != sandbox.FULL,
    reason=f"this machine enforces {sandbox.level()!r} only: {sandbox.gaps(sandbox.level())}",
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("faketarget.adapter", Limits(call_seconds=20), preload=("numpy",)) as pool:
        yield pool


@pytest.fixture
def worker(pool: WorkerPool, tmp_path: Path) -> Iterator[Worker]:
    with pool.open(write_tree(tmp_path / "tree")) as worker:
        yield worker


def denied(worker: Worker, text: str) -> bool:
    """Whether the kernel refuses what `text` does: EACCES or EPERM, for links out of their folder EXDEV."""
    try:
        worker.call("evaluate", text)
    except WorkerFailure as failure:
        if re.search(r"PermissionError|Invalid cross-device link", failure.line):
            return True
        raise
    return False


@confined
def test_the_level_is_that_of_the_machine(worker: Worker, pool: WorkerPool) -> None:
    assert worker.level == pool.level == "landlock+seccomp"
    assert pool.gaps() == ()


@confined
@pytest.mark.parametrize(
    "place",
    [
        str(Path.home()),
        str(CHECKOUT),
        str(CHECKOUT / "feedback" / "verdict.py"),
        str(CHECKOUT / "target_engine" / "adapter.py"),
        str(CHECKOUT / ".git"),
        "/etc/shadow",
        "/",
        "/tmp",
        "/var/log",
        "/dev/shm",
        "/proc/{parent}/environ",
        "/proc/{parent}/mem",
    ],
)
def test_nothing_else_is_read(worker: Worker, place: str) -> None:
    # The pid is filled in here: parameters must be the same in every process that collects the tests.
    place = place.format(parent=os.getpid())
    assert denied(worker, f"p = {place!r}\nos.listdir(p) if os.path.isdir(p) else open(p, 'rb').read(1)")


@confined
def test_other_trees_and_their_scratch_are_hidden(pool: WorkerPool, worker: Worker, tmp_path: Path) -> None:
    with pool.open(write_tree(tmp_path / "other")) as other:
        scratch = str(other.call("evaluate", "open('note', 'w').write('x')\nresult = os.getcwd()"))
        for path in (f"{scratch}/note", str(tmp_path / "other" / "faketarget" / "engine.py")):
            assert Path(path).is_file()
            assert denied(worker, f"open({path!r})")
        assert denied(worker, f"open({scratch!r} + '/planted', 'w')")


@confined
def test_git_history_of_the_tree_is_hidden(pool: WorkerPool, tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (tmp_path / "data.txt").write_text("readable")
    with pool.open(tree) as worker:
        assert worker.call("evaluate", "result = open(sys.path[0] + '/data.txt').read()") == "readable"
        assert denied(worker, "open(sys.path[0] + '/.git/HEAD')")


@confined
@pytest.mark.parametrize(
    "text",
    [
        "open(sys.path[0] + '/faketarget/engine.py', 'a')",
        "open(sys.path[0] + '/faketarget/new.py', 'w')",
        "os.rename(sys.path[0] + '/faketarget/engine.py', 'stolen')",
        "os.remove(sys.path[0] + '/faketarget/engine.py')",
        "os.truncate(sys.path[0] + '/faketarget/engine.py', 0)",
        "os.link(sys.path[0] + '/faketarget/engine.py', 'linked')",
        "open(np.__file__, 'a')",
        "open('/tmp/planted', 'w')",
        "os.mknod('device', 0o600 | stat.S_IFCHR, os.makedev(1, 3))",
        "open('/proc/self/oom_score_adj', 'w')",
    ],
)
def test_nothing_is_written_outside_the_scratch_folder(worker: Worker, text: str) -> None:
    assert denied(worker, text)


@confined
def test_the_scratch_folder_is_a_folder_like_any_other(worker: Worker) -> None:
    text = (
        "os.makedirs('a/b'); open('a/b/x', 'w').write('1'); os.rename('a/b/x', 'a/y'); os.symlink('y', 'a/z')\n"
        "os.truncate('a/y', 0); os.remove('a/z'); os.remove('a/y'); os.rmdir('a/b')\nresult = os.listdir('a')"
    )
    assert worker.call("evaluate", text) == []


@confined
@pytest.mark.parametrize(
    "text",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "socket.socketpair(type=socket.SOCK_DGRAM)",
        "os.kill(os.getppid(), 0)",
        "os.setpriority(os.PRIO_PROCESS, 0, -5)",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "time.clock_settime(time.CLOCK_REALTIME, 0)",
        "import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (-1, -1))",
        "os.chroot('.')",
        "os.setuid(12345)",
        "os.chown('.', 12345, 12345)",
    ],
)
def test_the_network_other_processes_and_the_machine_are_out_of_reach(worker: Worker, text: str) -> None:
    if text.startswith("import resource\nresource.setrlimit"):
        with pytest.raises(WorkerFailure, match="ValueError: not allowed to raise maximum limit"):
            worker.call("evaluate", text)
    else:
        assert denied(worker, text)


@confined
@pytest.mark.parametrize(
    "call", ["ptrace", "io_uring_setup", "perf_event_open", "userfaultfd", "mount", "bpf", "unshare"]
)
def test_forbidden_system_calls(worker: Worker, call: str) -> None:
    number = seccomp.DENIED[call][seccomp.MACHINES[os.uname().machine].column]
    text = (
        f"libc = ctypes.CDLL(None, use_errno=True)\nr = libc.syscall({number}, 0, 0, 0, 0, 0)\n"
        "result = [r, ctypes.get_errno()]"
    )
    assert worker.call("evaluate", text) == [-1, 1]


@confined
def test_what_an_engine_needs_works(worker: Worker) -> None:
    """Compile and load native code, start threads and programs, read machine facts, map memory, pair sockets."""
    text = r"""
        open("add.c", "w").write("int add(int a, int b) { return a + b; }")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "add.c", "-o", "add.so"], check=True)
        total = ctypes.CDLL("./add.so").add(2, 3)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(os.cpu_count()))
        thread.start(); thread.join()
        a, b = socket.socketpair()
        a.send(b"x")
        import mmap, random, tempfile
        mmap.mmap(-1, 4096)
        open("/dev/null", "w").write("x")
        result = [total, seen[0] > 0, b.recv(1) == b"x", len(os.urandom(4)), "model name" in
        open("/proc/cpuinfo").read()
                  or True, open("/proc/self/status").read()[:5], subprocess.check_output(["echo", "hi"], text=True),
                  os.path.isdir(tempfile.mkdtemp())]
    """
    import textwrap

    assert worker.call("evaluate", textwrap.dedent(text)) == [5, True, True, 4, True, "Name:", "hi\n", True]


@confined
def test_no_new_process_is_in_a_namespace_of_its_own(worker: Worker) -> None:
    """Neither by `clone` nor by `clone3`, which is said not to exist."""
    here = seccomp.MACHINES[os.uname().machine]
    clone = (56, 220)[here.column]
    text = """
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for number, flags in ((CLONE, 0x10000000 | 17), (CLONE, 0x40000000 | 17), (435, 0)):
    pid = libc.syscall(number, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    answers.append([pid, ctypes.get_errno()])
result = answers
"""
    assert worker.call("evaluate", text.replace("CLONE", str(clone))) == [[-1, 1], [-1, 1], [-1, 38]]


@pytest.fixture
def networked(pool: WorkerPool, tmp_path: Path) -> Iterator[Worker]:
    try:
        opened = pool.open(write_tree(tmp_path / "tree"), loopback=True)
    except WorkerFailure as failure:
        if "sandbox could not be set up" in failure.line:
            pytest.skip(f"this machine gives a worker no network of its own: {failure.line}")
        raise
    with opened as worker:
        yield worker


@confined
def test_a_worker_may_talk_to_itself_and_what_it_starts_by_tcp(networked: Worker) -> None:
    text = """
server = socket.create_server(("127.0.0.1", 0))
program = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).sendall(b'hi')"
child = subprocess.Popen([sys.executable, "-c", program])
result = server.accept()[0].recv(2).decode()
child.wait()
"""
    assert networked.call("evaluate", text) == "hi"


@confined
def test_it_reaches_nobody_else(networked: Worker) -> None:
    """A server of this process on its loopback, another address, a socket file: none answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(WorkerFailure, match="ConnectionRefusedError"):
            networked.call("evaluate", f"socket.create_connection(('127.0.0.1', {port}), 2)")
    with pytest.raises(WorkerFailure, match="Network is unreachable"):
        networked.call("evaluate", "socket.create_connection(('192.0.2.1', 80), 2)")
    assert denied(networked, "socket.socket(socket.AF_UNIX)")
    assert denied(networked, "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)")
    assert denied(networked, "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)")
    assert denied(networked, "socket.socketpair(type=socket.SOCK_DGRAM)")
    assert denied(networked, "open('/etc/shadow')")


@confined
def test_child_programs_are_confined_too(worker: Worker) -> None:
    text = (
        f"result = subprocess.run(['cat', {str(CHECKOUT / 'pyproject.toml')!r}], capture_output=True, text=True).stderr"
    )
    assert "Permission denied" in str(worker.call("evaluate", text))


@confined
def test_only_named_weights_are_readable(pool: WorkerPool, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text(name)
    blob = tmp_path / "blobs" / "tokenizer"
    blob.parent.mkdir()
    blob.write_text("from a hub's cache")
    (model / "tokenizer.json").symlink_to(blob)
    private = tmp_path / "private"
    private.mkdir()
    (private / "notes.txt").write_text("private")
    tree = write_tree(tmp_path / "tree")
    config = {"model": str(model), "other": str(private), "n": 3}
    with pool.open(Tree(tree.root, "", config)) as worker:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            assert worker.call("evaluate", f"result = len(open({str(model / name)!r}).read())") > 0
        assert denied(worker, f"open({str(private / 'notes.txt')!r})")
    with pool.open(tree) as worker:
        assert denied(worker, f"open({str(model / 'config.json')!r})")


@confined
def test_further_paths_can_be_opened_by_the_parent(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "x").write_text("y")
    pool = WorkerPool("faketarget.adapter", readable=[tmp_path / "extra"], preload=("numpy",))
    with pool, pool.open(write_tree(tmp_path / "tree")) as worker:
        assert worker.call("evaluate", f"result = open({str(tmp_path / 'extra' / 'x')!r}).read()") == "y"
        assert denied(worker, f"open({str(tmp_path / 'extra' / 'x')!r}, 'w')")


@pytest.mark.parametrize(("abi", "filters", "level"), [(0, True, "process only"), (4, False, "landlock")])
def test_a_weaker_machine_is_told_about(monkeypatch: pytest.MonkeyPatch, abi: int, filters: bool, level: str) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: abi)
    monkeypatch.setattr(seccomp, "available", lambda: filters)
    assert sandbox.level() == level
    pool = WorkerPool("faketarget.adapter", preload=("numpy",))
    with pytest.warns(SandboxWarning, match=re.escape(f"sandbox level '{level}': candidate code could")):
        pool.warm_up()
    assert len(pool.gaps()) == (2 if level == "process only" else 1)
    pool.close()


def test_a_worker_weaker_than_promised_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with WorkerPool("faketarget.adapter", preload=("numpy",)) as pool:
        monkeypatch.setattr(pool, "level", "stronger")
        with pytest.raises(WorkerFailure, match=r"protocol in import: the sandbox is '.*', not 'stronger'"):
            pool.open(write_tree(tmp_path))


# The filter as a pure function.


def decide(program: list[seccomp.Instruction], number: int, architecture: int, *arguments: int) -> int:
    """What the filter answers: an interpreter of the few classic BPF instructions that it is made of."""
    low = [argument & 0xFFFFFFFF for argument in (*arguments, 0, 0, 0)]
    data = {0: number, 4: architecture, 16: low[0], 24: low[1], 32: low[2]}
    accumulator, at = 0, 0
    for _ in range(len(program)):
        code, true, false, constant = program[at]
        if code == 0x20:
            accumulator, at = data[constant], at + 1
        elif code == 0x54:
            accumulator, at = accumulator & constant, at + 1
        elif code in (0x15, 0x35, 0x45):
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: accumulator & constant}[code]
            at += 1 + (true if holds else false)
        else:
            assert code == 0x06
            return constant
    raise AssertionError("the program does not end")


ALLOW, DENY, ABSENT = 0x7FFF0000, 0x00050001, 0x00050026
#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
ARGUMENTS = (0, 1, 2, 3, 5, 10, 16, 17, -1, 0x80001, 0x80802, 0x3D0F00, 0x1200011, *NAMESPACES)


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("machine", sorted(seccomp.MACHINES))
def test_the_filter_denies_the_list_and_nothing_else(machine: str, loopback: bool) -> None:
    here = seccomp.MACHINES[machine]
    program = seccomp.program(machine, loopback)
    assert all(0 <= step.true < 256 and 0 <= step.false < 256 for step in program), "jumps are bytes"
    listed = {numbers[here.column] for numbers in seccomp.DENIED.values()}
    socket, socketpair, clone, prlimit = {"x86_64": (41, 53, 56, 302), "aarch64": (198, 199, 220, 261)}[machine]

    def expected(number: int, first: int, second: int, third: int) -> int:
        if number == socket and loopback:
            return ALLOW if first in (2, 10) or (first == 16 and third == 0) else DENY
        if number == socketpair:
            return ALLOW if second & 0xF == 1 else DENY
        if number == clone:
            return DENY if any(first & bit for bit in NAMESPACES) else ALLOW
        if number == 435:
            return ABSENT
        return DENY if number in listed or (number == prlimit and first) else ALLOW

    for number in range(600):
        for first in ARGUMENTS:
            for second, third in ((0, 0), (1, 0), (2, 7), (0x80001, 15), (0x80002, 0)):
                wanted = expected(number, first, second, third)
                assert decide(program, number, here.audit, first, second, third) == wanted, (number, first, second)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_calls_by_another_numbering_are_denied(number: int, architecture: int) -> None:
    for machine, here in seccomp.MACHINES.items():
        if architecture != here.audit:
            assert decide(seccomp.program(machine), number, architecture, 0) == DENY
    assert decide(seccomp.program("x86_64"), number | 0x40000000, 0xC000003E, 0) == DENY


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the header of another architecture")
def test_numbers_are_those_of_the_kernel_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.is_file():
        pytest.skip("no kernel headers here")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    wrong = {name: n for name, (n, _) in seccomp.DENIED.items() if name in known and int(known[name]) != n}
    assert not wrong


# The rules as a pure function of the file system.


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_carving_leaves_out_what_is_hidden_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("carve")
    parts = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
    files = {Path(*path, "file") for path in data.draw(st.lists(parts, min_size=1, max_size=8))}
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    candidates = sorted({*files, *(parent for file in files for parent in file.parents if parent != Path())})
    hidden = [root / path for path in data.draw(st.lists(st.sampled_from(candidates), max_size=3))]
    rules = list(policy.carve(root, [*hidden, Path("/elsewhere")], "read"))
    granted = [Path(rule.path) for rule in rules if rule.access == "read"]
    for file in files:
        place = root / file
        covered = any(place.is_relative_to(path) for path in granted)
        assert covered == (not any(place.is_relative_to(path) for path in hidden))


def test_carving_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "root" / "hidden").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    rules = list(policy.carve(tmp_path / "root", [tmp_path / "root" / "hidden"], "read"))
    assert rules == [policy.Rule(str(tmp_path / "root"), "list")]


def test_copies_are_found_in_every_form(tmp_path: Path) -> None:
    for name in ("t/__init__.py", "t.py", "t.cpython-311-x.so", "__pycache__/t.cpython-311.pyc", "tt/x.py", "u.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = policy.installed_copies({"t"}, [tmp_path])
    assert {str(path.relative_to(tmp_path)) for path in found} == {
        *("t", "t.py", "t.cpython-311-x.so", "__pycache__/t.cpython-311.pyc")
    }


def test_a_checkout_below_an_allowed_folder_is_hidden_and_its_environment_is_not(tmp_path: Path) -> None:
    """A checkout in /usr/src, say, with its virtual environment inside and a copy of the target in that."""
    usr = tmp_path / "usr"
    checkout, site = usr / "src" / "checkout", usr / "src" / "checkout" / ".venv" / "site"
    for path in (site / "target", site / "numpy", site / "feedback", checkout / "target", usr / "lib"):
        path.mkdir(parents=True)
    interpreter = policy.Interpreter(prefixes=(usr, checkout / ".venv"), site_folders=(site,))
    rules = policy.interpreter_rules("target", interpreter, judge=checkout)
    granted = [
        Path(rule.path) for rule in rules if rule.access == "execute" and Path(rule.path).is_relative_to(tmp_path)
    ]

    def readable(path: Path) -> bool:
        return any(path.is_relative_to(grant) for grant in granted)

    assert readable(usr / "lib")
    assert readable(site / "numpy")
    assert not readable(site / "target")
    assert not readable(site / "feedback")
    assert not readable(checkout / "target")
    assert not readable(checkout / "anything")


def test_folders_of_pth_files_that_hold_the_target_or_the_judge_are_left_out(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("site", "with_target/target", "with_judge/feedback", "useful/library"):
        (tmp_path / name).mkdir(parents=True)
    lines = [*(str(tmp_path / name) for name in ("with_target", "with_judge", "missing")), "../useful"]
    (site / "a.pth").write_text("\n".join(["# comment", "import sys", *lines]))
    interpreter = policy.Interpreter(prefixes=(), site_folders=(site,))
    assert policy.module_folders("target", interpreter) == [site, tmp_path / "useful"]
    assert policy.Rule(str(tmp_path / "useful"), "execute") in policy.interpreter_rules("target", interpreter, site)
