"""Drivers' side of the peers experiment: one JSON line in, one JSON line out, on the original standard output.

The first line is the setup (`{"model_dir", "gguf", "threads", "dtype", "max_batch", "max_model_len"}`); the answer says
that the peer is ready and with what configuration. Every further line is one pass, `{"prompts": [text...],
"max_tokens": [n...]}`, answered with `{"output_tokens": n}` when all requests are done. The parent holds the clock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[str], list[int]], int]
Start = Callable[[dict[str, Any]], tuple[Generate, str]]


def serve(start: Start) -> None:
    """Run a driver. Libraries that print go to standard error: the wire keeps its own descriptor."""
    wire = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        wire.write(json.dumps(message) + "\n")
        wire.flush()

    generate, configuration = start(json.loads(sys.stdin.readline()))
    answer({"ready": configuration})
    for line in sys.stdin:
        request = json.loads(line)
        answer({"output_tokens": generate(request["prompts"], request["max_tokens"])})
