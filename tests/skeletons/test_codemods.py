"""The shared analysis: what a name means, what an instance holds, what runs when; edits leave the rest alone."""

import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skeletons.codemods import blocks
from skeletons.codemods.classes import classes
from skeletons.codemods.edits import Edits, folded, joined_name
from skeletons.codemods.source import Unparsable, bindings, parse, walk
from skeletons.codemods.ssa import Block
from skeletons.transfer import transfer
from tests.skeletons.support import ROOT, library


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (("w_q", "w_k", "w_v"), "w_qkv"),
        (("q_proj", "k_proj", "v_proj"), "qkv_proj"),
        (("gate_proj", "up_proj"), "gate_up_proj"),
        (("w_gate", "w_up"), "w_gate_up"),
        (("query", "key"), "query_key"),
        (("a", "a_b"), "a_a_b"),
    ],
)
def test_joined_names_say_what_is_in_them(names, joined):
    assert joined_name(names) == joined


def names_in(text: str) -> dict[str, str | None]:
    source = parse(text)
    return {source.code(n): source.dotted(n) for n in walk(source.module) if isinstance(n, cst.Attribute)}


def test_imported_names_are_followed_and_shadowed_ones_are_not():
    assert names_in("import torch.nn.functional as F\nF.linear")["F.linear"] == "torch.nn.functional.linear"
    assert names_in("from torch import nn\nnn.Linear")["nn.Linear"] == "torch.nn.Linear"
    assert names_in("import torch\ndef f(torch):\n    return torch.cat")["torch.cat"] is None
    assert names_in("x.cat")["x.cat"] is None


def test_what_cannot_be_read_says_where():
    with pytest.raises(Unparsable, match="line 2"):
        parse("x = 1\ndef f(:\n")


def constants(body: str) -> dict[str, str]:
    text = "import torch\nclass A:\n    def __init__(self, x, y):\n" + "".join(
        f"        {line}\n" for line in body.split("\n")
    )
    (view,) = classes(parse(text))
    found = {name: view.constant(name) for name in view.stores}
    return {name: value if isinstance(value, str) else "" for name, value in found.items()}


def test_constants_are_set_once_and_always():
    assert constants("self.a = x\nself.b: int = y\nself.c, self.d = x, y") == {"a": "", "b": "", "c": "", "d": ""}
    assert constants("self.a = x\nself.a = y") == {"a": "self.a is assigned more than once"}
    assert constants("if x:\n            self.a = y") == {"a": "self.a is assigned under a condition"}
    assert "by copy_" in constants("self.a = x\nself.a.copy_(y)")["a"]
    assert "writes into it" in constants("self.a = x\nself.a.data[0] = y")["a"]
    assert "passes it as out" in constants("self.a = x\ntorch.add(x, y, out=self.a)")["a"]


def test_versions_follow_assignments_of_a_block():
    source = parse("def f(x, n):\n    y = x\n    x = x + 1\n    if n:\n        y = 2\n    return x, y\n")
    (function,) = source.functions.values()
    assert isinstance(function.body, cst.IndentedBlock)
    block = Block(source, function.body)
    versions = [(n.value, version) for n, version in block.version.items()]
    assert versions == [("x", "x@0"), ("x", "x@0"), ("n", "n@0"), ("x", "x@2"), ("y", "y@3")]
    assert block.visible("x", 3, {1}) == "x@0"


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("a, (b, *c) = d", ["a", "b", "c"]),
        ("for i in x:\n    with y as z:\n        pass", ["i", "z"]),
        ("import p.q\nfrom r import s as t", ["p", "t"]),
        ("def g(h):\n    i = 1", ["g"]),
        ("(j := 3)\ndel k\nl[0] = 1\nm.n = 2", ["j", "k"]),
    ],
)
def test_bindings(text, bound):
    assert sorted(bindings(parse(text).module)) == sorted(bound)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("x[0] = 1", ["x"]),
        ("x.y = 1", ["x"]),
        ("x += 1", ["x"]),
        ("x.add_(1)", ["x"]),
        ("f(1, out=x)", ["x"]),
        ("f(x, inplace=True)", ["x"]),
        ("x.append(1)", ["x"]),
        ("x = y.add(1)", []),
        ("x.__init__()", []),
    ],
)
def test_visible_writes(text, written):
    source = parse(text)
    assert [source.code(node) for node, _ in blocks.writes(source.module)] == written


def test_aliases_go_through_views_and_stop_at_new_values():
    (function,) = parse(
        "def f(x):\n    a = x.view(-1)[0]\n    b = a.T\n    c = x.cos()\n    d = c\n"
    ).functions.values()
    assert blocks.aliases(function, "x") == {"x", "a", "b"}
    assert blocks.aliases(function, "c") == {"c", "d"}


lines = st.sampled_from(
    ["x = 1", "y = (1,\n     2)", "# note", "", "def f( a ):\n  return a", "if 1 :\n        z=3", "class A: pass"]
)


@given(st.lists(lines, min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_no_edit_changes_nothing(parts):
    text = "\n".join(parts) + "\n"
    assert Edits(parse(text)).text() == text


def test_long_new_lines_are_folded_and_old_ones_stay():
    old = "x = f(" + "a, " * 60 + "b)"
    new = "y = g(" + "a, " * 38 + "b)"
    assert folded(f"{old}\n{new}", {old}).split("\n") == [old, "y = g(", "    " + "a, " * 38 + "b", ")"]


RUFF = Path(sys.executable).with_name("ruff")


@pytest.mark.skipif(not RUFF.is_file(), reason="no ruff")
def test_edited_operators_pass_the_formatter_and_the_linter(tmp_path):
    """What a run leaves behind is to be reviewed and merged: it must look like the rest of the repository."""
    paths = [*ROOT.glob("target_engine/ops/*/torch.py"), *ROOT.glob("target_engine/models/*.py")]
    files = {str(p.relative_to(ROOT)): p.read_text() for p in paths}
    before = dict(files)
    for skeleton in library():
        if skeleton.kind == "code":
            files = dict(transfer(library(), skeleton.name, files).files)
    assert sum(files[p] != before[p] for p in before) >= 6
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    options = ["--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    for command in (["check"], ["format", "--diff"]):
        result = subprocess.run([str(RUFF), *command, *options], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
