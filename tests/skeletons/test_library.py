"""The library on disk: what ships is sound and names no target; what a run adds goes to the user's own."""

import datetime
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feedback.errors import UserError
from skeletons.library import SHIPPED, Library, user_library
from skeletons.skeleton import Evidence
from tests.skeletons.support import ROOT, TODAY, library

EVIDENCE = Evidence(
    kind="incremental",
    supports=True,
    effect=1.3,
    interval=(1.2, 1.4),
    share=0.5,
    environment={"cpu": "test", "torch": "2"},
    workload="main",
    date=datetime.date(2026, 5, 1),
    run="r1",
)

MINE = """
name = "mine"
title = "Mine"
version = 1
kind = "launch"
cause = "c"
symptom = "s"
launch = { parameter = ["x"], direction = "up" }
share = { facts = ["share.a"] }
speedup = { mean = 0.1, sd = 0.1, source = "assumed" }
"""


def folder_of(root: Path, text: str = MINE, name: str = "mine") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "skeleton.toml").write_text(text)
    return folder


def test_every_shipped_skeleton_loads_with_its_transformation():
    shipped = library()
    assert len(list(shipped)) >= 12
    for skeleton in shipped:
        if skeleton.kind == "code":
            transform = shipped.transform(skeleton.name)
            assert callable(transform.find)
            assert callable(transform.rewrite)
        assert skeleton.expired(TODAY) is None
        assert skeleton.scope.outside(shipped.versions, "linux") is None


def test_launch_and_code_skeletons_are_both_there():
    kinds = [s.kind for s in library()]
    assert kinds.count("launch") >= 5
    assert kinds.count("code") >= 7
    assert len({s.cause for s in library()}) == len(kinds), "two skeletons claim the same cause"


def test_no_shipped_skeleton_names_anything_of_the_target():
    """Not the package, not an operator (its role may be the same word, and so may plain English), not a class."""
    operators = {p.parent.name for p in ROOT.glob("target_engine/ops/*/spec.py")}
    roles = {m for p in ROOT.glob("target_engine/ops/*/spec.py") for m in re.findall(r'role="(\w+)"', p.read_text())}
    classes = {m for p in ROOT.glob("target_engine/**/*.py") for m in re.findall(r"^class (\w+)", p.read_text(), re.M)}
    named = {"target_engine", "Implementation"} | {name for name in operators - roles if "_" in name}
    named |= {name for name in classes if len(re.findall(r"[A-Z][a-z]+", name)) > 1}
    for path in (p for p in SHIPPED.glob("*/*") if p.is_file() and p.suffix != ".pyc"):
        found = {name for name in named if re.search(rf"\b{name}\b", path.read_text())}
        assert not found, f"{path} names {found}"


def test_loading_the_library_imports_neither_libcst_nor_torch():
    code = "import sys, skeletons.library as l; l.Library.load(); print([*({'libcst', 'torch'} & {*sys.modules})])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_evidence_goes_to_the_users_library_once_and_comes_back(tmp_path):
    before = library(tmp_path)
    name = next(iter(before)).name
    after = before.record_evidence(name, EVIDENCE)
    assert after.get(name).evidence[-1] == EVIDENCE
    assert after.record_evidence(name, EVIDENCE) is after
    assert len((tmp_path / name / "evidence.jsonl").read_text().splitlines()) == 1
    again = library(tmp_path)
    assert again.get(name).evidence == after.get(name).evidence
    assert before.get(name).evidence == library().get(name).evidence, "the shipped library was written to"


def test_evidence_that_refutes_changes_the_belief_of_the_next_run(tmp_path):
    found = library(tmp_path)
    code = next(s for s in found if s.kind == "code")
    against = EVIDENCE.model_copy(update={"supports": False, "effect": 0.97, "interval": (0.95, 0.99)})
    found.record_evidence(code.name, against)
    assert library(tmp_path).get(code.name).belief()[0] < code.belief()[0]


def test_a_skeleton_of_ones_own_is_added_and_replaced_by_a_higher_version(tmp_path):
    user, source = tmp_path / "user", folder_of(tmp_path / "drafts")
    first = library(user).add(source)
    assert first.get("mine").title == "Mine"
    with pytest.raises(UserError, match="version 1 is in the library: give the new one version 2"):
        first.add(source)
    (source / "skeleton.toml").write_text(MINE.replace("version = 1", "version = 2").replace('"Mine"', '"Better"'))
    first.add(source)
    assert library(user).get("mine").title == "Better"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINE.replace("version = 1", 'version = "x"'), "skeleton.toml: version: "),
        (MINE + 'colour = "blue"', "skeleton.toml: colour: "),
        (MINE.replace('name = "mine"', 'name = "other"'), "is not the folder's name"),
        (MINE + "[", "not valid TOML"),
        (MINE.replace('kind = "launch"', 'kind = "code"').replace("launch = {", "# "), "needs a transform.py"),
    ],
)
def test_a_wrong_skeleton_is_one_line_that_names_file_and_field(tmp_path, text, message):
    folder_of(tmp_path, text)
    with pytest.raises(UserError, match=re.escape(message)) as error:
        library(tmp_path)
    assert "\n" not in str(error.value)


def test_a_wrong_line_of_evidence_is_named(tmp_path):
    name = next(iter(library())).name
    (tmp_path / name).mkdir()
    (tmp_path / name / "evidence.jsonl").write_text(EVIDENCE.model_dump_json() + "\n{}\n")
    with pytest.raises(UserError, match=r"evidence.jsonl:2: kind: Field required"):
        library(tmp_path)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="no skeleton 'nothing'; the library has "):
        library().get("nothing")


def test_the_users_library_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "home"))
    assert user_library() == tmp_path / "home" / "library"
    monkeypatch.delenv("INFRA_AGENT_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert user_library() == tmp_path / "state" / "infra-agent" / "library"
    assert isinstance(Library.load(today=TODAY), Library)
