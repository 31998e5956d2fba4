"""The seven faults of the lecture's tiled matrix product, each in an operator of this engine that can have it.

K tail without mask, K loop one block short, grid rounded down, store past the end, a missing synchronisation, sums in
half precision, B's index transposed.
"""

from __future__ import annotations

from experiments.operator_faults.faults import OPS, Edit, Record

MERGE, CHUNKS = f"{OPS}/kda_state_merge/torch.py", f"{OPS}/delta_chunks.py"

LECTURE = (
    Record(
        "K tail without mask",
        "lecture",
        "lecture",
        "attention sums over a block's positions behind the context",
        (
            Edit(
                f"{OPS}/attention_decode/torch.py",
                '        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))\n',
                "",
            ),
        ),
        ("attention_decode",),
        ("output",),
        "operators",
    ),
    Record(
        "K loop one block short",
        "lecture",
        "lecture",
        "the last block of a context is read only when it is full",
        (
            Edit(
                f"{OPS}/attention_prefill/torch.py",
                "        for row, context in enumerate(context_lens.tolist()):\n",
                "        for row, context in enumerate(context_lens.tolist()):\n"
                "            context_end, context = context, context - context % self.block_size or context\n",
            ),
            Edit(
                f"{OPS}/attention_prefill/torch.py",
                "positions = torch.arange(context - (end - start), context)",
                "positions = torch.arange(context_end - (end - start), context_end)",
            ),
        ),
        ("attention_prefill",),
        ("output",),
        "operators",
    ),
    Record(
        "grid rounded down",
        "lecture",
        "lecture",
        "a run gets as many chunks as fit whole",
        (Edit(CHUNKS, "rounds = -(-lengths[order[0]] // size)", "rounds = lengths[order[0]] // size"),),
        ("kda_chunk", "kda_local_state"),
        ("output",),
        "operators",
    ),
    Record(
        "store past the end",
        "lecture",
        "lecture",
        "one more slot than there are tokens is written",
        (
            Edit(
                f"{OPS}/kv_write/torch.py",
                "        k_cache.flatten(0, 1).index_copy_(0, slot_mapping, k)\n",
                "        beyond = (slot_mapping[-1:] + 1) % (k_cache.shape[0] * k_cache.shape[1])\n"
                "        k_cache.flatten(0, 1).index_copy_(0, beyond, k[-1:])\n"
                "        k_cache.flatten(0, 1).index_copy_(0, slot_mapping, k)\n",
            ),
        ),
        ("kv_write",),
        ("output",),
        "operators",
    ),
    Record(
        "a missing synchronisation",
        "lecture",
        "lecture",
        "a rank goes on with its own part of the sum",
        (
            Edit(
                f"{OPS}/linear/parallel.py",
                "y = group.all_reduce(widened(y)).to(y.dtype)",
                "y = widened(y).to(y.dtype)",
            ),
        ),
        ("linear",),
        ("output",),
        "sharding",
    ),
    Record(
        "sums in half precision",
        "lecture",
        "lecture",
        "the states are folded in float16",
        (
            Edit(
                MERGE,
                "m[rank] @ states[rank] + s_ext[rank]",
                "(m[rank].half() @ states[rank].half()).float() + s_ext[rank]",
            ),
        ),
        ("kda_state_merge", "kda_chunk"),
        ("merge", "output"),
        "operators",
    ),
    Record(
        "B's index transposed",
        "lecture",
        "lecture",
        "the transition is taken the other way round",
        (Edit(MERGE, "m[rank] @", "m[rank].transpose(-1, -2) @"),),
        ("kda_state_merge", "kda_chunk"),
        ("merge", "output"),
        "operators",
    ),
)
