"""Files of cases, sizes, arguments, and the trees that kernel workers run from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.kernels import trees
from feedback.kernels.arguments import DISTRIBUTIONS, Argument, drawn, held
from feedback.kernels.cases import place, read
from feedback.kernels.expressions import size
from feedback.sandbox.policy import Interpreter

GOOD = """
reference = "reference.py::merge"
devices = ["cuda:90"]

[defaults]
bound = 1e-6
outputs = ["out"]
grid = ["cdiv(N, BLOCK)", 2]
meta = { N = 64, BLOCK = 32 }

[defaults.arguments]
out = { shape = [64, 64] }
x = { shape = [64, 64], distribution = "normal" }

[[case]]
name = "plain"

[[case]]
name = "weak"
bound = { out = 1e-5 }
meta = { BLOCK = 16 }
arguments.x = { shape = [64, 64], distribution = "weak_decay", dtype = "bfloat16" }
arguments.n = 3
"""


def write(folder: Path, text: str, name: str = "cases.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_cases_stand_on_their_defaults(tmp_path):
    cases = read(write(tmp_path, GOOD))
    plain, weak = cases.cases
    assert (plain.bound_of("out"), weak.bound_of("out")) == (1e-6, 1e-5)
    assert weak.meta == {"N": 64, "BLOCK": 16}
    assert weak.arguments["n"] == 3
    assert weak.arguments["x"] == Argument(shape=(64, 64), distribution="weak_decay", dtype="bfloat16")
    assert weak.arguments["out"] == plain.arguments["out"] == Argument(shape=(64, 64))
    assert cases.devices == ("cuda:90",)


def test_json_says_the_same(tmp_path):
    import tomllib

    text = json.dumps(tomllib.loads(GOOD))
    assert read(write(tmp_path, text, "cases.json")) == read(write(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('[[case]]\nname = "plain"', "[[case]"), "not valid TOML"),
        (('devices = ["cuda:90"]', 'devices = ["cuda:91"]'), "unknown device cuda:91; known are cuda:80"),
        (('name = "weak"', 'name = "plain"'), "two cases have the same name"),
        (("bound = 1e-6", "bound = 0.0"), "give a positive bound for every output"),
        (("bound = { out = 1e-5 }", "bound = { other = 1e-5 }"), "give a positive bound for out"),
        (('outputs = ["out"]', 'outputs = ["result"]'), "output result is no argument"),
        (('outputs = ["out"]', ""), "nothing is compared"),
        (('"weak_decay"', '"weak_delay"'), "no such distribution 'weak_delay'"),
        (('reference = "reference.py::merge"', ""), "reference"),
        (("[defaults]", "[defaults]\ncolour = 1"), "colour"),
    ],
)
def test_a_mistake_is_one_line_with_the_file(tmp_path, change, says):
    with pytest.raises(UserError) as error:
        read(write(tmp_path, GOOD.replace(*change)))
    assert says in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "cases.toml"))
    assert "\n" not in str(error.value)


def test_a_place_is_a_file_and_a_name(tmp_path):
    file = write(tmp_path, "", "kernels.py")
    assert place("kernels.py::one", tmp_path) == (file.resolve(), "one")
    for text, says in {
        "kernels.py": "write it as",
        "kernels.py::1": "write it as",
        "no.py::x": "no Python file",
    }.items():
        with pytest.raises(UserError, match=says):
            place(text, tmp_path)


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 9))
def test_sizes_are_what_python_makes_of_them(n, block, heads):
    names = {"n": n, "BLOCK": block, "H": heads, "x": "text"}
    assert size("cdiv(n, BLOCK)", names) == -(-n // block)
    assert size("n // BLOCK * H + max(1, n % H)", names) == n // block * heads + max(1, n % heads)
    assert size("min(n, 3) - 1", names) == min(n, 3) - 1
    assert size(7, names) == 7


@pytest.mark.parametrize(
    "expression", ["n.bit_length()", "__import__('os')", "n ** 9", "[n]", "unknown", "x", "n +", "1.5", "n // 0"]
)
def test_anything_else_is_no_size(expression):
    with pytest.raises(ValueError, match=r"size|expression|constant|zero"):
        size(expression, {"n": 3, "x": "text"})


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_are_those_that_the_type_can_hold(distribution, dtype):
    argument = Argument(shape=(8, 16), dtype=dtype, distribution=distribution)
    values = drawn(argument, np.random.default_rng(1))
    assert values.shape == (8, 16)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(held(values, dtype), values)
    np.testing.assert_array_equal(drawn(argument, np.random.default_rng(1)), values)


def test_decay_is_weak_or_strong():
    rng = np.random.default_rng(0)
    weak = drawn(Argument(shape=(1000,), distribution="weak_decay"), rng)
    strong = drawn(Argument(shape=(1000,), distribution="strong_decay"), rng)
    assert (weak <= 0).all()
    assert weak.mean() > -0.01
    assert (strong <= -3).all()


def test_a_result_is_poisoned():
    rng = np.random.default_rng(0)
    assert np.isnan(drawn(Argument(shape=(3,)), rng)).all()
    assert (drawn(Argument(shape=(3,), dtype="int32"), rng) == np.iinfo(np.int32).min).all()


def test_a_file_by_itself_brings_what_it_imports_from_its_folder(tmp_path):
    for name, text in {
        "kernel": "import math\nfrom helper import x\nimport numpy",
        "helper": "import deeper",
        "deeper": "",
        "other": "",
    }.items():
        write(tmp_path, text, f"{name}.py")
    source = trees.source_of(tmp_path / "kernel.py")
    assert source.module == "kernel_subject.kernel"
    assert sorted(source.files) == [f"kernel_subject/{name}.py" for name in ("deeper", "helper", "kernel")]
    root = trees.by_hand(tmp_path / "tree", [source])
    assert (root / "kernel_bench" / "adapter.py").is_file()
    assert source.original(root, str(root / "kernel_subject" / "helper.py")) == str(tmp_path / "helper.py")
    assert source.original(root, "/elsewhere.py") == "/elsewhere.py"


def test_a_file_in_a_package_brings_the_package(tmp_path):
    inner = tmp_path / "engine" / "ops"
    inner.mkdir(parents=True)
    for file in (inner.parent / "__init__.py", inner / "__init__.py", inner / "kernel.py"):
        file.write_text("")
    source = trees.source_of(inner / "kernel.py")
    assert source.module == "engine.ops.kernel"
    assert sorted(source.files) == ["engine/__init__.py", "engine/ops/__init__.py", "engine/ops/kernel.py"]


def test_an_installed_file_brings_nothing(tmp_path):
    site = tmp_path / "site-packages"
    (site / "lib" / "ops").mkdir(parents=True)
    file = write(site / "lib" / "ops", "", "kernel.py")
    assert trees.source_of(file, Interpreter((), (site,))) == trees.Source("lib.ops.kernel")


def test_a_file_that_is_no_python_is_one_line(tmp_path):
    with pytest.raises(UserError, match="is no Python"):
        trees.source_of(write(tmp_path, "def", "kernel.py"))
