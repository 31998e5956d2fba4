"""Public reports about parallel numerics, each as an edit of the code that cuts and combines here.

Where a report is about an operator or a size that this engine does not have, the edit makes the same mistake in the
place that does the same work; `about` says what is wrong there.
"""

from __future__ import annotations

from experiments.operator_faults.faults import OPS, Edit, Record

CHUNK, CONVOLUTION = f"{OPS}/kda_chunk/parallel.py", f"{OPS}/short_convolution/parallel.py"
MERGE, WEIGHTS = f"{OPS}/kda_state_merge/torch.py", "target_engine/parallel/weights.py"

#: A float32 as the tensor core takes it: the last 13 of its 23 bits are cut off.
TF32 = "((({0}).contiguous().view(torch.int32)) & -8192).view(torch.float32)"

PARALLEL = (
    Record(
        "context lengths of the whole run",
        "vllm-project/vllm#48003",
        "parallel",
        "a rank's queries see the keys after them, since lengths are the whole run's and not up to the rank's piece",
        (Edit(f"{OPS}/attention_prefill/parallel.py", "(lens - later)[runs]", "lens[runs]"),),
        ("attention_prefill",),
        ("output",),
        "sharding",
    ),
    Record(
        "run boundaries of all ranks",
        "vllm-project/vllm#48003",
        "parallel",
        "a rank cuts its tokens into runs at the whole step's boundaries",
        (Edit(CHUNK, "k, v, g, beta, local_starts(mine))", 'k, v, g, beta, inputs["query_starts"])'),),
        ("kda_chunk",),
        ("local_state", "chain"),
        "sharding",
    ),
    Record(
        "tails at the boundaries of all ranks",
        "vllm-project/vllm#48003",
        "parallel",
        "the inputs kept for the next rank are taken at the whole step's boundaries",
        (Edit(CONVOLUTION, "last_inputs(x, local_starts(mine)", "last_inputs(x, starts"),),
        ("short_convolution",),
        ("tail",),
        "sharding",
    ),
    Record(
        "merge in tf32",
        "fla-org/flash-linear-attention#1180",
        "parallel",
        "states are folded with operands of 10 mantissa bits: lost in long contexts under weak decay",
        (
            Edit(
                MERGE,
                "m[rank] @ states[rank] + s_ext[rank]",
                f"{TF32.format('m[rank]')} @ {TF32.format('states[rank]')} + s_ext[rank]",
            ),
        ),
        ("kda_state_merge", "kda_chunk"),
        ("merge", "output"),
        "operators",
    ),
    Record(
        "chain in tf32",
        "fla-org/flash-linear-attention#1180",
        "parallel",
        "the transition of a rank's tokens is chained with operands of 10 mantissa bits",
        (
            Edit(
                f"{OPS}/kda_local_state/torch.py",
                "now = parts.after(part, now, parts.writes(part, now))",
                f"now = parts.after(part, {TF32.format('now')}, parts.writes(part, {TF32.format('now')}))",
            ),
        ),
        ("kda_local_state", "kda_chunk"),
        ("chain", "local_state", "output"),
        "operators",
    ),
    Record(
        "keys and values cut without heads",
        "huggingface/transformers#48307",
        "parallel",
        "with more ranks than key-value heads a rank gets half a head where it needs a copy of a whole one",
        (
            Edit(
                WEIGHTS,
                '"self_attn.k_proj.weight": ("qkv_projection", "heads", "w_k"),',
                '"self_attn.k_proj.weight": ("linear", "columns", "weight"),',
            ),
        ),
        (),
        (),
        "sharded_model",
    ),
    Record(
        "head counts by division",
        "sgl-project/sglang#20967",
        "parallel",
        "a rank's number of key-value heads is a quotient, which is no whole number where ranks share a head",
        (Edit(WEIGHTS, "num_kv_heads=len(kv),", "num_kv_heads=model.num_kv_heads // topology.tp,"),),
        (),
        (),
        "sharded_model",
    ),
    Record(
        "the last owner has no layers",
        "sgl-project/sglang#28229",
        "parallel",
        "with layers owned in turn, a layer of the last rank is sent by another, which has nothing of it",
        (
            Edit(
                "target_engine/parallel/tokens.py",
                "if group.rank == owner:",
                "if group.rank == min(owner, max(0, group.size - 2)):",
            ),
        ),
        ("attention_decode", "attention_prefill"),
        ("broadcast",),
        "sharding",
    ),
    Record(
        "the first owner writes everything",
        "sgl-project/sglang#28229",
        "parallel",
        "new keys and values are written by rank 0, whoever owns the layer",
        (Edit(f"{OPS}/kv_write/parallel.py", 'group.rank == int(inputs["owner"])', "group.rank == 0"),),
        ("kv_write",),
        ("output",),
        "sharding",
    ),
    Record(
        "vocabulary cut evenly",
        "vllm-project/vllm#12170",
        "parallel",
        "a rank takes its part of the vocabulary to begin at rank x size, which an odd vocabulary does not",
        (Edit(f"{OPS}/embedding/parallel.py", "first = sum(sizes[: group.rank])", "first = group.rank * sizes[-1]"),),
        ("embedding",),
        ("partial", "output"),
        "sharding",
    ),
    Record(
        "halo of the last rank alone",
        "fla-org/flash-linear-attention#774",
        "parallel",
        "the inputs before a rank's piece come from the rank before it, also where that has none or too few",
        (
            Edit(
                CONVOLUTION,
                "        window = advance(window, later, count)\n",
                "        window = later if rank < group.size - 1 else advance(window, later, count)\n",
            ),
        ),
        ("short_convolution",),
        ("halo", "state"),
        "sharding",
    ),
    Record(
        "state after the own piece",
        "vllm-project/vllm#48003",
        "parallel",
        "every rank keeps the state after its own tokens, where all need the one after the whole run",
        (Edit(CHUNK, "states[:, group.size]", "states[:, group.rank + 1]"),),
        ("kda_chunk",),
        ("output",),
        "sharding",
    ),
    Record(
        "own tokens folded in twice",
        "fla-org/flash-linear-attention#1180",
        "parallel",
        "a rank starts from the state after its piece",
        (Edit(CHUNK, "states[filled, group.rank]", "states[filled, group.rank + 1]"),),
        ("kda_chunk",),
        ("output",),
        "sharding",
    ),
    Record(
        "positions of another rank's tokens",
        "vllm-project/vllm#48003",
        "parallel",
        "a rank numbers its tokens as if they were the step's first ones",
        (
            Edit(
                "target_engine/parallel/rank.py",
                "positions=step.positions[rows],",
                "positions=step.positions[: len(rows)],",
            ),
        ),
        (),
        (),
        "sharded_model",
    ),
)
