"""The engine: sampling by the request alone, endings, text, scores, counters, spans, and failure in mid-step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from target_engine.engine import Engine
from target_engine.errors import EngineError
from target_engine.execution.host import available_threads
from target_engine.execution.sampler import uniform
from target_engine.launch import LaunchConfig
from target_engine.scheduling.request import FinishReason, SamplingParams
from target_engine.spans import OPERATORS

PROMPTS = [[5, 9, 30, 31], [40] * 20, [7, 8, 9, 10, 11, 12, 13], [99], [100, 3, 100, 3, 100]]


def start(model: Path, **values: Any) -> Engine:
    return Engine(LaunchConfig(model=str(model), **({"max_model_len": 256, "threads": 1} | values)))


def run(engine: Engine) -> tuple[dict[str, list[int]], dict[str, str], dict[str, FinishReason]]:
    """Tokens, text and ending by request id."""
    tokens: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    endings: dict[str, FinishReason] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.request_id, []).append(output.token_id)
            texts[output.request_id] = texts.get(output.request_id, "") + output.text
            if output.finish_reason is not None:
                endings[output.request_id] = output.finish_reason
    engine.scheduler.check()
    return tokens, texts, endings


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return start(tiny_model)


SAMPLINGS = [
    SamplingParams(30, True, 1.0, 0, 1.0, seed=1),
    SamplingParams(30, True, 0.7, 20, 1.0, seed=2),
    SamplingParams(30, True, 1.3, 0, 0.8, seed=3),
    SamplingParams(30, True, 0.0),
    SamplingParams(30, True, 1.0, 50, 0.95, seed=1),
]


def sampled(engine: Engine) -> dict[str, list[int]]:
    for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        engine.add_request(str(index), prompt, sampling)
    return run(engine)[0]


def test_a_seed_gives_the_same_tokens_in_any_batch_and_after_preemption(tiny_model: Path) -> None:
    alone = sampled(start(tiny_model, max_batch=1))
    tight = start(tiny_model, max_batch=5, num_blocks=24, block_size=4, max_model_len=96, prefill_chunk=3)
    assert sampled(tight) == alone
    assert tight.metrics()["preemptions"] > 0
    assert sampled(start(tiny_model, max_batch=5, prefix_cache=True)) == alone


def test_seeds_differ_and_zero_temperature_does_not_draw(tiny_model: Path) -> None:
    engine = start(tiny_model)
    for seed in (1, 2):
        engine.add_request(f"hot{seed}", PROMPTS[0], SamplingParams(30, True, 1.0, seed=seed))
        engine.add_request(f"cold{seed}", PROMPTS[0], SamplingParams(30, True, 0.0, seed=seed))
    tokens = run(engine)[0]
    assert tokens["hot1"] != tokens["hot2"]
    assert tokens["cold1"] == tokens["cold2"]
    engine.add_request("k", PROMPTS[0], SamplingParams(30, True, 1.5, top_k=1, seed=9))
    engine.add_request("p", PROMPTS[0], SamplingParams(30, True, 0.5, top_p=1e-6, seed=9))
    tokens |= run(engine)[0]
    assert tokens["k"] == tokens["p"] == tokens["cold1"], "one candidate left is greedy"


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 10_000))
def test_the_random_number_depends_on_seed_and_position_alone(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) == uniform(seed, position)


def test_draws_follow_the_distribution(engine: Engine) -> None:
    """Each probability of the first token against the frequency in 3000 draws, five standard errors wide."""
    logits = torch.tensor(engine.scorer.score([5, 9, 30], [0], logits=True).logits[0])
    expected = (logits / 1.5).softmax(-1)
    draws = 3000
    found = engine.runner.make("sampling")(
        logits.expand(draws, -1).contiguous(),
        torch.full((draws,), 1.5),
        torch.zeros(draws, dtype=torch.int64),
        torch.ones(draws),
        torch.tensor([uniform(1, position) for position in range(draws)]),
    )
    frequency = torch.bincount(found, minlength=len(expected)) / draws
    assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt() + 1 / draws).all()


def test_an_end_token_ends_unless_it_is_ignored(tiny_model: Path) -> None:
    engine = start(tiny_model)
    engine.add_request("free", PROMPTS[0], SamplingParams(20, ignore_eos=True))
    free = run(engine)[0]["free"]
    engine.tokenizer.eos_token_ids = frozenset({free[7]})
    engine.add_request("ends", PROMPTS[0], SamplingParams(20))
    engine.add_request("ignores", PROMPTS[0], SamplingParams(20, ignore_eos=True))
    tokens, _, endings = run(engine)
    assert tokens["ends"] == free[: free.index(free[7]) + 1]
    assert tokens["ignores"] == free
    assert endings == {"ends": FinishReason.STOP, "ignores": FinishReason.LENGTH}


def test_a_stop_string_ends_and_is_not_in_the_text(tiny_model: Path) -> None:
    engine = start(tiny_model)
    engine.add_request("free", PROMPTS[2], SamplingParams(40, ignore_eos=True), text=True)
    tokens, texts, _ = run(engine)
    whole = texts["free"]
    assert whole == engine.tokenizer.decode(tokens["free"])
    stop = whole[10:13]
    engine.add_request("stops", PROMPTS[2], SamplingParams(40, ignore_eos=True, stop=("never there", stop)))
    tokens, texts, endings = run(engine)
    assert texts["stops"] == whole[: whole.index(stop)]
    assert endings["stops"] is FinishReason.STOP
    assert len(tokens["stops"]) < 40


def test_the_longest_sequence_ends_a_request(tiny_model: Path) -> None:
    engine = start(tiny_model, max_model_len=32)
    engine.add_request("long", [9] * 20, SamplingParams(1000, ignore_eos=True))
    tokens, _, endings = run(engine)
    assert len(tokens["long"]) == 12
    assert endings["long"] is FinishReason.LENGTH


def test_abort_ends_at_once_and_leaves_no_block(tiny_model: Path) -> None:
    engine = start(tiny_model, max_batch=2)
    for index in range(4):
        engine.add_request(str(index), PROMPTS[index], SamplingParams(30, ignore_eos=True), text=True)
    engine.step()
    assert engine.abort("0")
    assert engine.abort("3"), "one that still waits"
    assert not engine.abort("0")
    assert not engine.abort("unknown")
    assert set(run(engine)[0]) == {"1", "2"}
    assert engine.pool.held == 0
    assert not engine._texts


def test_requests_that_cannot_be_served_are_refused_by_name(tiny_model: Path) -> None:
    engine = start(tiny_model, max_model_len=32, num_blocks=2)
    with pytest.raises(EngineError, match=r"request r: token 300 is not in the vocabulary of 300"):
        engine.add_request("r", [300], SamplingParams(1))
    with pytest.raises(EngineError, match=r"request r: its prompt of 40 tokens"):
        engine.add_request("r", [9] * 40, SamplingParams(1))
    with pytest.raises(EngineError, match=r"request r: the prompt has no tokens"):
        engine.add_request("r", [], SamplingParams(1))
    engine.add_request("r", [9], SamplingParams(1))
    with pytest.raises(EngineError, match=r"request r: its id is in use"):
        engine.add_request("r", [9], SamplingParams(1))


def test_starting_errors_are_one_line(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="max_model_len 4096 is longer than the model's 512"):
        start(tiny_model, max_model_len=4096)
    with pytest.raises(EngineError, match=r"no memory for .* KV blocks"):
        start(tiny_model, num_blocks=2**31 - 1)


def test_scores_agree_with_generation_and_with_themselves(tiny_model: Path) -> None:
    engine = start(tiny_model)
    engine.add_request("r", PROMPTS[1], SamplingParams(150, ignore_eos=True))
    output = run(engine)[0]["r"]
    score = engine.scorer.score(PROMPTS[1], output, logits=True)
    assert score.best == output, "what was generated greedily is what is most likely"
    assert score.logprob == pytest.approx(score.best_logprob)
    assert score.logits is not None
    assert score.logits.shape == (150, 300)
    exact = torch.tensor(score.logits).double().log_softmax(-1).gather(1, torch.tensor(output)[:, None]).squeeze(1)
    assert score.logprob == pytest.approx(exact.tolist(), abs=1e-6)
    other = engine.scorer.score(PROMPTS[1], [(token + 1) % 300 for token in output])
    assert other.logits is None
    assert all(
        math.isfinite(value) and value <= best for value, best in zip(other.logprob, other.best_logprob, strict=True)
    )
    with pytest.raises(EngineError, match="at least one prompt token"):
        engine.scorer.score([], [1])
    with pytest.raises(EngineError, match=r"not in the vocabulary"):
        engine.scorer.score([1], [300])


def test_scoring_does_not_disturb_running_requests(tiny_model: Path) -> None:
    engine = start(tiny_model)
    engine.add_request("quiet", PROMPTS[0], SamplingParams(20, ignore_eos=True))
    quiet = run(engine)[0]["quiet"]
    engine.add_request("busy", PROMPTS[0], SamplingParams(20, ignore_eos=True))
    tokens = []
    while engine.has_work:
        tokens += [output.token_id for output in engine.step()]
        engine.scorer.score([11, 12], [13, 14, 15])
    assert tokens == quiet


def test_counters_are_exact(tiny_model: Path) -> None:
    engine = start(tiny_model, prefix_cache=True, block_size=4)
    for index in range(3):
        engine.add_request(str(index), [*[50] * 12, index], SamplingParams(6, ignore_eos=True))
        run(engine)
    metrics = engine.metrics()
    assert metrics["prompt_tokens"] == 39
    assert metrics["cached_prompt_tokens"] == 24, "three full blocks, twice"
    assert metrics["output_tokens"] == 18
    assert metrics["steps"] == metrics["batch_rows"] == 18
    assert metrics["scheduled_tokens"] == 39 - 24 + 3 * 5
    assert metrics["kv_bytes"] == metrics["kv_blocks"] * 4 * 2 * 2 * 2 * 16 * 4
    assert metrics["weight_bytes"] in weight_bytes(tiny_model)


def weight_bytes(model: Path) -> tuple[int, int]:
    """Of the checkpoint and the rotary frequencies in float32; and with a second, laid-out copy of the tied table."""
    tensors = load_file(model / "model.safetensors")
    once = sum(tensor.numel() * 4 for tensor in tensors.values()) + 4 * 8
    return once, once + tensors["model.embed_tokens.weight"].numel() * 4


def test_packed_weights_are_counted_and_the_plain_ones_are_gone(tiny_model: Path) -> None:
    plain, with_table = weight_bytes(tiny_model)
    chosen = {"linear": "prepacked", "qkv_projection": "fused", "gate_up_projection": "fused"}
    assert start(tiny_model, operators=chosen).metrics()["weight_bytes"] in (plain, with_table)
    chosen["lm_head"] = "prepacked"
    assert start(tiny_model, operators=chosen).metrics()["weight_bytes"] == with_table


def test_spans_nest_and_cover_the_step(tiny_model: Path) -> None:
    engine = start(tiny_model, span_level=OPERATORS, prefill_chunk=8)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, SamplingParams(5, ignore_eos=True))
    run(engine)
    spans = engine.spans.drain()
    steps = {span.step: span for span in spans if span.category == "step"}
    assert len(steps) == engine.metrics()["steps"]
    assert sum(span.attributes["rows"] for span in steps.values()) == engine.metrics()["batch_rows"]
    assert {span.name for span in spans if span.category == "phase"} == {
        *("schedule", "prepare", "prefill", "decode", "mixed", "sample", "postprocess")
    }
    for span in spans:
        assert steps[span.step].start_ns <= span.start_ns <= span.end_ns <= steps[span.step].end_ns
    names = {span.name for span in spans if span.category == "op"}
    assert names >= {"embedding", "rms_norm", "qkv_projection", "attention_prefill", "attention_decode", "sampling"}
    engine.spans.level = 0
    engine.add_request("x", PROMPTS[0], SamplingParams(3, ignore_eos=True))
    run(engine)
    assert not len(engine.spans)


def test_a_step_that_fails_loses_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start(tiny_model)
    engine.add_request("r", PROMPTS[0], SamplingParams(10, ignore_eos=True))
    undisturbed = run(engine)[0]["r"]
    engine.add_request("r", PROMPTS[0], SamplingParams(10, ignore_eos=True))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert run(engine)[0]["r"] == undisturbed[1:]
    assert engine.step() == [], "a step without work is no step"


def test_threads_come_from_the_configuration_or_the_environment(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    try:
        start(tiny_model, threads=3)
        assert torch.get_num_threads() == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        start(tiny_model, threads=0)
        assert torch.get_num_threads() == available_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert available_threads() >= 1
    finally:
        torch.set_num_threads(before)


@settings(max_examples=15)
@given(data=st.data())
def test_bfloat16_stays_close_to_float32(data: st.DataObject, tiny_model: Path) -> None:
    """Not equal tokens, but the same distribution: a mean divergence far below what a wrong operator gives."""
    ids = data.draw(st.lists(st.integers(3, 299), min_size=20, max_size=60))
    exact = start(tiny_model).scorer.score(ids[:1], ids[1:], logits=True).logits
    half = start(tiny_model, dtype="bfloat16").scorer.score(ids[:1], ids[1:], logits=True).logits
    p, q = (torch.tensor(logits).double().log_softmax(-1) for logits in (exact, half))
    assert (p.exp() * (p - q)).sum(-1).mean() < 0.01
