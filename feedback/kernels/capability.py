"""Whether the interpreter can be believed here: asked before anything else is (worker side).

The shim replaces parts of Triton's interpreter that are no public interface. A version that it was not checked with, or
a golden micro-kernel whose bits do not come out, makes every answer `unsupported`: with a reason, never with a number.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .rounding import MODES

#: Versions whose interpreter was read and checked.
KNOWN_VERSIONS = ("3.9.0",)


@dataclass(frozen=True)
class Capability:
    """`supported`, or the reason why not; the version of Triton (empty where there is none)."""

    supported: bool
    reason: str
    triton: str


def examine() -> Capability:
    """Run the checks; takes about a tenth of a second. Raises nothing."""
    try:
        import triton
    except ImportError as error:
        return Capability(False, f"Triton cannot be imported: {error}", "")
    version = triton.__version__
    try:
        return Capability(not (reason := _reason(version)), reason, version)
    except Exception as error:  # whatever a different Triton does to a shim of its internals
        return Capability(False, f"the interpreter's shim failed: {type(error).__name__}: {error}", version)


def _reason(version: str) -> str:
    if version not in KNOWN_VERSIONS:
        return f"Triton {version} is not a version that the rounding of its interpreter was checked with ({_known()})"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set, so that kernels can neither be compiled nor be given the rounding of hardware"
    from triton import language
    from triton.runtime.jit import JITFunction

    from .golden_cases import CASES
    from .golden_kernels import run
    from .interpret import interpreting

    before = (JITFunction.run, JITFunction.__call__, language.load, language.dot, language.tensor.__add__)
    for mode in MODES:
        for case in CASES:
            with interpreting(mode):
                bits = run(case)
            if mode not in case.agrees(bits):
                want = case.expected[mode]
                first = next(i for i, bit in enumerate(bits.tolist()) if bit != want[i])
                return f"golden check {case.name!r} ({mode}) gave {bits[first]:#010x}, expected {want[first]:#010x}"
    if before != (JITFunction.run, JITFunction.__call__, language.load, language.dot, language.tensor.__add__):
        return "Triton was not left as it was found"
    return ""


def _known() -> str:
    return ", ".join(KNOWN_VERSIONS)
