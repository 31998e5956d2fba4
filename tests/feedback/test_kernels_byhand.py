"""`probe kernel FILE::kernel --case CASES`: precision told from logic, the line named, compilation as a fact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feedback.evidence import EvidenceStore
from feedback.kernels import byhand, golden
from feedback.verdict import Confidence, Status, Verdict
from feedback.workers.pool import WorkerPool
from infra_agent.cli import main

pytest.importorskip("triton")

SAMPLES = Path(__file__).with_name("kernel_samples.py")
REFERENCE = '''
import numpy as np


def chain(m, s):
    assert m.dtype == s.dtype == np.float64
    state = np.zeros_like(s[0])
    for step, added in zip(m, s):
        state = step @ state + added
    return state


def inputs(seed, steps, decay, n):
    """Transitions of the delta rule, whose gates are exp(-decay * something)."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((steps, n))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    gates = np.exp(-decay * rng.exponential(1.0, (steps, n)))
    m = [np.diag(gate) @ (np.eye(n) - 0.5 * np.outer(key, key)) for gate, key in zip(gates, keys)]
    return {"m": np.stack(m), "s": 0.1 * rng.standard_normal((steps, n, n))}


def mixed(x, y):
    return {"out": np.where(x > y, x * y + x, x - y)}


def wrong(x):
    raise RuntimeError("no such thing")
'''
CHAIN = """
reference = "reference.py::chain"
devices = []

[defaults]
bound = 2e-6
outputs = ["out"]
grid = [1]
meta = { N = 16 }
generate = "reference.py::inputs"
parameters = { steps = 24, n = 16 }

[defaults.arguments]
steps = 24
out = { shape = [16, 16] }

[[case]]
name = "weak-decay"
parameters = { decay = 0.002 }
"""


Ask = Callable[..., Verdict]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One warm parent for all that is asked here."""
    with byhand.kernel_pool() as workers:
        yield workers


@pytest.fixture
def asked(pool: WorkerPool, tmp_path: Path) -> Ask:
    """Asks about a kernel of `kernels.py`, the samples unless it was written."""

    def ask(kernel: str, cases: str, reference: str = REFERENCE) -> Verdict:
        for name, text in (("reference.py", reference), ("cases.toml", cases)):
            (tmp_path / name).write_text(text)
        place = tmp_path / "kernels.py"
        if not place.exists():
            place.write_text(SAMPLES.read_text())
        store = EvidenceStore(tmp_path / "evidence")
        return byhand.ask(f"{place}::{kernel}", tmp_path / "cases.toml", store, pool=pool)

    return ask


def edited(folder: Path, *changes: tuple[str, str]) -> None:
    text = SAMPLES.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "kernels.py").write_text(text)


ROUGH = "state = tl.dot(tl.load(m + at + place), state)"
FINE = 'state = tl.dot(tl.load(m + at + place), state, input_precision="tf32x3")'


def test_the_product_that_loses_the_digits_is_named(asked, tmp_path):
    verdict = asked("chain", CHAIN)
    assert verdict.status is Status.REFUTED, verdict.line()
    assert "vanishes with exact products: precision, not logic; tf32 in one product" in verdict.observed
    (place,) = verdict.at
    assert place.file == str(tmp_path / "kernels.py")
    assert ROUGH in SAMPLES.read_text().splitlines()[(place.line or 0) - 1]
    assert place.condition == "weak-decay"
    assert verdict.confidence is Confidence.HEURISTIC
    assert verdict.gaps[0] == golden.NOT_RECORDED
    assert any("tensor core's own sums" in gap for gap in verdict.gaps)


def test_with_three_products_it_holds_under_both_roundings(asked, tmp_path):
    edited(tmp_path, (ROUGH, FINE))
    verdict = asked("chain", CHAIN.replace("devices = []", 'devices = ["cuda:90", "hip:gfx942"]'))
    assert verdict.status is Status.CONFIRMED, verdict.line()
    assert verdict.metrics["worst_error_ratio"] < 1.0
    assert verdict.metrics["cuda:90_registers"] > 0
    assert "does not compile for hip:gfx942" in verdict.observed
    finding = json.loads((tmp_path / "evidence" / str(verdict.evidence) / "finding.json").read_text())
    (fact,) = finding["applicability"]
    assert (fact["kernel"], fact["device"]) == ("chain", "hip:gfx942")
    assert [outcome["mode"] for outcome in finding["cases"][0]["outcomes"]] == ["truncation", "rounding"]


def test_where_it_must_compile_not_compiling_refutes(asked, tmp_path):
    edited(tmp_path, (ROUGH, FINE))
    devices = 'devices = ["hip:gfx942", "cuda:80"]\nmust_compile = ["hip:gfx942"]'
    verdict = asked("chain", CHAIN.replace("devices = []", devices))
    assert verdict.status is Status.REFUTED
    assert "chain does not compile for hip:gfx942" in verdict.observed


def test_only_weak_decay_shows_the_loss(asked):
    strong = '\n[[case]]\nname = "strong-decay"\nparameters = { decay = 12.0 }\n'
    verdict = asked("chain", CHAIN.replace("2e-6", "5e-4").replace("[[case]]", strong + "\n[[case]]"))
    assert verdict.status is Status.REFUTED
    assert "in weak-decay" in verdict.observed
    assert "1 of 2 cases wrong" in verdict.observed


def test_a_mistake_of_logic_is_no_matter_of_precision(asked, tmp_path):
    edited(tmp_path, (ROUGH, FINE), ("for step in range(steps):", "for step in range(steps - 1):"))
    verdict = asked("chain", CHAIN)
    assert verdict.status is Status.REFUTED
    assert "wrong with exact products too: logic, not precision" in verdict.observed


MIXED = """
reference = "reference.py::mixed"
devices = []

[[case]]
name = "bfloat16"
bound = 4e-3
outputs = ["out"]
grid = [1]
meta = { N = 64 }
arguments.x = { shape = [64], dtype = "bfloat16", distribution = "normal" }
arguments.y = { shape = [64], dtype = "bfloat16", distribution = "normal" }
arguments.out = { shape = [64], dtype = "bfloat16" }
arguments.flags = { shape = [64], dtype = "int32" }
"""


def test_bfloat16_arithmetic_is_rounded_to_nearest(asked):
    verdict = asked("mixed", MIXED)
    assert verdict.status is Status.CONFIRMED, verdict.line()


def test_what_is_never_written_is_seen(asked, tmp_path):
    verdict = asked("mixed", MIXED.replace("arguments.out = { shape = [64]", "arguments.out = { shape = [70]"))
    assert verdict.status is Status.REFUTED
    assert "out has shape [70], expected [64]" in verdict.observed
    edited(tmp_path, ("tl.store(out + place, tl.where(bigger", "tl.store(out + place // 2, tl.where(bigger"))
    verdict = asked("mixed", MIXED)
    assert verdict.status is Status.REFUTED
    assert "32 NaN" in verdict.observed


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (
            ("a, b = tl.load(x + place), tl.load(y + place)", "a, b = tl.load(z + place), 1"),
            Status.REFUTED,
            "NameError",
        ),
        (
            ("a, b = tl.load(x + place), tl.load(y + place)", "a = b = 1"),
            Status.REFUTED,
            "Multiple assignments",
        ),
        (("bigger = a > b", "bigger = tl.sum(a) > tl.sum(b)"), Status.UNSUPPORTED, "a reduction or scan of bf16"),
        (("import triton.language as tl", "import triton.language as tl\nimport no_such"), Status.REFUTED, "no_such"),
    ],
)
def test_whatever_a_kernel_does_is_a_verdict(asked, tmp_path, change, status, says):
    edited(tmp_path, change)
    verdict = asked("mixed", MIXED)
    assert verdict.status is status, verdict.line()
    assert says in verdict.observed


def test_a_reference_that_fails_says_nothing_about_the_kernel(asked):
    verdict = asked("mixed", MIXED.replace("reference.py::mixed", "reference.py::wrong"))
    assert verdict.status is Status.INVALID
    assert "reference.py::wrong failed" in verdict.observed
    assert "no such thing" in verdict.observed


def test_the_kernel_sees_neither_the_reference_nor_what_is_expected(asked, tmp_path):
    reading = f"""
import os
from pathlib import Path

import triton
import triton.language as tl

SEEN = []
for place in ({str(tmp_path / "reference.py")!r}, {str(tmp_path / "cases.toml")!r}):
    try:
        SEEN.append(Path(place).read_text())
    except OSError:
        pass
for folder, _, files in os.walk(Path(__file__).parents[1]):
    SEEN += [name for name in files if name == "reference.py"]


def mixed(x, y, out, flags, N):
    assert not SEEN, SEEN
    out.copy_((x > y) * (x * y + x) + (x <= y) * (x - y))
"""
    (tmp_path / "kernels.py").write_text(reading)
    verdict = asked("mixed", MIXED)
    # It launches nothing, so nothing is said of a kernel; but it got as far as a right result, past its own assertion.
    assert verdict.status is Status.UNSUPPORTED, verdict.line()
    assert verdict.metrics["worst_error_ratio"] < 1


def test_a_function_is_called_and_what_it_returns_is_compared(asked, tmp_path):
    text = SAMPLES.read_text() + (
        "\n\ndef run(x, y):\n    out, flags = x.new_empty(64), x.new_empty(64)\n"
        "    mixed[(1,)](x, y, out, flags, N=64)\n    return out, flags\n"
    )
    (tmp_path / "kernels.py").write_text(text)
    cases = MIXED.replace('outputs = ["out"]\ngrid = [1]\nmeta = { N = 64 }', 'returns = ["out", "flags"]')
    cases = "\n".join(line for line in cases.splitlines() if not line.startswith(("arguments.out", "arguments.flags")))
    reference = REFERENCE.replace('return {"out":', 'return {"flags": np.where(x > y, 1.0, 0.0), "out":')
    verdict = asked("run", cases, reference)
    assert verdict.status is Status.CONFIRMED, verdict.line()


def test_from_the_command_line(tmp_path, capsys, private_home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "cases.toml").write_text(CHAIN)
    edited(tmp_path, (ROUGH, ROUGH))
    assert main(["probe", "kernel", "kernels.py::chain", "--case", "cases.toml"]) == 1
    line = capsys.readouterr().out.strip()
    assert line.startswith("refuted [kernels] chain: out off by")
    assert " | at kernels.py:" in line
    assert "\n" not in line
    edited(tmp_path, (ROUGH, FINE))
    assert main(["probe", "kernel", "kernels.py::chain", "--case", "cases.toml", "--json"]) == 0
    verdict = Verdict.parse(capsys.readouterr().out)
    assert EvidenceStore(private_home / "probes").verify(str(verdict.evidence)) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["kernel"], "probe kernel FILE::kernel --case CASES"),
        (["kernel", "kernels.py::chain"], "probe kernel FILE::kernel --case CASES"),
        (["static", "--case", "cases.toml"], "probe kernel FILE::kernel --case CASES"),
        (["kernel", "kernels.py", "--case", "cases.toml"], "write it as file.py::name"),
        (["kernel", "nothing.py::chain", "--case", "cases.toml"], "there is no Python file"),
        (["kernel", "kernels.py::chain", "--case", "none.toml"], "cannot read none.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.toml").write_text(CHAIN)
    edited(tmp_path)
    assert main(["probe", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_kernel_of_a_package_is_tried_where_it_stands(tmp_path, pool, trusted_root):
    """The engine's own merge, as a person would ask about it."""
    reference = "import numpy as np\n\n\ndef merged(s_ext, m, s_0):\n    states = [s_0]\n"
    reference += "    for step, added in zip(m, s_ext):\n        states.append(step @ states[-1] + added)\n"
    reference += "    return np.stack(states)\n"
    (tmp_path / "reference.py").write_text(reference)
    (tmp_path / "cases.toml").write_text(
        """
reference = "reference.py::merged"
devices = []

[[case]]
name = "three-ranks"
bound = 2e-6
outputs = ["states"]
grid = ["cdiv(V, BLOCK_V)", "H"]
meta = { H = 2, K = 16, V = 24, BLOCK_K = 16, BLOCK_V = 16 }
arguments.ranks = 3
arguments.s_ext = { shape = [3, 2, 16, 24], distribution = "normal" }
arguments.m = { shape = [3, 2, 16, 16], distribution = "normal", scale = 0.25 }
arguments.s_0 = { shape = [2, 16, 24], distribution = "normal" }
arguments.states = { shape = [4, 2, 16, 24] }
"""
    )
    file = trusted_root / "target_engine" / "ops" / "kda_state_merge" / "triton.py"
    store = EvidenceStore(tmp_path / "evidence")
    verdict = byhand.ask(f"{file}::kda_state_merge_kernel", tmp_path / "cases.toml", store, pool=pool)
    assert verdict.status is Status.CONFIRMED, verdict.line()
