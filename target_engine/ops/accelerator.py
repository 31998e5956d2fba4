"""Where Triton implementations can run. Torch and Triton are imported when asked."""

from __future__ import annotations

COMPUTE_TYPES = ("float32", "bfloat16", "float16")


def unavailable(dtype: str = "float32") -> str | None:
    """Why Triton implementations cannot run on this machine in a compute type, or None.

    What an implementation's `unavailable` returns. A process whose kernels are interpreted (`triton.knobs`) runs them
    on the CPU: that is for checks, thousands of times slower than the torch implementations.
    """
    import torch
    from triton import knobs

    if dtype not in COMPUTE_TYPES:
        return f"Triton kernels here compute in float32, not {dtype}"
    if knobs.runtime.interpret or torch.cuda.is_available():
        return None
    return "Triton kernels need a GPU that torch can use"
