"""Reads what GPU compilers and disassemblers print: registers, spills, instructions. Pure, on text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

#: Instructions of matrix units, by what stands before the first dot of their name.
_NVIDIA_DOTS = re.compile(r"(?:HMMA|IMMA|DMMA|QMMA|OMMA|HGMMA|IGMMA|QGMMA|UTC\w*MMA)$")
_NVIDIA_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_AMD_LINE = re.compile(r"^\s+((?:v|s|ds|global|buffer|scratch|flat)_\w+)", re.MULTILINE)
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_AMD_FIELD = re.compile(r"^\s*\.(\w+):\s+(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Resources:
    """What one thread uses: 32-bit registers, bytes of stack, bytes spilled to memory. `spilled_registers` where the
    compiler counts those instead.
    """

    registers: int
    stack_bytes: int
    spill_bytes: int = 0
    spilled_registers: int = 0


def nvidia_usage(text: str) -> Resources:
    """`cuobjdump -res-usage` of one kernel. Raises `ValueError` for anything else."""
    found = dict(_USAGE.findall(text))
    if not {"REG", "STACK"} <= found.keys():
        raise ValueError("no resource usage in what cuobjdump printed")
    return Resources(int(found["REG"]), int(found["STACK"]))


def nvidia_spill_bytes(text: str) -> int | None:
    """The larger of bytes stored and loaded for spills that `ptxas -v` reports; None where it reports none."""
    found = [(int(stores), int(loads)) for stores, loads in _SPILL.findall(text)]
    return max(max(pair) for pair in found) if found else None


def nvidia_instructions(text: str) -> Counter[str]:
    """Instructions of `nvdisasm -c` by name without modifiers."""
    return Counter(_NVIDIA_LINE.findall(text))


def nvidia_dots(instructions: Counter[str]) -> dict[str, int]:
    """Those of the matrix units."""
    return {name: count for name, count in sorted(instructions.items()) if _NVIDIA_DOTS.match(name)}


def amd_usage(text: str) -> Resources:
    """The metadata at the end of AMD assembly of one kernel. Raises `ValueError` where there is none."""
    found = {name: int(value) for name, value in _AMD_FIELD.findall(text)}
    if "vgpr_count" not in found:
        raise ValueError("no register counts in the assembly")
    return Resources(
        registers=found["vgpr_count"] + found.get("agpr_count", 0),
        stack_bytes=found.get("private_segment_fixed_size", 0),
        spilled_registers=found.get("vgpr_spill_count", 0) + found.get("sgpr_spill_count", 0),
    )


def amd_instructions(text: str) -> Counter[str]:
    """Instructions of AMD assembly by full name."""
    return Counter(_AMD_LINE.findall(text))


def amd_dots(instructions: Counter[str]) -> dict[str, int]:
    """Those of the matrix units: the name says shape and types (`v_mfma_f32_16x16x8_xf32`)."""
    return {name: count for name, count in sorted(instructions.items()) if name.startswith(("v_mfma", "v_smfmac"))}
