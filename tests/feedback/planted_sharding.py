"""Planted faults of sharded operators: one fault each in a private copy of the combining code, with the operator, the
cut and the step that must be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.feedback.planted import OPS, replaces


@dataclass(frozen=True)
class ShardPlant:
    """`hybrid`: planted in the hybrid model's operators, else in Llama's. `cause` is what the comparison at higher
    precision must say, `says` a word of the verdict's line.
    """

    name: str
    operator: str
    sharding: str
    step: str
    plant: Callable[[Path], tuple[str, ...]]
    launch: Mapping[str, Any] = field(default_factory=lambda: {"cp": 3})
    cause: str | None = "logic"
    says: str = ""
    hybrid: bool = True


def combining(operator: str, *edits: tuple[str, str]) -> Callable[[Path], tuple[str, ...]]:
    return replaces(f"{OPS}/{operator}/parallel.py", *edits)


TF32 = """

def tf32(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)


class Implementation"""

FAULTS = (
    ShardPlant(
        "missing all-reduce",
        "linear",
        "head_rows",
        "output",
        combining("linear", ("y = group.all_reduce(widened(y)).to(y.dtype)", "pass")),
        launch={"tp": 2},
        says="all 2 ranks",
        hybrid=False,
    ),
    ShardPlant(
        "merge in the wrong order",
        "kda_chunk",
        "context",
        "merge",
        combining(
            "kda_chunk", ("(s_ext[run].contiguous(), m[run].contiguous()", "(s_ext[run].flip(0), m[run].flip(0)")
        ),
    ),
    ShardPlant(
        "transition not chained",
        "kda_chunk",
        "context",
        "chain",
        combining(
            "kda_chunk",
            (
                "[m for _, m in both]",
                "[local_state(*(t[p][len(t[p]) // 2 :] for t in (k, v, g, beta)))[1] for p in pieces]",
            ),
        ),
    ),
    ShardPlant(
        "halo of the rank before",
        "short_convolution",
        "context",
        "halo",
        combining("short_convolution", ("if rank == group.rank:", "if rank == max(group.rank - 1, 0):")),
    ),
    ShardPlant(
        "key-value heads not replicated",
        "qkv_projection",
        "heads",
        "output",
        combining("qkv_projection", ('"k": k, "v": v}', '"k": k * (group.rank % 2 == 0), "v": v}')),
        launch={"tp": 4},
        says="ranks 1, 3 of 4",
        hybrid=False,
    ),
    ShardPlant(
        "vocabulary offset",
        "embedding",
        "vocabulary",
        "partial",
        combining("embedding", ("first = sum(sizes[: group.rank])", "first = sum(sizes[: group.rank]) + group.rank")),
        launch={"tp": 2},
        hybrid=False,
    ),
    ShardPlant(
        "merge rounds to tf32",
        "kda_chunk",
        "context",
        "merge",
        replaces(
            f"{OPS}/kda_state_merge/torch.py",
            ("\n\nclass Implementation", TF32),
            ("m[rank] @ states[rank]", "tf32(m[rank]) @ tf32(states[rank])"),
        ),
        cause="precision",
        says="float64 kda_state_merge",
    ),
    ShardPlant(
        "last shard dropped",
        "kda_chunk",
        "context",
        "output",
        combining("kda_chunk", ("= states[:, group.size]", "= states[:, group.size - 1]")),
    ),
    ShardPlant(
        "state of another slot",
        "kda_chunk",
        "context",
        "merge",
        combining("kda_chunk", ("first = state[slots.long()]", "first = state[slots.flip(0).long()]")),
    ),
    ShardPlant(
        "gather loses the order of ranks",
        "kv_write",
        "context",
        "gather",
        combining("kv_write", ('inputs["shard_lengths"], group)', 'inputs["shard_lengths"].flip(0), group)')),
        launch={"cp": 2},
        cause=None,
        hybrid=False,
    ),
    ShardPlant(
        "blocks of the wrong owner's layer",
        "attention_prefill",
        "layers",
        "broadcast",
        combining(
            "attention_prefill", ("v_cache, tables = read_blocks(k_cache", "v_cache, tables = read_blocks(0 * k_cache")
        ),
        launch={"cp": 2, "layer_split": True},
        hybrid=False,
    ),
    ShardPlant(
        "copies drift apart",
        "qkv_projection",
        "heads",
        "output",
        combining("qkv_projection", ('"k": k, ', '"k": k * (1 + 1e-6 * group.rank), ')),
        launch={"tp": 4},
        cause=None,
        says="different values",
        hybrid=False,
    ),
    ShardPlant(
        "changes its input",
        "rms_norm",
        "context",
        "output",
        combining(
            "rms_norm",
            ('return {"y": normalise(inputs["x"])}', 'return {"y": normalise(inputs["x"]), "_": inputs["x"].zero_()}'),
        ),
        launch={"cp": 2},
        cause=None,
        says="changes its input x",
        hybrid=False,
    ),
    ShardPlant(
        "keeps what was gathered first",
        "lm_head",
        "context",
        "gather",
        combining(
            "lm_head",
            ("def run(", "KEPT: dict = {}\n\n\ndef run("),
            ("x = gathered(", "x = KEPT.setdefault((group.rank, x.shape), gathered("),
            ('shard_lengths"], group)', 'shard_lengths"], group))'),
        ),
        launch={"cp": 2},
        cause=None,
        says="earlier call",
        hybrid=False,
    ),
    ShardPlant(
        "a rank raises",
        "linear",
        "head_rows",
        "partial",
        combining("linear", ("y = build(", 'assert group.rank != 1, "rank one"\n    y = build(')),
        launch={"tp": 2},
        cause=None,
        says="rank 1 of 2: AssertionError: rank one",
        hybrid=False,
    ),
    ShardPlant(
        "a rank hangs",
        "linear",
        "head_rows",
        "output",
        combining(
            "linear",
            ("y = group.all", "time.sleep(999.0 * group.rank)\n        y = group.all"),
            ("from torch", "import time\n\nfrom torch"),
        ),
        launch={"tp": 2},
        cause=None,
        says="rank 1 of 2 did not come to all_reduce",
        hybrid=False,
    ),
)
