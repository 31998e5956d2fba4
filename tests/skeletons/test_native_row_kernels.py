"""Row operators get a native implementation beside the plain one, with one module of kernels for all of them."""

import importlib
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skeletons.transfer import transfer
from tests.skeletons.support import ROOT, library, operator, plain_operator

NAME = "native_row_kernels"
compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 4e-2, "rtol": 2e-2}}

NORM = [
    ("weight", ("K",), "compute", "constant"),
    ("x", ("N", "K"), "compute", "runtime"),
    ("y", ("N", "K"), "compute", "output"),
]
ROTARY = [
    ("q", ("N", "H", "D"), "compute", "runtime"),
    ("k", ("N", "G", "D"), "compute", "runtime"),
    ("cos", ("N", "D"), "compute", "runtime"),
    ("sin", ("N", "D"), "compute", "runtime"),
    ("q_out", ("N", "H", "D"), "compute", "output"),
    ("k_out", ("N", "G", "D"), "compute", "output"),
]

OWN_NORM = """
import torch


class Scaled:
    def __init__(self, options, gain):
        self.small_eps, self.gain = options, gain

    def forward(self, rows):
        return rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + self.small_eps) * self.gain
"""

OWN_ROTARY = """
import torch


class Turn:
    def __init__(self, *_):
        pass

    def forward(self, sines, cosines, keys, queries):
        def half(x):
            return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)

        c, s = cosines[:, None], sines[:, None]
        return keys * c + half(keys) * s, queries * c + half(queries) * s
"""
OWN_ROTARY_TENSORS = [
    ("sine_table", ("n", "d"), "compute", "runtime"),
    ("cosine_table", ("n", "d"), "compute", "runtime"),
    ("keys", ("n", "g", "d"), "compute", "runtime"),
    ("queries", ("n", "h", "d"), "compute", "runtime"),
    ("turned_keys", ("n", "g", "d"), "compute", "output"),
    ("turned_queries", ("n", "h", "d"), "compute", "output"),
]

_packages = itertools.count()


def generate(folder: Path, cases: dict[str, tuple[str, str, list]]):
    """{operator: (plain module, generated module)} of {operator: (role, text, tensors)}, in one package."""
    package = f"sample_rows_{next(_packages)}"
    files = {f"{package}/__init__.py": ""}
    operators = []
    for name, (role, text, tensors) in cases.items():
        files |= {f"{package}/{name}/__init__.py": "", f"{package}/{name}/plain.py": text}
        operators.append(operator(name, role, tensors, [{"N": 1}], f"{package}/{name}/plain.py"))
    found = transfer(library(), NAME, files, operators)
    assert len(found.sites) == len(cases), found.declined
    for path, content in found.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    sys.path.insert(0, str(folder))
    try:
        load = importlib.import_module
        return {
            n: (load(f"{package}.{n}.plain"), load(f"{package}.{n}.{found.launch[f'operators.{n}']}")) for n in cases
        }
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    cases = {
        "norm": ("rms_norm", plain_operator("rms_norm")[1], NORM),
        "rotary": ("rotary_embedding", plain_operator("rotary_embedding")[1], ROTARY),
    }
    return generate(tmp_path_factory.mktemp("rows"), cases)


def eps(value):
    return type("Settings", (), {"eps": value})()


@compiler
@given(rows=st.integers(0, 5), width=st.integers(1, 70), dtype=DTYPES, scale=st.sampled_from([1e-3, 1.0, 30.0]))
@settings(max_examples=30, deadline=None)
def test_the_engines_normalisation_computes_the_same(engine, rows, width, dtype, scale):
    plain, native = engine["norm"]
    weight, x = torch.randn(width).to(dtype), (scale * torch.randn(rows, width)).to(dtype)
    one, two = plain.Implementation(eps(1e-5), weight=weight), native.Implementation(eps(1e-5), weight=weight)
    assert two.kernel is not None
    torch.testing.assert_close(two(x), one(x), **TOLERANCE[dtype])


@compiler
@given(rows=st.integers(0, 4), heads=st.integers(1, 4), groups=st.integers(1, 3), half=st.integers(1, 20), dtype=DTYPES)
@settings(max_examples=30, deadline=None)
def test_the_engines_rotary_embedding_computes_the_same(engine, rows, heads, groups, half, dtype):
    plain, native = engine["rotary"]
    q, k = torch.randn(rows, heads, 2 * half).to(dtype), torch.randn(rows, groups, 2 * half).to(dtype)
    angles = torch.randn(rows, 2 * half)
    given = q, k, angles.cos().to(dtype), angles.sin().to(dtype)
    assert native.Implementation._usual(*given)
    for got, wanted in zip(native.Implementation(None)(*given), plain.Implementation(None)(*given), strict=True):
        torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])


@compiler
def test_views_of_a_joined_projection_and_several_threads_compute_the_same(engine):
    plain, native = engine["rotary"]
    q, k, _ = torch.randn(300, 9 * 64 + 3 * 64 + 3 * 64).split((576, 192, 192), dim=-1)
    q, k = q.view(-1, 9, 64), k.view(-1, 3, 64)
    angles = torch.randn(300, 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = native.Implementation(None)(q, k, angles.cos(), angles.sin())
        normed = engine["norm"][1].Implementation(eps(1e-5), weight=torch.ones(576))(q.flatten(1))
    finally:
        torch.set_num_threads(threads)
    for got, wanted in zip(found, plain.Implementation(None)(q, k, angles.cos(), angles.sin()), strict=True):
        torch.testing.assert_close(got, wanted, **TOLERANCE[torch.float32])
    wanted = engine["norm"][0].Implementation(eps(1e-5), weight=torch.ones(576))(q.flatten(1))
    torch.testing.assert_close(normed, wanted, **TOLERANCE[torch.float32])


@compiler
def test_what_the_kernels_do_not_serve_takes_the_plain_way(engine):
    plain, native = engine["norm"]
    weight, x = torch.randn(6, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    one, two = plain.Implementation(eps(1e-5), weight=weight), native.Implementation(eps(1e-5), weight=weight)
    assert torch.equal(two(x), one(x))
    narrow = native.Implementation(eps(1e-5), weight=weight.float())
    strided = torch.randn(4, 12)[:, ::2]
    torch.testing.assert_close(narrow(strided), plain.Implementation(eps(1e-5), weight=weight.float())(strided))


@compiler
def test_other_modules_compute_the_same(tmp_path):
    cases = {"scaled": ("rms_norm", OWN_NORM, NORM), "turn": ("rotary_embedding", OWN_ROTARY, OWN_ROTARY_TENSORS)}
    found = generate(tmp_path, cases)
    plain, native = found["scaled"]
    gain, x = torch.randn(9), torch.randn(4, 9)
    torch.testing.assert_close(native.Scaled(1e-3, gain).forward(x), plain.Scaled(1e-3, gain).forward(x))
    plain, native = found["turn"]
    angles, keys, queries = torch.randn(3, 8), torch.randn(3, 2, 8), torch.randn(3, 5, 8)
    given = angles.sin(), angles.cos(), keys, queries
    for got, wanted in zip(native.Turn().forward(*given), plain.Turn().forward(*given), strict=True):
        torch.testing.assert_close(got, wanted)


def test_without_a_compiler_there_are_no_kernels(tmp_path, monkeypatch):
    plain, native = generate(tmp_path, {"norm": ("rms_norm", plain_operator("rms_norm")[1], NORM)})["norm"]
    shared = sys.modules[native.kernels.__module__]
    monkeypatch.setattr(shared, "_compiler", lambda: None)
    weight, x = torch.randn(6), torch.randn(3, 6)
    two = native.Implementation(eps(1e-5), weight=weight)
    assert two.kernel is None
    assert torch.equal(two(x), plain.Implementation(eps(1e-5), weight=weight)(x))


def declined(role, text, tensors, files=None):
    sources = {"ops/__init__.py": "", "ops/a/__init__.py": "", "ops/a/plain.py": text} if files is None else files
    found = transfer(library(), NAME, sources, (operator("a", role, tensors, [{"N": 1}], "ops/a/plain.py"),))
    assert not found.sites
    return found.declined[0].reason


@pytest.mark.parametrize(
    ("role", "text", "tensors", "reason"),
    [
        ("rms_norm", OWN_NORM, NORM[1:], "one weight [K]"),
        ("rms_norm", OWN_NORM.replace("small_eps", "tiny"), NORM, "where the selected implementation keeps its"),
        ("rms_norm", OWN_NORM.replace("* self.gain", "* (1 + self.gain)"), NORM, "adds something to its weight"),
        ("rms_norm", "def norm(x):\n    return x\n", NORM, "no class in ops/a/plain.py"),
        ("rotary_embedding", OWN_ROTARY, [*OWN_ROTARY_TENSORS[:5]], "its results are not the two rotated tensors"),
        ("rotary_embedding", OWN_ROTARY, [("a", ("n", "d"), "compute", "runtime"), *OWN_ROTARY_TENSORS[1:]],
         "cos and sin"),
        ("rotary_embedding", re.sub(r"torch.cat.*", "torch.stack((-x[..., 1::2], x[..., ::2]))", OWN_ROTARY),
         OWN_ROTARY_TENSORS, "does not rotate the halves"),
        ("rotary_embedding", OWN_ROTARY, [(*t[:3], "inout") if t[0] == "keys" else t for t in OWN_ROTARY_TENSORS],
         "writes into its arguments"),
    ],
)  # fmt: skip
def test_it_declines_with_the_reason(role, text, tensors, reason):
    assert reason in declined(role, text, tensors)


def test_it_needs_a_package_around_the_operators():
    assert "is no package" in declined("rms_norm", OWN_NORM, NORM, {"ops/a/plain.py": OWN_NORM})


def test_other_roles_are_none_of_its_business():
    info = operator("a", "linear", NORM, [{"N": 1}], "ops/a/plain.py")
    found = transfer(library(), NAME, {"ops/a/plain.py": OWN_NORM}, (info,))
    assert found.sites == found.declined == ()


def test_the_generated_files_pass_the_formatter_and_the_linter(tmp_path, engine):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.is_file():
        pytest.skip("no ruff")
    files = [str(native.__file__) for _, native in engine.values()]
    files.append(str(sys.modules[engine["norm"][1].kernels.__module__].__file__))
    for command in (["check"], ["format", "--diff"]):
        options = ["--config", str(ROOT / "pyproject.toml"), *files]
        result = subprocess.run([str(ruff), *command, *options], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
