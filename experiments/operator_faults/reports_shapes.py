"""Public reports about shapes, masks and types of single operators, and those about their kernels, each as an edit of
the operators that this engine has; `about` says what is wrong there.
"""

from __future__ import annotations

from experiments.operator_faults.faults import OPS, Edit, Record

CHUNKS, CONVOLUTION = f"{OPS}/delta_chunks.py", f"{OPS}/short_convolution"

SHAPES = (
    Record(
        "places without token are not masked",
        "fla-org/flash-linear-attention#1134",
        "shapes and masks",
        "a chunk's places behind the end of a run hold the next run's tokens and decays",
        (Edit(CHUNKS, "rows.where(inside, starts[-1])", "rows.clamp(max=starts[-1])"),),
        ("kda_chunk",),
        ("output",),
        "operators",
    ),
    Record(
        "keys in a power of two",
        "fla-org/flash-linear-attention#1134",
        "shapes and masks",
        "the sum of squares of a key runs over the largest power of two of its channels",
        (
            Edit(
                CHUNKS,
                "x.square().sum(-1, keepdim=True)",
                "x[..., : 1 << (x.shape[-1].bit_length() - 1)].square().sum(-1, keepdim=True)",
            ),
        ),
        ("kda_chunk", "kda_local_state", "kda_recurrent"),
        ("output",),
        "operators",
    ),
    Record(
        "offsets that wrap",
        "fla-org/flash-linear-attention#1080",
        "shapes and masks",
        "where a slot's state begins is counted in a type that is too narrow: 16 bits here, for pools of test size",
        (
            Edit(
                f"{OPS}/kda_recurrent/torch.py",
                "slots = state_slots.long()",
                "stride = state[0].numel()\n"
                "        slots = ((state_slots.long() * stride).to(torch.int16).long() // stride) % len(state)",
            ),
        ),
        ("kda_recurrent",),
        ("output",),
        "operators",
    ),
    Record(
        "a mask that is not passed",
        "Dao-AILab/flash-attention#2789",
        "shapes and masks",
        "the causal mask is computed, and attention does without it",
        (Edit(f"{OPS}/attention_prefill/torch.py", ", attn_mask=visible)", ")"),),
        ("attention_prefill",),
        ("output",),
        "operators",
    ),
    Record(
        "a run shorter than the kernel leaves the state",
        "vllm-project/vllm#56196",
        "shapes and masks",
        "a run of fewer tokens than the state holds does not get into its own state",
        (
            Edit(
                f"{CONVOLUTION}/torch.py",
                "state[slots] = buffer[begins + lengths.unsqueeze(1)].transpose(1, 2)",
                "kept_from = begins + torch.where(lengths < past, 0, lengths).unsqueeze(1)\n"
                "        state[slots] = buffer[kept_from].transpose(1, 2)",
            ),
        ),
        ("short_convolution",),
        ("output",),
        "operators",
    ),
    Record(
        "a short piece counts as a whole one",
        "vllm-project/vllm#56196",
        "shapes and masks",
        "a piece shorter than the state pushes everything before it out",
        (
            Edit(
                f"{CONVOLUTION}/parallel.py",
                "counts.clamp(max=width).unsqueeze(1)",
                "(width * (counts > 0).long()).unsqueeze(1)",
            ),
        ),
        ("short_convolution",),
        ("halo", "state"),
        "sharding",
    ),
    Record(
        "the running sum of a state in the compute type",
        "fla-org/flash-linear-attention#1180",
        "shapes and masks",
        "a decode step keeps its state in half the width",
        (
            Edit(
                f"{OPS}/kda_recurrent/torch.py",
                "state.index_copy_(0, slots, now.to(state.dtype))",
                "state.index_copy_(0, slots, now.bfloat16().to(state.dtype))",
            ),
        ),
        ("kda_recurrent",),
        ("output",),
        "operators",
    ),
)

KERNELS = (
    Record(
        "merge kernel at the default precision",
        "fla-org/flash-linear-attention#1180",
        "parallel",
        "the product that carries the state from rank to rank leaves its precision to the default, which is tf32",
        (
            Edit(
                f"{OPS}/kda_state_merge/triton.py",
                'now = tl.dot(step, now, input_precision="tf32x3") + added',
                "now = tl.dot(step, now) + added",
            ),
        ),
        ("kda_state_merge",),
        ("output",),
        "kernels",
    ),
    Record(
        "chain kernel at the default precision",
        "fla-org/flash-linear-attention#1180",
        "parallel",
        "the product that carries state and transition from chunk to chunk leaves its precision to the default",
        (Edit(f"{OPS}/kda_local_state/triton.py", ', input_precision="tf32x3")', ")"),),
        ("kda_local_state",),
        ("output",),
        "kernels",
    ),
    Record(
        "decays behind the keys are not masked",
        "fla-org/flash-linear-attention#1134",
        "shapes and masks",
        "a block of a power of two of channels reads decays beyond the keys, and of tokens beyond the run",
        (
            Edit(
                f"{OPS}/kda_chunk/triton.py",
                "fades = tl.load(g + there, mask=inside, other=0.0)",
                "fades = tl.load(g + there)",
            ),
        ),
        ("kda_chunk",),
        ("output",),
        "kernels",
    ),
)
