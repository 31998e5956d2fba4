"""The whole engine on native operators: the plain operators' tokens, and the same whatever the schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from target_engine.engine import Engine
from target_engine.launch import LaunchConfig
from target_engine.native.build import unavailable
from target_engine.ops import registry
from target_engine.scheduling.request import SamplingParams

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"native code {unavailable()}")

NATIVE = {name: "native" for name in registry.operator_names() if "native" in registry.implementations(name)}
SHARED = [7 + i % 50 for i in range(40)]
PROMPTS = [[*SHARED[: 5 * i], i + 1, 2 * i + 1, 3] for i in range(9)]


def generate(model: Path, prompts: list[list[int]], **config: object) -> list[list[int]]:
    """Greedy tokens of all prompts, run together."""
    values = {"model": str(model), "max_model_len": 96, "block_size": 8, "threads": 2, **config}
    engine = Engine(LaunchConfig.parse(values))
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, SamplingParams(max_tokens=24, ignore_eos=True))
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
    return list(tokens.values())


def test_float32_tokens_are_those_of_the_plain_operators(tiny_model: Path) -> None:
    assert generate(tiny_model, PROMPTS, operators=NATIVE) == generate(tiny_model, PROMPTS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_do_not_depend_on_the_schedule_even_in_bfloat16(tiny_model: Path, dtype: str) -> None:
    """No rounding differs: every row is computed in one order, alone or in a batch, in one chunk or in many."""
    if dtype == "bfloat16" and torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor's matrix tiles, used for many rows, sum in another order")
    alone = [generate(tiny_model, [prompt], dtype=dtype, operators=NATIVE)[0] for prompt in PROMPTS]
    for config in (
        {"max_batch": 9, "prefill_chunk": 512},
        {"max_batch": 3, "prefill_chunk": 7, "threads": 1},
        {"max_batch": 9, "prefill_chunk": 16, "num_blocks": 17, "prefix_cache": True},
    ):
        assert generate(tiny_model, PROMPTS, dtype=dtype, operators=NATIVE, **config) == alone, config
