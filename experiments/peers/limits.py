"""What this machine can do at most: memory streaming and matrix products, measured in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
def best(call, work, repeats=7):
    call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter(); call(); taken.append(time.perf_counter() - start)
    return work / min(taken)
found = {}
block = torch.empty(256 << 20, dtype=torch.uint8); other = torch.ones_like(block)
found["copy_gb_s"] = best(lambda: block.copy_(other), 2 * block.numel() / 1e9)
words = other.view(torch.int64)
found["read_gb_s"] = best(lambda: words.sum(), words.numel() * 8 / 1e9)
for name in ("float32", "bfloat16"):
    a = torch.randn(1024, 2048).to(getattr(torch, name)); w = torch.randn(2048, 2048).to(a.dtype)
    found[f"matmul_{name}_gflop_s"] = best(lambda: torch.nn.functional.linear(a, w), 2 * 1024 * 2048 * 2048 / 1e9)
print(json.dumps(found))
"""


def machine_limits(threads: int) -> dict[str, float]:
    """Copy and read bandwidth (GB/s, read + written) and matrix product rates (GFLOP/s) with `threads` threads."""
    argv = [sys.executable, "-c", PROGRAM, str(threads)]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
