"""Compilation for GPUs that are not here: reports, limits, and what does not compile as a fact."""

from __future__ import annotations

import pytest

from feedback.kernels import disassembly
from feedback.kernels.devices import DEVICES, excesses

CUOBJDUMP = """
Fatbin elf code:
================
arch = sm_90a
Resource usage:
 Common:
  GLOBAL:0
 Function kernel:
  REG:167 STACK:360 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E R2, desc[UR4][R2.64] ;
        /*0020*/             @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0030*/                   HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24 ;
        /*0040*/                   HGMMA.64x128x8.F32.TF32 R24, gdesc[UR12], R24 ;
        /*0050*/                   HMMA.1688.F32.TF32 R4, R8, R12, R4 ;
        /*0060*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*1230*/                   FFMA R4, R5, R6, R4 ;
"""
PTXAS = "ptxas info : Function properties\n  360 bytes stack frame, 352 bytes spill stores, 404 bytes spill loads\n"
AMDGCN = """
\tv_mfma_f32_32x32x4_xf32 v[0:15], v[16:17], v[18:19], v[0:15]
\tv_mfma_f32_32x32x4_xf32 v[0:15], v[16:17], v[18:19], v[0:15]
\ts_waitcnt lgkmcnt(0)
\tds_read_b128 v[0:3], v4
    .agpr_count:     16
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 24
    .sgpr_count:     18
    .sgpr_spill_count: 1
    .vgpr_count:     50
    .vgpr_spill_count: 2
"""


def test_nvidia_figures_are_read_from_what_its_tools_print():
    assert disassembly.nvidia_usage(CUOBJDUMP) == disassembly.Resources(registers=167, stack_bytes=360)
    instructions = disassembly.nvidia_instructions(SASS)
    assert instructions["LDG"] == 1
    assert instructions.total() == 8
    assert disassembly.nvidia_dots(instructions) == {"HGMMA": 2, "HMMA": 1, "UTCHMMA": 1}
    assert disassembly.nvidia_spill_bytes(PTXAS) == 404
    assert disassembly.nvidia_spill_bytes("no spills") is None
    with pytest.raises(ValueError, match="no resource usage"):
        disassembly.nvidia_usage("nothing")


def test_amd_figures_are_read_from_its_assembly():
    assert disassembly.amd_usage(AMDGCN) == disassembly.Resources(66, 24, spilled_registers=3)
    assert disassembly.amd_dots(disassembly.amd_instructions(AMDGCN)) == {"v_mfma_f32_32x32x4_xf32": 2}
    with pytest.raises(ValueError, match="no register counts"):
        disassembly.amd_usage("nothing")


def test_what_a_device_has_too_little_of_is_named():
    assert excesses(DEVICES["cuda:90"], 227 << 10, 8, 0) == ()
    assert excesses(DEVICES["cuda:90"], (227 << 10) + 1024, 8, 0) == (
        "needs 228 KiB of shared memory, cuda:90 has 227",
    )
    assert excesses(DEVICES["hip:gfx942"], 65 << 10, 32, 0) == (
        "needs 65 KiB of shared memory, hip:gfx942 has 64",
        "needs 2048 threads, hip:gfx942 allows 1024",
    )
    assert excesses(DEVICES["cuda:90"], 0, 4, 128) == ("needs 128 columns of tensor memory, cuda:90 has 0",)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Launches of the sample product in two precisions, and a private cache."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from feedback.kernels.interpret import interpreting
    from tests.feedback import kernel_samples as samples

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    x, out = torch.ones(32, 32), torch.empty(32, 32)
    with interpreting() as seen:
        for precision in ("tf32", "tf32x3", "tf32"):
            samples.product[(1,)](x, x, out, N=32, PRECISION=precision, num_warps=4)
    return seen.launches


def test_launches_that_were_interpreted_are_compiled_in_the_same_process(launched):
    from feedback.kernels.compile import compiled

    reports = compiled(launched, ("cuda:90", "hip:gfx942"))
    assert [report.device for report in reports] == ["cuda:90", "hip:gfx942"] * 2
    assert {report.kernel for report in reports} == {"product"}
    plain, on_amd, thrice, refused = reports
    assert plain.problem == on_amd.problem == thrice.problem == ""
    assert 0 < plain.registers <= 255
    assert plain.dots
    assert sum(thrice.dots.values()) > sum(plain.dots.values())
    assert next(iter(on_amd.dots)).startswith("v_mfma_f32")
    assert next(iter(on_amd.dots)).endswith("xf32")
    assert "input_precision must be one of" in refused.problem
    assert "tf32x3" in refused.problem
    assert "\n" not in refused.problem


def test_the_driver_of_this_machine_is_as_before(launched):
    from triton import knobs
    from triton.runtime.driver import driver

    from feedback.kernels.compile import compiled

    before = driver._active, dict(knobs.cache.__dict__)
    compiled(launched[:1], ("hip:gfx942",))
    assert (driver._active, dict(knobs.cache.__dict__)) == before


def test_a_compilation_that_takes_too_long_is_ended(launched):
    from feedback.kernels.compile import compiled

    (report,) = compiled(launched[:1], ("cuda:80",), seconds=0.01)
    assert report.timed_out
    assert report.problem == "no result after 0.01 s"
    (again,) = compiled(launched[:1], ("cuda:80",))
    assert again.problem == ""


def test_a_compiler_that_dies_is_a_fact():
    import os

    pytest.importorskip("triton")
    from feedback.kernels.compile import _in_child

    assert _in_child(lambda: os._exit(3), 10.0) == "the compiler ended its process"
    assert _in_child(lambda: print("much", flush=True), 10.0) == ""
    assert _in_child(lambda: 1 // 0, 10.0) == "ZeroDivisionError: integer division or modulo by zero"
