"""What golden micro-kernels did on hardware decides how far a verdict is believed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from feedback.kernels import golden
from feedback.kernels.golden_cases import CASES
from feedback.verdict import Confidence
from infra_agent import doctor
from infra_agent.cli import main


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def record(**agrees: tuple[str, ...]) -> golden.Record:
    modelled = {case.name: ("truncation", "rounding") for case in CASES} | {"tf32": ("truncation",)}
    return golden.Record("NVIDIA Test", "3.9.0", modelled | agrees)


def test_without_a_recording_a_verdict_is_heuristic_and_says_so():
    assert golden.confidence("3.9.0") == (Confidence.HEURISTIC, (golden.NOT_RECORDED,))


def test_a_recording_that_the_model_explains_makes_it_direct():
    golden.keep(record())
    assert golden.recorded("3.9.0") == record()
    assert golden.confidence("3.9.0") == (Confidence.DIRECT, ())
    assert golden.confidence("3.9.1")[0] is Confidence.HEURISTIC
    assert "8 of 8 micro-kernels as modelled, tf32 by truncation" in record().line()


def test_bits_that_no_mode_gives_keep_it_heuristic():
    golden.keep(record(tf32x3=()))
    believed, (gap,) = golden.confidence("3.9.0")
    assert believed is Confidence.HEURISTIC
    assert "NVIDIA Test the bits of tf32x3 were not those of the model" in gap


@pytest.mark.parametrize("text", ["", "[]", "{", '{"3.9.0": 3}', '{"3.9.0": {"device": "x"}}'])
def test_a_damaged_recording_is_none(text):
    golden.path().parent.mkdir(parents=True)
    golden.path().write_text(text)
    assert golden.recorded("3.9.0") is None
    golden.keep(record())
    assert golden.recorded("3.9.0") == record()


def test_agreement_is_bit_for_bit():
    case = CASES[0]
    bits = np.array(case.expected["truncation"], np.uint32)
    assert case.agrees(bits) == ("truncation",)
    bits[3] ^= 1
    assert case.agrees(bits) == ()


def test_without_a_device_nothing_is_run_and_that_is_said(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a device")
    check = doctor.golden_kernels()
    assert check.state == "absent"
    assert check.found.startswith("nothing was run: ")
    assert "stay heuristic" in check.cost
    assert not golden.path().exists()


def test_the_doctor_records_what_it_is_told(monkeypatch):
    told = {"device": "NVIDIA Test", "triton": "3.9.0", "agrees": {k: list(v) for k, v in record().agrees.items()}}
    monkeypatch.setattr(doctor, "_output", lambda *args: json.dumps(told))
    assert doctor.golden_kernels() == doctor.Check("Kernels", "ok", record().line())
    assert golden.recorded("3.9.0") == record()
    told["agrees"]["ieee"] = []
    check = doctor.golden_kernels()
    assert check.state == "absent"
    assert "ieee not as modelled" in check.cost


def test_the_command_asks_for_it_only_when_told_to(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "golden_kernels", lambda: doctor.Check("Kernels", "absent", "nothing was run: x", "y"))
    monkeypatch.setattr(doctor, "device", lambda: doctor.Check("Device", "ok", "there"))
    main(["doctor"])
    assert "nothing was run" not in capsys.readouterr().out
    main(["doctor", "--gpu"])
    assert "- Kernels     nothing was run: x" in capsys.readouterr().out
