"""The pure parts of the static layer, on texts."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.globs import matches
from feedback.static.flaws import Flaw
from feedback.static.imports import unresolved_imports
from feedback.static.names import parse, undefined_names
from feedback.static.scope import changed_files, scope_flaws
from feedback.static.tampering import tampering_flaws
from feedback.static.types import NoChecker, type_flaws
from feedback.target import FileEntry, Role
from target_engine.adapter import create

ENTRIES = (
    FileEntry(path="engine/ops/norm/torch.py", role=Role.EDITABLE),
    FileEntry(path="engine/ops/norm/fused.py", role=Role.EDITABLE),
    FileEntry(path="engine/ops/norm/reference.py", role=Role.PROTECTED),
    FileEntry(path="engine/workloads/main.jsonl", role=Role.PROTECTED),
    FileEntry(path="engine/profiles/run.toml", role=Role.PROFILE),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for entry in ENTRIES:
        file = tmp_path / "tree" / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    return tmp_path / "tree"


def put(root: Path, path: str, text: str = "y = 2\n") -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return path


def reasons(root: Path, *changed: str, **options) -> list[str]:
    return [flaw.text for flaw in scope_flaws(changed, root, ENTRIES, **options)]


def test_scope_admits_edits_new_implementations_and_the_profile(tree):
    assert reasons(tree, "engine/ops/norm/torch.py", "engine/profiles/run.toml") == []
    assert reasons(tree, put(tree, "engine/ops/norm/native.py"), put(tree, "engine/ops/norm/native.c")) == []
    assert reasons(tree, "engine/profiles/run.toml", kind="launch") == []


def test_scope_refuses_with_the_reason(tree):
    assert "is protected" in reasons(tree, "engine/ops/norm/reference.py")[0]
    assert "lies outside the target" in reasons(tree, "../other.py")[0]
    assert "by itself" in reasons(tree, put(tree, "engine/ops/norm/conftest.py"))[0]
    assert "shadows a standard-library module" in reasons(tree, put(tree, "json.py"))[0]
    assert "beside the target" in reasons(tree, put(tree, "helper.py"))[0]
    assert "nothing may be edited" in reasons(tree, put(tree, "engine/workloads/extra.txt"))[0]
    assert "not a text file" in reasons(tree, put(tree, "engine/ops/norm/fast.so"))[0]
    assert "launch move" in reasons(tree, "engine/ops/norm/torch.py", kind="launch")[0]
    assert "outside the edit scope" in reasons(tree, "engine/ops/norm/torch.py", globs=("engine/ops/linear/**",))[0]


def test_a_link_is_refused_wherever_it_points(tree):
    (tree / "engine/ops/norm/torch.py").unlink()
    (tree / "engine/ops/norm/torch.py").symlink_to("reference.py")
    assert "symbolic link" in reasons(tree, "engine/ops/norm/torch.py")[0]


def test_unstated_edits_are_found(tree, tmp_path):
    import shutil

    candidate = tmp_path / "candidate"
    shutil.copytree(tree, candidate)
    put(candidate, "engine/ops/norm/torch.py")
    put(candidate, "engine/workloads/main.jsonl")
    put(candidate, "sitecustomize.py")
    put(candidate, "json/__init__.py")
    put(candidate, "numpy.py")
    put(candidate, "notes_of_mine/readme.txt")
    (candidate / "engine/ops/norm/fused.py").unlink()
    found = changed_files(tree, candidate, ENTRIES, stated=("engine/ops/norm/torch.py",))
    assert found == (
        "engine/ops/norm/fused.py",
        "engine/ops/norm/torch.py",
        "engine/workloads/main.jsonl",
        "json",
        "numpy.py",
        "sitecustomize.py",
    )
    assert changed_files(tree, tree, ENTRIES, stated=("engine/ops/norm/torch.py",)) == ()
    assert len(scope_flaws(found, candidate, ENTRIES)) == 4


@pytest.mark.parametrize(
    ("path", "glob", "expected"),
    [
        ("a/b/c.py", "a/**", True),
        ("a/b/c.py", "a/*.py", False),
        ("a/b/c.py", "a/*/c.py", True),
        ("a/b/c.py", "a/b", True),
        ("a/bb/c.py", "a/b", False),
        ("a/b/c.py", "a/*", False),
        ("a/b/c.py", "**/*.py", True),
        ("c.py", "**/*.py", True),
        ("a/b/c.pyc", "**/*.py", False),
    ],
)
def test_globs(path, glob, expected):
    assert matches(path, glob) is expected


@given(st.lists(st.sampled_from(["a", "b", "c.d"]), min_size=1, max_size=4).map("/".join))
def test_a_path_matches_itself_and_everything(path):
    assert matches(path, path)
    assert matches(path, "**")


def names_in(text: str) -> list[tuple[int | None, str]]:
    tree = parse("m.py", text)
    assert isinstance(tree, ast.Module)
    return [(flaw.line, flaw.text) for flaw in undefined_names("m.py", text, tree)]


def test_undefined_names_are_located():
    text = "import os\n\ndef f(a):\n    return a + os.sep + weigth\n\nclass C:\n    x = [1 for _ in z]\n"
    assert names_in(text) == [(4, "undefined name weigth"), (7, "undefined name z")]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    global g\n    g = 1\n\ndef h():\n    return g\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import foo\ndef f(x: foo.Bar): ...\n",
        "try:\n    import json\nexcept ImportError:\n    json = None\nprint(json, __file__, __name__)\n",
        "def outer():\n    n = 1\n    def inner():\n        nonlocal n\n        n += 1\n    return inner\n",
        "with open('x') as f, open('y') as g:\n    print(f, g)\nfor i, (a, b) in []:\n    print(i, a, b)\n",
        "match 1:\n    case int(v) if v > 0:\n        print(v)\n",
        "print([w := 3, w])\nlambda q: q\n",
        "try:\n    pass\nexcept ValueError as error:\n    print(error)\n",
        "class A:\n    def f(self):\n        return __class__, super().__init__\n",
    ],
)
def test_defined_names_are_left_alone(text):
    assert names_in(text) == []


def test_this_repository_has_no_undefined_names():
    root = Path(__file__).parents[2]
    for file in sorted((root / "feedback").rglob("*.py")):
        text = file.read_text()
        tree = parse(str(file), text)
        assert isinstance(tree, ast.Module)
        assert undefined_names(str(file), text, tree) == []
        assert [f for f in unresolved_imports(file.relative_to(root).as_posix(), tree, root) if f.hard] == []


def test_syntax_errors_are_located():
    flaw = parse("m.py", "x = 1\ndef f(:\n")
    assert isinstance(flaw, Flaw)
    assert (flaw.line, flaw.check) == (2, "syntax")
    assert isinstance(parse("m.py", "x\0"), Flaw)


def imports_in(root: Path, text: str, path: str = "engine/ops/norm/torch.py") -> list[tuple[str, bool]]:
    return [(flaw.text, flaw.hard) for flaw in unresolved_imports(path, ast.parse(text), root)]


def test_imports_are_resolved_against_the_tree_then_against_what_is_installed(tree):
    put(tree, "engine/__init__.py", "")
    put(tree, "engine/ops/settings.py", "class Settings: ...\n")
    good = (
        "import os.path, numpy.linalg, torch.nn.functional\nfrom engine.ops.settings import Settings\n"
        "from . import fused\nfrom ..settings import Settings as S\nfrom engine.ops.norm import reference\n"
    )
    assert imports_in(tree, good) == []
    assert imports_in(tree, "import no_such_package\n") == [("no module named no_such_package", True)]
    assert imports_in(tree, "from engine.ops.settings import Setings\n") == [
        ("engine.ops.settings defines no Setings", True)
    ]
    assert imports_in(tree, "from engine.opz import x\n") == [("no module engine.opz in the tree", True)]
    assert imports_in(tree, "from ..... import x\n") == [("relative import beyond the top of the tree", True)]
    assert imports_in(tree, "import numpy.no_such\n") == [
        ("numpy.no_such has no file in the installed package numpy", False)
    ]
    assert imports_in(tree, "try:\n    import triton_x\nexcept ImportError:\n    pass\n") == [
        ("no module named triton_x", False)
    ]


def tampering(text: str, base: str | None = None) -> list[tuple[str, bool]]:
    before = ast.parse(base) if base is not None else None
    return [(flaw.text, flaw.hard) for flaw in tampering_flaws("m.py", ast.parse(text), before)]


HARD = {
    "clock": "import time\ntime.perf_counter = lambda: 0.0\n",
    "clock through an alias": "import time as t\nsetattr(t, 'monotonic', lambda: 0.0)\n",
    "comparison": "import numpy as np\nnp.allclose = lambda *a, **k: True\n",
    "library": "import torch.nn.functional as F\nF.linear = None\n",
    "stack": "import sys\n\ndef f():\n    return sys._getframe(1).f_code.co_name\n",
    "inspect": "from inspect import stack\nstack()\n",
    "collector": "import gc\n[o for o in gc.get_objects()]\n",
    "trace": "import sys\nsys.settrace(print)\n",
    "judge": "from feedback.operators import patterns\n",
    "judge, dynamic": "import importlib\nimportlib.import_module('infra_agent.loop')\n",
    "environment": "import os\nos.environ.get('INFRA_AGENT_SEED')\n",
    "environment, by item": "import os\nos.environ['INFRA_AGENT_HOME']\n",
    "other process": "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)\n",
    "memory": "open('/proc/self/mem', 'rb')\n",
    "shared memory": "import os\nos.listdir('/dev/shm')\n",
    "outside": "open('/etc/passwd', 'w')\n",
    "modules": "import sys\nsys.modules['time'] = None\n",
    "finder": "import sys\nsys.meta_path.insert(0, None)\n",
}

SOFT = {
    "lazy package": "import sys\nsys.modules[__name__] = object()\n",
    "identity": "cache = {}\n\ndef f(x):\n    return cache[id(x)]\n",
    "address": "cache = {}\n\ndef f(x):\n    if x.data_ptr() in cache:\n        return cache.get(x.data_ptr())\n",
    "thread": "import threading\nthreading.Thread(target=print).start()\n",
    "flag": "import torch\ntorch.backends.mkldnn.enabled = False\n",
    "default type": "import torch\ntorch.set_default_dtype(torch.float16)\n",
    "lazy tensor": "import torch\n\nclass Lazy(torch.Tensor):\n    pass\n",
    "text as code": "exec('x = 1')\n",
}

CLEAN = (
    "import time, os, ctypes, gc, inspect\nstarted = time.time()\nos.environ.get('OMP_NUM_THREADS')\ngc.freeze()\n"
    "class A:\n    def __init__(self, x):\n        self.time = started\n        self.pointer = x.data_ptr()\n"
    "        self.signature = inspect.signature(print)\n        self.library = ctypes.CDLL('/x/kernel.so')\n"
    "    def f(self, table, key):\n        return table[key]\n"
)


@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_tricks_with_no_other_use_are_hard(text):
    assert any(hard for _, hard in tampering(text)), text


@pytest.mark.parametrize("text", SOFT.values(), ids=SOFT.keys())
def test_tricks_with_honest_uses_are_soft(text):
    found = tampering(text)
    assert found
    assert not any(hard for _, hard in found)


def test_ordinary_engine_code_is_not_flagged():
    assert tampering(CLEAN) == []


@pytest.mark.parametrize("text", [*HARD.values(), *SOFT.values()])
def test_what_the_base_had_is_not_the_candidates_doing(text):
    assert tampering("# a comment\n" + text + "\nz = 1\n", base=text) == []


def test_nothing_that_a_candidate_may_edit_has_a_hard_fact():
    """What is protected may: the file that finds the place where a rank hangs looks at the call stacks of threads."""
    root = Path(__file__).parents[2]
    editable = [entry["path"] for entry in create().files() if entry["role"] == "editable"]
    for path in (path for path in editable if path.endswith(".py")):
        hard = [f for f in tampering_flaws(path, ast.parse((root / path).read_text())) if f.hard]
        assert hard == []


def test_added_type_errors_are_found_and_old_ones_are_not(tmp_path):
    base, candidate = tmp_path / "base", tmp_path / "candidate"
    old = "class A:\n    weight = 1\n\n    def __init__(self) -> None: ...\n\n"
    old += "    def f(self) -> str:\n        return self.weight\n"
    put(base, "m.py", old)
    text = old + "\n    def g(self) -> int:\n        return self.weigth\n\n\nA(3)\n"
    put(candidate, "m.py", text)
    try:
        flaws = type_flaws(["m.py"], candidate, base, {"m.py": ast.parse(text)})
    except NoChecker as error:
        pytest.skip(str(error))
    assert [(f.line, f.hard) for f in flaws] == [(10, True), (13, True)]
    assert "weigth" in flaws[0].text
