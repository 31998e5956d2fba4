"""Starting states: what is left out, replaced and launched, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.errors import UserError
from infra_agent.goal import Goal, shipped_goals
from infra_agent.repository import Entry
from infra_agent.start import Start, nested, shipped_starts
from target_engine.adapter import create
from tests.infra_agent.target_files import FILES, PROFILE_PATH, SLOW_START, write_start

TARGET = {path: Entry(text.encode()) for path, text in FILES.items()}


def applied(start: Start, **launch: object) -> dict[str, str]:
    return {path: entry.data.decode() for path, entry in start.apply(TARGET, PROFILE_PATH, launch).items()}


def test_a_start_leaves_out_replaces_adds_and_has_one_profile(tmp_path: Path) -> None:
    folder = write_start(tmp_path / "s", SLOW_START, {"engine/scheduler.py": "slow\n", "engine/new.py": "new\n"})
    tree = applied(Start.load(folder))
    assert "engine/ops/linear/packed.py" not in tree
    assert tree["engine/ops/linear/plain.py"] == FILES["engine/ops/linear/plain.py"]
    assert (tree["engine/scheduler.py"], tree["engine/new.py"]) == ("slow\n", "new\n")
    assert [path for path in tree if path.endswith(".toml")] == [PROFILE_PATH]


def test_launch_parameters_come_in_order_profile_start_goal(tmp_path: Path) -> None:
    start = Start.load(
        write_start(tmp_path / "s", SLOW_START.replace("threads = 1", 'threads = 1, "operators.rope" = "x"'))
    )
    assert applied(start, threads=3)[PROFILE_PATH] == (
        '# The first version.\nmax_batch = 4  # slots\nthreads = 3\n\n[operators]\nlinear = "plain"\nrope = "x"\n'
    )


def test_a_start_may_bring_its_own_profile(tmp_path: Path) -> None:
    folder = write_start(tmp_path / "s", 'title = "t"\ncomplaint = "c"\nprofile = "own.toml"\n')
    (folder / "own.toml").write_text("max_batch = 1\n")
    assert applied(Start.load(folder))[PROFILE_PATH] == "max_batch = 1\n"


def test_the_digest_is_of_all_that_the_folder_says(tmp_path: Path) -> None:
    one = Start.load(write_start(tmp_path / "a" / "s", SLOW_START, {"x.py": "1"}))
    same = one.copy_to(tmp_path / "copy")
    other = Start.load(write_start(tmp_path / "b" / "s", SLOW_START, {"x.py": "2"}))
    assert (same.name, same.digest) == (one.name, one.digest)
    assert other.digest != one.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("leave_out", "leaveout", r"start\.toml:4: leaveout: unknown key; did you mean 'leave_out'\?"),
        ("engine/ops/*/*", "engine/opps/*", r"start\.toml:4: leave_out: the pattern 'engine/opps/\*' fits no file"),
        ('"slow"', '"slwo"', r"start\.toml:3: profile: the target has no launch profile 'slwo'.*did you mean 'slow'\?"),
        ('"slow"', '"x.toml"', r"start\.toml:3: profile: there is no file .*x\.toml"),
        ('"A slow start"', "7", r"start\.toml:1: title: should be a valid string, not 7"),
        ("complaint", "# complaint", r"start\.toml:1: complaint: is missing"),
    ],
)
def test_a_wrong_start_is_refused_with_file_line_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = write_start(tmp_path / "s", SLOW_START.replace(old, new, 1))
    with pytest.raises(UserError, match=said):
        Start.load(folder).apply(TARGET, PROFILE_PATH, {})


def test_an_unknown_start_names_the_shipped_ones() -> None:
    with pytest.raises(UserError, match="did you mean 'first_run'"):
        Start.load("first-run")


def test_dotted_names_are_tables() -> None:
    assert nested({"a": 1, "t.x": 2, "t": {"y": 3}, "u.v.w": 4}) == {
        "a": 1,
        "t": {"x": 2, "y": 3},
        "u": {"v": {"w": 4}},
    }


def test_shipped_goals_and_starts_are_valid() -> None:
    assert {"first_run", "production"} <= set(shipped_starts())
    assert all(Start.load(name).spec.complaint for name in shipped_starts())
    assert "throughput" in shipped_goals()
    assert all(Path(Goal.load(name).start).is_dir() for name in shipped_goals())


def test_first_run_keeps_the_plain_form_of_every_operator_and_no_other(trusted_root: Path) -> None:
    """Against the engine's own files, read as text: nothing of the engine is imported here."""
    engine = trusted_root / "target_engine"
    files = {path.relative_to(trusted_root).as_posix(): Entry(path.read_bytes()) for path in engine.rglob("*.*")
             if path.is_file() and path.suffix in (".py", ".c", ".h", ".toml")}  # fmt: skip
    tree = Start.load("first_run").apply(files, "target_engine/profiles/run.toml", {})
    operators = {path.parent.name for path in engine.glob("ops/*/spec.py")}
    assert operators
    kept = {path for path in tree if path.startswith("target_engine/ops/") and path.count("/") == 3}
    plain = ("__init__.py", "reference.py", "spec.py", "torch.py", "shardings.py", "parallel.py")
    assert kept == {f"target_engine/ops/{operator}/{name}" for operator in operators for name in plain} & set(files)
    left_out = set(files) - set(tree)
    assert any(path.endswith("prepacked.py") for path in left_out)
    outside = {path for path in left_out if not path.startswith("target_engine/ops/")}
    folders = {path.rsplit("/", 1)[0] for path in outside}
    assert folders <= {"target_engine/profiles", "target_engine/native"}


@pytest.mark.parametrize("name", shipped_starts())
def test_no_shipped_start_leaves_out_what_the_engine_cannot_do_without(name: str, trusted_root: Path) -> None:
    """What is protected defines what right means; and an operator is cut over ranks by code of its own."""
    roles = {entry["path"]: entry["role"] for entry in create().files()}
    whole = {path: Entry((trusted_root / path).read_bytes()) for path in roles}
    left = set(whole) - set(Start.load(name).apply(whole, "target_engine/profiles/run.toml", {}))
    needed = {path for path, role in roles.items() if role == "protected" and "/profiles/" not in path}
    needed |= {path for path in roles if path.endswith(("/parallel.py", "/__init__.py"))}
    assert not left & needed


REPLACES = """title = "t"
complaint = "c"
profile = "slow"

[[replace]]
file = "engine/scheduler.py"
text = '''{text}'''
with = "other"
times = {times}
"""


def test_a_start_may_replace_single_texts(tmp_path: Path) -> None:
    text = FILES["engine/scheduler.py"]
    folder = write_start(tmp_path / "s", REPLACES.format(text=text, times=1))
    assert applied(Start.load(folder))["engine/scheduler.py"] == "other"


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        (("'''TEXT'''", "'''nowhere to be found'''"), "holds 'nowhere to be found' 0 times"),
        (("times = 1", "times = 2"), "to hold it 2 times"),
        (("engine/scheduler.py", "engine/none.py"), "the target has no such file"),
        (('with = "other"\n', ""), "is missing"),
        (("times = 1", "times = 0"), "times"),
    ],
)
def test_a_text_that_is_not_there_as_often_is_refused(tmp_path: Path, replaced: tuple[str, str], said: str) -> None:
    text = REPLACES.format(text="TEXT", times=1).replace(*replaced).replace("TEXT", FILES["engine/scheduler.py"])
    folder = write_start(tmp_path / "s", text)
    with pytest.raises(UserError, match=said):
        applied(Start.load(folder))
