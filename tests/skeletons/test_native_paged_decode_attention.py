"""The native template: beside the selected implementation, the same result, the plain form where nothing compiles."""

import importlib
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skeletons.transfer import transfer
from tests.skeletons.support import ROOT, library, operator

NAME = "native_paged_decode_attention"
compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

TENSORS = [
    ("q", ("B", "H", "D"), "compute", "runtime"),
    ("k_cache", ("X", "S", "G", "D"), "compute", "runtime"),
    ("v_cache", ("X", "S", "G", "D"), "compute", "runtime"),
    ("block_tables", ("B", "T"), "int32", "runtime"),
    ("context_lens", ("B",), "int32", "runtime"),
    ("out", ("B", "H", "D"), "compute", "output"),
]
DIMS = [{"H": 6, "G": 2, "S": 8, "D": 4}, {"H": 4, "G": 4, "S": 7, "D": 4}]

HEADS_FIRST = '''
"""Another engine's form: heads before tokens in the cache, its own names, a scale of its own, a flat result."""

import torch


class Attend:
    def __init__(self, temperature):
        self.logit_scale = temperature

    def forward(self, lengths, table, query, cached_v, cached_k):
        rows = []
        for row, length in enumerate(lengths.tolist()):
            blocks = table[row].long()
            k = cached_k[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            v = cached_v[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            q = query[row].unflatten(0, (k.shape[0], -1))
            weights = torch.softmax((q.float() @ k.float().mT) * self.logit_scale, dim=-1)
            rows.append((weights @ v.float()).flatten().to(query.dtype))
        return torch.stack(rows)
'''
HEADS_FIRST_TENSORS = [
    ("lengths", ("n",), "int32", "runtime"),
    ("table", ("n", "m"), "int32", "runtime"),
    ("query", ("n", "heads", "size"), "compute", "runtime"),
    ("cached_v", ("blocks", "groups", "tokens", "size"), "compute", "runtime"),
    ("cached_k", ("blocks", "groups", "tokens", "size"), "compute", "runtime"),
    ("result", ("n", "wide"), "compute", "output"),
]
HEADS_FIRST_DIMS = [{"heads": 6, "groups": 2, "tokens": 8}, {"heads": 9, "groups": 3, "tokens": 16}]


def plain_text() -> str:
    """The bundled engine's plain decode attention."""
    texts = [p.read_text() for p in ROOT.glob("target_engine/ops/*/torch.py")]
    return next(t for t in texts if "block_tables" in t and "query_starts" not in t and "context_lens" in t)


_packages = itertools.count()


def generate(folder, text=None, tensors=TENSORS, dims=DIMS, **extra):
    """(plain module, generated module) in a package of their own."""
    package = f"sample_ops_{next(_packages)}"
    path = f"{package}/plain.py"
    info = operator("attend", "paged_decode_attention", tensors, dims, path, **extra)
    found = transfer(library(), NAME, {path: text or plain_text()}, (info,))
    assert found.sites, found.declined
    for name, content in {**found.files, f"{package}/__init__.py": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    sys.path.insert(0, str(folder))
    try:
        chosen = found.launch["operators.attend"]
        return importlib.import_module(f"{package}.plain"), importlib.import_module(f"{package}.{chosen}")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("ops"))


def settings_of(heads, groups, size, block):
    names = {"num_heads": heads, "num_kv_heads": groups, "head_dim": size, "block_size": block}
    return type("Settings", (), names)()


def paged(batch, groups, size, block, lens, dtype, seed):
    """Caches, tables and lengths; blocks in random order; slots without an owner hold a huge value."""
    generator = torch.Generator().manual_seed(seed)
    width = max(-(-n // block) for n in lens) + 1
    order = torch.randperm(batch * width, generator=generator).view(batch, width).int()
    caches = [torch.full((batch * width, block, groups, size), 1e3) for _ in range(2)]
    for row, length in enumerate(lens):
        for position in range(length):
            for cache in caches:
                cache[order[row, position // block], position % block] = torch.randn(groups, size, generator=generator)
    return [c.to(dtype) for c in caches], order, torch.tensor(lens, dtype=torch.int32)


@compiler
@given(
    groups=st.integers(1, 3),
    times=st.integers(1, 4),
    size=st.sampled_from([4, 16, 24]),
    block=st.sampled_from([1, 7, 16]),
    lens=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 9),
)
@settings(max_examples=20, deadline=None)
def test_it_computes_the_same(pair, groups, times, size, block, lens, dtype, seed):
    plain, native = pair
    caches, tables, lengths = paged(len(lens), groups, size, block, lens, dtype, seed)
    q = torch.randn(len(lens), groups * times, size).to(dtype)
    config = settings_of(groups * times, groups, size, block)
    got = native.Implementation(config)(q, *caches, tables, lengths)
    wanted = plain.Implementation(config)(q, *caches, tables, lengths)
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(got, wanted, **tolerance)
    assert native._kernel(size, times, block, dtype == torch.bfloat16) is not None, "the plain form answered"


@compiler
def test_a_strided_query_large_scores_and_several_threads_compute_the_same(pair):
    plain, native = pair
    caches, tables, lengths = paged(5, 3, 64, 16, [300, 1, 17, 200, 64], torch.float32, 0)
    q = 20 * torch.randn(5, 18, 64)[:, ::2]
    config = settings_of(9, 3, 64, 16)
    wanted = plain.Implementation(config)(q, *caches, tables, lengths)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = native.Implementation(config)(q, *caches, tables, lengths)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@compiler
def test_what_is_not_a_number_shows_in_its_own_row_only(pair):
    _, native = pair
    caches, tables, lengths = paged(2, 1, 16, 8, [9, 9], torch.float32, 1)
    q = torch.randn(2, 2, 16)
    q[1, 0, 3] = float("nan")
    out = native.Implementation(settings_of(2, 1, 16, 8))(q, *caches, tables, lengths)
    assert out.isnan().any(dim=-1).tolist() == [[False, False], [True, False]]


def test_without_a_compiler_the_plain_form_answers(pair, monkeypatch):
    plain, native = pair
    monkeypatch.setattr(native, "_compiler", lambda: None)
    caches, tables, lengths = paged(2, 1, 12, 3, [4, 5], torch.float32, 2)
    q, config = torch.randn(2, 5, 12), settings_of(5, 1, 12, 3)
    got = native.Implementation(config)(q, *caches, tables, lengths)
    assert torch.equal(got, plain.Implementation(config)(q, *caches, tables, lengths))


def test_a_compiler_that_fails_is_no_compiler(pair, monkeypatch):
    _plain, native = pair
    monkeypatch.setattr(native, "_compiler", lambda: shutil.which("false"))
    assert native._kernel(12, 7, 3, False) is None


@compiler
def test_types_it_does_not_serve_take_the_plain_way(pair):
    plain, native = pair
    caches, tables, lengths = paged(2, 1, 16, 8, [9, 3], torch.float64, 1)
    q, config = torch.randn(2, 2, 16, dtype=torch.float64), settings_of(2, 1, 16, 8)
    got = native.Implementation(config)(q, *caches, tables, lengths)
    torch.testing.assert_close(got, plain.Implementation(config)(q, *caches, tables, lengths))


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_engines_form_computes_the_same(tmp_path, dtype):
    plain, native = generate(tmp_path, HEADS_FIRST, HEADS_FIRST_TENSORS, HEADS_FIRST_DIMS)
    caches, tables, lengths = paged(3, 2, 8, 8, [5, 20, 8], dtype, 3)
    keys, values = (cache.transpose(1, 2).contiguous() for cache in caches)
    q = torch.randn(3, 6, 8).to(dtype)
    one, two = plain.Attend(0.7), native.Attend(0.7)
    got = two.forward(lengths, tables, q, values, keys)
    assert got.shape == (3, 48)
    torch.testing.assert_close(got, one.forward(lengths, tables, q, values, keys), atol=2e-2, rtol=2e-2)


def declined(text=None, tensors=TENSORS, dims=DIMS, path="plain.py", sources=None, **extra):
    info = operator("attend", "paged_decode_attention", tensors, dims, path, **extra)
    found = transfer(library(), NAME, {path: text or plain_text()} if sources is None else sources, (info,))
    assert not found.sites
    return found.declined[0].reason


def changed(index, **values):
    name, shape, dtype, kind = TENSORS[index]
    new = {"name": name, "shape": shape, "dtype": dtype, "kind": kind} | values
    return [*TENSORS[:index], tuple(new.values()), *TENSORS[index + 1 :]]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"tensors": changed(1, kind="inout")}, "writes into its arguments"),
        ({"tensors": changed(4, kind="constant")}, "has constants"),
        ({"tensors": changed(3, dtype="int64")}, "not int32"),
        ({"tensors": changed(2, shape=("X", "D", "G", "S"))}, "different layouts"),
        ({"tensors": changed(0, shape=("B", "H", "E"))}, "not the head size"),
        ({"tensors": changed(5, shape=("B", "H", "D", "1"))}, "not one tensor in the shape of the query"),
        ({"tensors": [*TENSORS, ("bias", ("B",), "compute", "runtime")]}, "takes the operator's 6 tensors"),
        ({"dims": [{"H": 8, "G": 2, "S": 8, "D": 4}]}, "which axis of the cache counts heads"),
        ({"text": "import ctypes\n" + plain_text()}, "native already"),
        ({"text": "def attend(q):\n    return q\n"}, "no class in plain.py has a call"),
        ({"sources": {}}, "not among the editable sources"),
    ],
)
def test_it_declines_with_the_reason(case, reason):
    assert reason in declined(**case)


def test_operators_of_another_role_are_none_of_its_business():
    info = operator("attend", "paged_prefill_attention", TENSORS, DIMS, "plain.py")
    found = transfer(library(), NAME, {"plain.py": plain_text()}, (info,))
    assert found.sites == found.declined == ()


def test_the_file_gets_a_name_that_is_free(tmp_path):
    path = "pkg/plain.py"
    info = operator("attend", "paged_decode_attention", TENSORS, DIMS, path, implementations=("plain", "compiled"))
    found = transfer(library(), NAME, {path: plain_text()}, (info,))
    assert found.launch == {"operators.attend": "compiled_2"}
    assert set(found.files) == {path, "pkg/compiled_2.py"}
    assert found.files[path] == plain_text()


def test_the_generated_file_passes_the_formatter_and_the_linter(tmp_path):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.is_file():
        pytest.skip("no ruff")
    _, native = generate(tmp_path)
    for command in (["check"], ["format", "--diff"]):
        options = ["--config", str(ROOT / "pyproject.toml"), str(native.__file__)]
        result = subprocess.run([str(ruff), *command, *options], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
