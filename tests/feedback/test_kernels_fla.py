"""A third party's kernels: fla-core's own context-parallel merge, and its whole forward pass for Hopper."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from feedback.evidence import EvidenceStore
from feedback.kernels import byhand
from feedback.verdict import Status, Verdict

pytest.importorskip("triton")
if importlib.util.find_spec("fla") is None:
    pytest.skip("needs the extra fla", allow_module_level=True)

pytestmark = pytest.mark.slow

REFERENCE = '''
import numpy as np


def merged(ag_hm, h, num_ranks):
    """State after all ranks, [HV, K, V], from their [h_local | M], [ranks, HV, K, V + K]."""
    state = np.zeros_like(h)
    values = h.shape[-1]
    for summary in ag_hm[:num_ranks]:
        state = summary[..., values:] @ state + summary[..., :values]
    return {"h": state}


def summaries(seed, ranks, tokens, decay, heads, keys, values):
    """What runs of tokens of the delta rule do to a state: with gates near 1 nothing of it fades."""
    rng = np.random.default_rng(seed)
    found = np.zeros((ranks, heads, keys, values + keys))
    for summary in found.reshape(-1, keys, values + keys):
        state, m = np.zeros((keys, values)), np.eye(keys)
        for _ in range(tokens):
            key = rng.standard_normal(keys)
            key /= np.linalg.norm(key)
            gate, beta = np.exp(-decay * rng.exponential(1.0, keys)), rng.random()
            step = (np.eye(keys) - beta * np.outer(key, key)) * gate
            state = step @ state + beta * np.outer(key, rng.standard_normal(values))
            m = step @ m
        summary[:] = np.concatenate([state, m], axis=1)
    return {"ag_hm": found}


def kda(q, k, v, g, beta):
    """Kimi Delta Attention token by token, [B, T, H, ...]."""
    tokens, heads, keys = q.shape[1:]
    state, out = np.zeros((heads, keys, v.shape[-1])), np.zeros_like(v)
    for t in range(tokens):
        state = np.exp(g[0, t])[:, :, None] * state
        held = np.einsum("hkv,hk->hv", state, k[0, t])
        state = state + k[0, t][:, :, None] * (beta[0, t][:, None] * (v[0, t] - held))[:, None, :]
        out[0, t] = np.einsum("hkv,hk->hv", state, q[0, t]) / np.sqrt(keys)
    return {"o": out, "final_state": state[None]}
'''

MERGE = """
reference = "reference.py::merged"
devices = ["cuda:90", "hip:gfx942"]
pretend = "cuda:90"

[defaults]
bound = 5e-6
outputs = ["h"]
grid = ["cdiv(V, BV)", "HV"]
generate = "reference.py::summaries"
meta = { HV = 2, K = 32, V = 32, BK = 32, FORWARD = true, IS_INTRACARD = false, N = 0 }
none = ["seq_offsets", "init_offsets", "h0_seq_ids", "h0", "h_seq_idx"]

[defaults.parameters]
ranks = 24
tokens = 8
heads = 2
keys = 32
values = 32

[defaults.arguments]
num_ranks = 24
rank = 24
h = { shape = [2, 32, 32] }

[[case]]
name = "strong-decay"
bound = 1e-3
parameters = { decay = 3.0 }

[[case]]
name = "weak-decay"
parameters = { decay = 0.002 }
"""

FORWARD = """
reference = "reference.py::kda"
devices = ["cuda:90"]
pretend = "cuda:90"

[[case]]
name = "two-chunks"
bound = 1e-2
returns = ["o", "final_state"]
arguments.q = { shape = [1, 128, 1, 32], distribution = "unit_rows" }
arguments.k = { shape = [1, 128, 1, 32], distribution = "unit_rows" }
arguments.v = { shape = [1, 128, 1, 32], distribution = "normal" }
arguments.g = { shape = [1, 128, 1, 32], distribution = "weak_decay", scale = 50.0 }
arguments.beta = { shape = [1, 128, 1], distribution = "uniform" }
arguments.output_final_state = true
"""


def ask(folder: Path, subject: Path, name: str, cases: str) -> Verdict:
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "cases.toml").write_text(cases)
    return byhand.ask(f"{subject}::{name}", folder / "cases.toml", EvidenceStore(folder / "evidence"))


def installed(module: str) -> Path:
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / module


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_the_context_parallel_merge_needs_three_products_under_weak_decay(tmp_path, precision):
    text = installed("ops/cp/chunk_merge.py").read_text()
    chosen = "CP_DOT_PRECISION = tl.constexpr('ieee' if IS_NPU else 'tf32x3')"
    assert chosen in text
    copy = tmp_path / "chunk_merge.py"
    copy.write_text(text.replace(chosen, f"CP_DOT_PRECISION = tl.constexpr({precision!r})"))
    verdict = ask(tmp_path, copy, "chunk_cp_fwd_bwd_kernel_merge", MERGE)
    if precision == "tf32x3":
        assert verdict.status is Status.CONFIRMED, verdict.line()
        assert verdict.metrics["cuda:90_registers"] > 0
        assert "does not compile for hip:gfx942" in verdict.observed
        return
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "in weak-decay" in verdict.observed
    assert "1 of 2 cases wrong" in verdict.observed
    assert "precision, not logic; tf32 in one product" in verdict.observed
    (place,) = verdict.at
    assert place.file == str(copy)
    assert "b_h = tl.dot(b_m, b_h.to(tl.float32)" in copy.read_text().splitlines()[(place.line or 0) - 1]


def test_the_forward_pass_gives_values_and_a_report_for_hopper(tmp_path):
    verdict = ask(tmp_path, installed("ops/kda/chunk.py"), "chunk_kda", FORWARD)
    assert verdict.status is Status.CONFIRMED, verdict.line()
    finding = json.loads((tmp_path / "evidence" / str(verdict.evidence) / "finding.json").read_text())
    kernels = [report["kernel"] for report in finding["compiled"]]
    assert "chunk_kda_fwd_kernel_inter_solve_fused" in kernels
    assert len(kernels) >= 6
    assert all(report["problem"] == "" and report["registers"] > 0 for report in finding["compiled"])
    precisions = {site[3] for site in finding["cases"][0]["seen"]["dots"]}
    assert precisions == {"tf32"}  # what it chooses on Hopper, not `ieee` as on an unknown device
