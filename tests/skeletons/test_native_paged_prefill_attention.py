"""The native template for runs of new tokens: the same result as the plain form, for any runs, contexts and layouts."""

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

NAME = "native_paged_prefill_attention"
ROLE = "paged_prefill_attention"
compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

TENSORS = [
    ("q", ("N", "H", "D"), "compute", "runtime"),
    ("k_cache", ("X", "S", "G", "D"), "compute", "runtime"),
    ("v_cache", ("X", "S", "G", "D"), "compute", "runtime"),
    ("block_tables", ("B", "T"), "int32", "runtime"),
    ("query_starts", ("B+1",), "int32", "runtime"),
    ("context_lens", ("B",), "int32", "runtime"),
    ("out", ("N", "H", "D"), "compute", "output"),
]
DIMS = [{"H": 6, "G": 2, "S": 8, "D": 4}, {"H": 4, "G": 4, "S": 7, "D": 4}]

HEADS_FIRST = '''
"""Another engine's form: own names and order, heads before tokens in the cache, own scale, a flat result."""

import torch


class Attend:
    def __init__(self, temperature):
        self.logit_scale = temperature

    def forward(self, table, cached_v, cached_k, bounds, lengths, computed_queries):
        out = []
        for row, length in enumerate(lengths.tolist()):
            first, last = bounds[row], bounds[row + 1]
            k = cached_k[table[row].long()].transpose(0, 1).flatten(1, 2)[:, :length].float()
            v = cached_v[table[row].long()].transpose(0, 1).flatten(1, 2)[:, :length].float()
            q = computed_queries[first:last].float().unflatten(1, (k.shape[0], -1)).permute(1, 2, 0, 3)
            scores = torch.einsum("hgnd,htd->hgnt", q, k) * self.logit_scale
            hidden = torch.arange(length) > torch.arange(length - (last - first), length)[:, None]
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out.append(torch.einsum("hgnt,htd->nhgd", weights, v).flatten(1))
        return torch.cat(out).to(computed_queries.dtype)
'''
HEADS_FIRST_TENSORS = [
    ("table", ("n", "m"), "int32", "runtime"),
    ("cached_v", ("blocks", "groups", "tokens", "size"), "compute", "runtime"),
    ("cached_k", ("blocks", "groups", "tokens", "size"), "compute", "runtime"),
    ("bounds", ("n+1",), "int32", "runtime"),
    ("lengths", ("n",), "int32", "runtime"),
    ("queries", ("new", "heads", "size"), "compute", "runtime"),
    ("result", ("new", "wide"), "compute", "output"),
]
HEADS_FIRST_DIMS = [{"heads": 6, "groups": 2, "tokens": 8}, {"heads": 9, "groups": 3, "tokens": 16}]

_packages = itertools.count()


def plain_text() -> str:
    """The bundled engine's plain prefill attention."""
    return next(t for p in ROOT.glob("target_engine/ops/*/torch.py") if "query_starts" in (t := p.read_text()))


def generate(folder, text, tensors=TENSORS, dims=DIMS):
    """(plain module, generated module) in a package of their own."""
    package = f"sample_prefill_{next(_packages)}"
    path = f"{package}/plain.py"
    found = transfer(library(), NAME, {path: text}, (operator("attend", ROLE, tensors, dims, path),))
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
    return generate(tmp_path_factory.mktemp("ops"), plain_text())


def settings_of(heads, groups, size, block):
    names = {"num_heads": heads, "num_kv_heads": groups, "head_dim": size, "block_size": block}
    return type("Settings", (), names)()


def inputs(runs, heads, groups, size, block, dtype, seed):
    """q, caches, tables, starts and lengths for `runs` of (new tokens, tokens before them)."""
    generator = torch.Generator().manual_seed(seed)
    lens = [new + before for new, before in runs]
    width = max(-(-n // block) for n in lens) + 1
    order = torch.randperm(len(runs) * width, generator=generator).view(len(runs), width).int()
    caches = [torch.full((len(runs) * width, block, groups, size), 1e3) for _ in range(2)]
    for row, length in enumerate(lens):
        for position in range(length):
            for cache in caches:
                cache[order[row, position // block], position % block] = torch.randn(groups, size, generator=generator)
    starts = torch.tensor([0, *itertools.accumulate(new for new, _ in runs)], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), heads, size, generator=generator)
    caches = [c.to(dtype) for c in caches]
    return q.to(dtype), *caches, order, starts, torch.tensor(lens, dtype=torch.int32)


@compiler
@given(
    runs=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=3),
    groups=st.integers(1, 2),
    times=st.sampled_from([1, 3]),
    size=st.sampled_from([4, 24, 80]),
    block=st.sampled_from([7, 16]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 9),
)
@settings(max_examples=15, deadline=None)
def test_it_computes_the_same(pair, runs, groups, times, size, block, dtype, seed):
    plain, native = pair
    given = inputs(runs, groups * times, groups, size, block, dtype, seed)
    config = settings_of(groups * times, groups, size, block)
    got, wanted = native.Implementation(config)(*given), plain.Implementation(config)(*given)
    tolerance = {"atol": 3e-2, "rtol": 3e-2} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(got, wanted, **tolerance)
    assert native._kernel(size, times, block, dtype == torch.bfloat16) is not None, "the plain form answered"


@compiler
def test_large_scores_a_strided_query_and_several_threads_compute_the_same(pair):
    plain, native = pair
    q, *rest = inputs([(70, 100), (33, 0), (1, 260)], 9, 3, 64, 16, torch.float32, 0)
    q = torch.stack((20 * q, q), dim=1)[:, 0]
    config = settings_of(9, 3, 64, 16)
    wanted = plain.Implementation(config)(q, *rest)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = native.Implementation(config)(q, *rest)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@compiler
def test_a_token_sees_nothing_that_comes_after_it(pair):
    _, native = pair
    q, k, v, tables, starts, lens = inputs([(20, 0)], 2, 1, 16, 8, torch.float32, 4)
    attend = native.Implementation(settings_of(2, 1, 16, 8))
    before = attend(q, k, v, tables, starts, lens)
    k[tables[0, 1], 4:] = v[tables[0, 1], 4:] = 99.0  # positions 12 to 15
    after = attend(q, k, v, tables, starts, lens)
    assert torch.equal(before[:12], after[:12])
    assert not torch.equal(before[12:], after[12:])


@compiler
def test_what_is_not_a_number_shows_in_its_own_row_only(pair):
    _, native = pair
    q, *rest = inputs([(9, 3)], 2, 1, 16, 8, torch.float32, 1)
    q[5, 1, 3] = float("nan")
    out = native.Implementation(settings_of(2, 1, 16, 8))(q, *rest)
    assert out.isnan().any(dim=-1).nonzero().tolist() == [[5, 1]]


def test_without_a_compiler_the_plain_form_answers(pair, monkeypatch):
    plain, native = pair
    monkeypatch.setattr(native, "_compiler", lambda: None)
    given, config = inputs([(4, 1)], 5, 1, 12, 3, torch.float32, 2), settings_of(5, 1, 12, 3)
    assert torch.equal(native.Implementation(config)(*given), plain.Implementation(config)(*given))


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_engines_form_computes_the_same(tmp_path, dtype):
    plain, native = generate(tmp_path, HEADS_FIRST, HEADS_FIRST_TENSORS, HEADS_FIRST_DIMS)
    q, k, v, tables, starts, lens = inputs([(5, 11), (18, 0), (1, 3)], 6, 2, 8, 8, dtype, 3)
    keys, values = (cache.transpose(1, 2).contiguous() for cache in (k, v))
    one, two = plain.Attend(0.7), native.Attend(0.7)
    got = two.forward(tables, values, keys, starts, lens, q)
    assert got.shape == (24, 48)
    torch.testing.assert_close(got, one.forward(tables, values, keys, starts, lens, q), atol=2e-2, rtol=2e-2)


def changed(index, **values):
    name, shape, dtype, kind = TENSORS[index]
    new = {"name": name, "shape": shape, "dtype": dtype, "kind": kind} | values
    return [*TENSORS[:index], tuple(new.values()), *TENSORS[index + 1 :]]


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (changed(4, dtype="int64"), "not int32"),
        (changed(4, shape=("B",)), "which vector holds the lengths"),
        ([*TENSORS[:4], *TENSORS[5:]], "starts of runs and lengths"),
        (changed(6, shape=("N", "H", "D", "1")), "not one tensor in the shape of the query"),
    ],
)
def test_it_declines_with_the_reason(tensors, reason):
    text = plain_text() if len(tensors) == len(TENSORS) else plain_text().replace("        query_starts: Tensor,\n", "")
    info = operator("attend", ROLE, tensors, DIMS, "plain.py")
    found = transfer(library(), NAME, {"plain.py": text}, (info,))
    assert not found.sites
    assert reason in found.declined[0].reason


def test_the_generated_file_passes_the_formatter_and_the_linter(tmp_path):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.is_file():
        pytest.skip("no ruff")
    _, native = generate(tmp_path, plain_text())
    for command in (["check"], ["format", "--diff"]):
        options = ["--config", str(ROOT / "pyproject.toml"), str(native.__file__)]
        result = subprocess.run([str(ruff), *command, *options], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
