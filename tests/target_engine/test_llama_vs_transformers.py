"""The model against an independent one on the same weights: logits, and greedy tokens in any configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from target_engine.checkpoint import Checkpoint
from target_engine.engine import Engine
from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.ops import registry
from target_engine.scheduling.request import SamplingParams
from target_engine.workload import read_workload
from tests.tiny_model import make_tiny_llama

NEW_TOKENS = 64


def transformers_model(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


def prompts(vocabulary: int, count: int = 20, shared: int = 40) -> list[list[int]]:
    """Prompts of 1 to 90 tokens, every second one behind a common prefix."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(3, vocabulary, shared).tolist()
    lengths = [1, 2, 15, 16, 17, *rng.integers(3, 50, count - 5).tolist()]
    return [
        (prefix if index % 2 else []) + rng.integers(3, vocabulary, length).tolist()
        for index, length in enumerate(lengths)
    ]


@torch.inference_mode()
def expected_tokens(model: Any, prompt: list[int], new: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def greedy(engine: Engine, requests: list[list[int]], new: int) -> list[list[int]]:
    for index, prompt in enumerate(requests):
        engine.add_request(str(index), prompt, SamplingParams(max_tokens=new, ignore_eos=True))
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(requests))}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
        engine.scheduler.check()
    return [tokens[str(index)] for index in range(len(requests))]


@pytest.fixture(scope="module")
def oracle(tiny_model: Path) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, what transformers continues them with)."""
    model = transformers_model(tiny_model)
    requests = prompts(300)
    return requests, [expected_tokens(model, prompt, NEW_TOKENS) for prompt in requests]


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "one at a time": {"max_batch": 1},
    "four slots": {"max_batch": 4},
    "all at once": {"max_batch": 20},
    "small chunks": {"max_batch": 4, "prefill_chunk": 5},
    "single-token chunks": {"max_batch": 3, "prefill_chunk": 1},
    "prefix cache": {"max_batch": 4, "prefix_cache": True},
    "small blocks, prefix cache": {"max_batch": 5, "prefix_cache": True, "block_size": 3, "prefill_chunk": 17},
    "preemption": {"max_batch": 8, "num_blocks": 24, "block_size": 8, "max_model_len": 192},
    "preemption with prefix cache": {
        "max_batch": 8,
        "num_blocks": 24,
        "block_size": 8,
        "max_model_len": 192,
        "prefix_cache": True,
        "prefill_chunk": 16,
    },
    "large blocks": {"max_batch": 4, "block_size": 64},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_greedy_tokens_are_the_same_in_every_configuration(
    name: str, tiny_model: Path, oracle: tuple[list[list[int]], list[list[int]]]
) -> None:
    config = LaunchConfig(model=str(tiny_model), **({"max_model_len": 256, "threads": 1} | CONFIGURATIONS[name]))
    engine = Engine(config)
    requests, expected = oracle
    assert greedy(engine, requests, NEW_TOKENS) == expected
    if "preemption" in name:
        assert engine.metrics()["preemptions"] > 0, "this configuration is meant to preempt"
    if config.prefix_cache:
        assert engine.metrics()["cached_prompt_tokens"] > 0
        assert greedy(engine, requests, NEW_TOKENS) == expected, "a warm cache changes nothing"


OPTIMISED = sorted({name for op in registry.operator_names() for name in registry.implementations(op)} - {"torch"})


@pytest.mark.parametrize("implementation", OPTIMISED)
def test_greedy_tokens_are_the_same_with_every_implementation(
    implementation: str, tiny_model: Path, oracle: tuple[list[list[int]], list[list[int]]]
) -> None:
    chosen = {op: implementation for op in registry.operator_names() if implementation in registry.implementations(op)}
    try:
        engine = Engine(
            LaunchConfig(model=str(tiny_model), max_batch=6, max_model_len=256, threads=1, operators=chosen)
        )
    except EngineError as error:
        if "cannot run on this machine" in str(error):
            pytest.skip(str(error))
        raise
    requests, expected = oracle
    assert greedy(engine, requests, NEW_TOKENS) == expected


VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "no grouping": {"num_key_value_heads": 4},
    "one key-value head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 32},
    "other constants": {"rope_theta": 500000.0, "rms_norm_eps": 1e-3},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m", seed=3, **VARIANTS[name])
    _compare_logits(folder)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_scaled_rotary_positions_are_those_of_transformers(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": scaling}))
    _compare_logits(folder)


def _compare_logits(folder: Path, tolerance: float = 1e-4, tokens: list[int] | None = None) -> None:
    """Logits at every position of one sequence, longer than a scoring chunk."""
    ids = tokens or np.random.default_rng(1).integers(3, 300, 200).tolist()
    with torch.inference_mode():
        expected = transformers_model(folder)(torch.tensor([ids])).logits[0, :-1].numpy()
    engine = Engine(LaunchConfig(model=str(folder), max_model_len=512, threads=1))
    got = engine.scorer.score(ids[:1], ids[1:], logits=True).logits
    assert got is not None
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_smollm2_logits_and_tokens_are_those_of_transformers() -> None:
    try:
        checkpoint = Checkpoint.open("smollm2-135m")
    except EngineError as error:
        pytest.skip(str(error))
    model = transformers_model(checkpoint.folder)
    engine = Engine(LaunchConfig(max_batch=20, prefix_cache=True, prefill_chunk=64))
    texts = [request.prompt or "" for name in ("main", "heldout") for request in read_workload(name)[1]][:20]
    requests = [engine.tokenizer.encode(text) for text in texts]
    assert len(requests) == 20
    _compare_logits(checkpoint.folder, 2e-3, requests[2] + requests[4])
    for prompt, tokens in zip(requests, greedy(engine, requests, NEW_TOKENS), strict=True):
        assert len(tokens) == NEW_TOKENS
        assert tokens == most_likely(model, prompt, tokens)


@torch.inference_mode()
def most_likely(model: Any, prompt: list[int], tokens: list[int]) -> list[int]:
    """What the model holds most likely at the place of each token, given those before it. Where these are the tokens
    themselves, its own greedy continuation is the same, by induction; one pass shows what would take one for each.
    """
    logits = model(torch.tensor([prompt + tokens])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
