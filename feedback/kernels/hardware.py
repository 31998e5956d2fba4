"""Runs the golden micro-kernels on the GPU of this machine and prints what they did (`python -m`, own process)."""

from __future__ import annotations

import json
from typing import Any


def examine() -> dict[str, Any]:
    """`{"problem"}`, or `{"device", "triton", "agrees", "bits"}` by micro-kernel; raises nothing."""
    try:
        import torch
        import triton
    except ImportError as error:
        return {"problem": f"nothing was run: {error}"}
    if not torch.cuda.is_available():
        return {"problem": f"nothing was run: torch {torch.__version__} sees no device"}
    from .golden_cases import CASES
    from .golden_kernels import run

    agrees, bits = {}, {}
    for case in CASES:
        try:
            found = run(case, "cuda")
        except Exception as error:  # a device that does not know a precision; what it is told goes to the record
            agrees[case.name], bits[case.name] = (), f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            continue
        agrees[case.name], bits[case.name] = case.agrees(found), [f"{value:#010x}" for value in found.tolist()]
    name = torch.cuda.get_device_name()
    return {"device": name, "triton": triton.__version__, "agrees": agrees, "bits": bits}


if __name__ == "__main__":
    print(json.dumps(examine()))
