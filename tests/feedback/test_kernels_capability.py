"""Whether the interpreter may be believed: an unknown Triton, or bits that do not come out, is `unsupported`."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import triton

from feedback.kernels import builder, capability, golden_cases, rounding


def test_the_triton_that_is_pinned_is_known():
    found = capability.examine()
    assert found == capability.Capability(True, "", triton.__version__)


def test_an_unknown_version_is_unsupported_whatever_it_computes(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    found = capability.examine()
    assert not found.supported
    assert "Triton 3.10.0 is not a version" in found.reason
    assert "3.9.0" in found.reason


def test_no_triton_is_unsupported(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    assert "cannot be imported" in capability.examine().reason


def test_the_environment_that_prevents_compilation_is_unsupported(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET is set" in capability.examine().reason


def test_a_shim_that_does_not_reach_the_products_is_unsupported(monkeypatch):
    monkeypatch.delattr(builder.FaithfulBuilder, "create_dot")
    found = capability.examine()
    assert not found.supported
    assert "golden check 'tf32' (truncation) gave 0x" in found.reason


@pytest.mark.parametrize("part", ["binary_op", "cast_impl"])
def test_a_shim_that_does_not_reach_bfloat16_is_unsupported(monkeypatch, part):
    monkeypatch.delattr(builder.FaithfulBuilder, part)
    found = capability.examine()
    assert not found.supported
    assert "bfloat16" in found.reason or "shim failed" in found.reason


def test_a_changed_rounding_is_unsupported(monkeypatch):
    monkeypatch.setattr(rounding, "tf32_rounded", rounding.tf32_truncated)
    assert "golden check 'tf32x3'" in capability.examine().reason


def test_an_interpreter_that_breaks_is_unsupported(monkeypatch):
    def broken(*args):
        raise AttributeError("no such part")

    monkeypatch.setattr(builder.FaithfulBuilder, "create_dot", broken)
    found = capability.examine()
    assert not found.supported
    assert "AttributeError: no such part" in found.reason


def test_every_way_of_a_product_has_a_golden_check_that_tells_it_from_the_others():
    dots = [case for case in golden_cases.CASES if case.kind == "dot"]
    assert {case.precision for case in dots} == set(rounding.PRECISIONS)
    distinct = {case.expected[mode] for case in dots for mode in rounding.MODES}
    assert len(distinct) == 6  # tf32 and tf32x3 differ between the modes
