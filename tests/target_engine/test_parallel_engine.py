"""The engine over simulated ranks: tokens and scores are those of one rank, under any plan, batch and chunking."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from target_engine import cli
from target_engine.engine import Engine
from target_engine.errors import EngineError, RankFailure
from target_engine.execution.reference import ReferenceRunner
from target_engine.execution.runner import Runner
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.parallel import strategy
from target_engine.parallel.rank import Sharded
from target_engine.parallel.threads import ThreadedRunner, _difference
from target_engine.parallel.topology import Topology
from target_engine.parallel.weights import LocalWeights, local_config
from target_engine.scheduling.request import SamplingParams
from target_engine.weights import Weights
from tests.target_engine.hybrid_model import make_hybrid
from tests.tiny_model import make_tiny_llama

SHARED = [(13 * index) % 290 + 3 for index in range(19)]
PROMPTS = [[5, 9, 30, 31], [*SHARED, 40, 41], [*SHARED, 7], [99], [100, 3, 100, 3, 100]]
PLANS = [(2, 1, False), (4, 1, False), (1, 2, False), (1, 3, True), (1, 4, False), (2, 2, True), (2, 3, False)]


def start(model: Path, threaded: bool = True, **values: Any) -> Engine:
    config = LaunchConfig(
        model=str(model), **({"max_model_len": 64, "threads": 1, "block_size": 4, "max_batch": 5} | values)
    )
    return Engine(config, runner=ThreadedRunner.open) if threaded else Engine(config)


def greedy(engine: Engine, count: int = 9) -> dict[str, list[int]]:
    """Tokens by request id, of all prompts at once."""
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, SamplingParams(count, ignore_eos=True))
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.request_id, []).append(output.token_id)
        engine.scheduler.check()
    return tokens


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine query heads on three key-value heads, which neither two nor four ranks divide, as SmolLM2 has them."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    return make_tiny_llama(folder, num_attention_heads=9, num_key_value_heads=3, head_dim=8, vocab_size=301)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid") / "model"
    layers = ["kda", "full", "kda", "full"]
    return make_hybrid(folder, seed=3, linear_num_heads=4, layer_types=layers, num_hidden_layers=len(layers))


@pytest.fixture(scope="module")
def alone(llama: Path, hybrid: Path) -> dict[str, Any]:
    """Tokens and scores on one rank."""
    found = {}
    for name, model in (("llama", llama), ("hybrid", hybrid)):
        engine = start(model, threaded=False)
        tokens = greedy(engine)
        found[name] = tokens, engine.scorer.score(PROMPTS[1], tokens["1"], logits=True)
    return found


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"tp{plan[0]}-cp{plan[1]}{'-layers' * plan[2]}")
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_any_plan_gives_the_tokens_of_one_rank(
    name: str, plan: tuple[int, int, bool], request: pytest.FixtureRequest, alone: dict[str, Any]
) -> None:
    tp, cp, layer_split = plan
    model, (tokens, score) = request.getfixturevalue(name), alone[name]
    engine = start(model, tp=tp, cp=cp, layer_split=layer_split)
    assert greedy(engine) == tokens
    assert start_small(model, plan) == tokens, "in chunks, short of blocks"
    found = engine.scorer.score(PROMPTS[1], tokens["1"], logits=True)
    assert np.abs(found.logits - score.logits).max() < 1e-4
    assert greedy(engine) == tokens, "states and caches of the last requests leave nothing behind"


def start_small(model: Path, plan: tuple[int, int, bool]) -> dict[str, list[int]]:
    """Tokens with prefills in pieces of five tokens among decodes, too few blocks, and shared prefixes reused."""
    tp, cp, layer_split = plan
    tight = {"prefill_chunk": 5, "num_blocks": 12, "max_model_len": 48, "prefix_cache": True, "max_batch": 4}
    engine = start(model, tp=tp, cp=cp, layer_split=layer_split, **tight)
    tokens = greedy(engine)
    assert engine.metrics()["preemptions"] > 0
    return tokens


def test_ranks_keep_parts_of_weights_and_caches(llama: Path, hybrid: Path) -> None:
    one = start(llama, threaded=False).metrics()
    split = start(llama, cp=2, layer_split=True).metrics()
    assert split["kv_bytes"] == one["kv_bytes"], "a layer's keys and values lie on one rank"
    assert start(llama, cp=2).metrics()["kv_bytes"] == 2 * one["kv_bytes"]
    assert start(llama, tp=2).metrics()["kv_bytes"] == one["kv_bytes"], "whole key-value heads, dealt out"
    assert start(llama, tp=4).metrics()["kv_bytes"] == one["kv_bytes"] * 5 // 3, "some copied"
    norms = 5 * 64 * 4
    assert start(llama, tp=2).metrics()["weight_bytes"] - one["weight_bytes"] <= 2 * norms
    states = start(hybrid, threaded=False).runner.state_bytes()
    assert start(hybrid, tp=4).runner.state_bytes() == states


def test_weights_of_the_ranks_are_the_weights(llama: Path) -> None:
    config = ModelConfig.load(llama)
    with Weights(llama, config, torch.float32) as whole:
        parts = [LocalWeights(whole, Topology(2, 1, rank)) for rank in range(2)]
        for name, axis in (
            ("model.embed_tokens.weight", 0),
            ("model.layers.0.self_attn.q_proj.weight", 0),
            ("model.layers.0.self_attn.k_proj.weight", 0),
            ("model.layers.1.self_attn.o_proj.weight", 1),
            ("model.layers.1.mlp.down_proj.weight", 1),
            ("model.layers.1.mlp.up_proj.weight", 0),
        ):
            assert torch.equal(torch.cat([part[name] for part in parts], axis), whole[name]), name
        assert torch.equal(parts[1]["model.norm.weight"], whole["model.norm.weight"])
    assert [local_config(config, Topology(2, 1, rank)).num_heads for rank in range(2)] == [6, 3]
    assert [local_config(config, Topology(4, 1, rank)).num_kv_heads for rank in range(4)] == [1, 1, 2, 1]


def test_a_rank_that_computes_something_else_is_found(llama: Path) -> None:
    engine = start(llama, cp=2)
    norm = engine.runner.others[0].model.final_norm.implementation.inner
    norm.weight = norm.weight * 1.5
    line = r"^rank 1 of 2 has other logits than rank 0: they differ by up to \S+ in row \d of \d, where \S+ is allowed"
    with pytest.raises(RankFailure, match=line):
        greedy(engine)


def test_a_difference_is_told_by_row_even_where_it_is_no_number() -> None:
    first = torch.zeros(3, 4)
    other = first.clone()
    other[1, 2] = 0.5
    assert _difference(other, first, 0.001).startswith(
        "they differ by up to 0.5 in row 1 of 3, where 0.001 is allowed:"
    )
    other[2, 0] = torch.nan
    assert _difference(other, first, 0.001).startswith("they differ by up to inf in row 2 of 3")
    assert _difference(other[:2], first, 0.001).startswith("its shape is [2, 4], not [3, 4]:")


def cuts(runner: Runner) -> set[tuple[str, str]]:
    """Operator and sharding of everything that a rank runs cut, also within the combining code."""
    found: set[tuple[str, str]] = set()
    waiting = [operator.implementation for operator in runner.model.operators()]
    while waiting:
        made = waiting.pop()
        if isinstance(made, Sharded):
            found.add((made.sharding.operator, made.sharding.name))
            waiting += made._built.values()
    return found


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"tp{plan[0]}-cp{plan[1]}{'-layers' * plan[2]}")
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_what_runs_is_cut_as_the_plan_says(
    name: str, plan: tuple[int, int, bool], request: pytest.FixtureRequest
) -> None:
    tp, cp, layer_split = plan
    engine = start(request.getfixturevalue(name), tp=tp, cp=cp, layer_split=layer_split)
    greedy(engine, 2)
    rows = strategy.plan(engine.config, engine.model_config)
    planned = {(row.operator, row.sharding) for row in rows if row.sharding is not None}
    for rank, runner in enumerate([engine.runner, *engine.runner.others]):
        assert cuts(runner) == planned, rank


def test_states_have_the_slots_of_the_launch_configuration(hybrid: Path) -> None:
    for cached in (False, True):
        engine = start(hybrid, threaded=False, prefix_cache=cached)
        assert {tensor.shape[1] for tensor in engine.runner.caches.states} == {engine.config.state_slots}
        assert engine.states.num_slots == engine.config.state_slots


def test_a_runner_is_closed_when_the_engine_cannot_be_made(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Watched(ThreadedRunner):
        def close(self) -> None:
            closed.append(self)

    def broken(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("target_engine.engine.Scheduler", broken)
    with pytest.raises(MemoryError):
        Engine(LaunchConfig(model=str(llama), max_model_len=64, threads=1, tp=2), runner=Watched.open)
    assert len(closed) == 1


@pytest.mark.parametrize("command", [["chat"], ["profile", "smoke"]])
def test_commands_close_the_engine_whatever_happens(
    llama: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def step(engine: Engine) -> None:
        raise RankFailure("rank 1 of 2 died")

    monkeypatch.setattr(Engine, "close", lambda engine: closed.append(engine))
    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    settings = ["--profile", "first_run", "--model", str(llama), "--set", "max_model_len=256"]
    monkeypatch.setattr(sys, "argv", ["target-engine", *command, *settings])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert (leaving.value.code, len(closed)) == (1, 1)


class ExactThreads(ThreadedRunner, ReferenceRunner):
    """Simulated ranks that compute the references in float64."""

    rank_runner = ReferenceRunner


def test_without_rounding_there_is_no_difference(hybrid: Path) -> None:
    config = {"model": str(hybrid), "max_model_len": 64, "block_size": 4, "prefill_chunk": 9}
    one = Engine(LaunchConfig(**config), runner=ReferenceRunner.open)
    four = Engine(LaunchConfig(**config, tp=2, cp=2, layer_split=True), runner=ExactThreads.open)
    output = [7, 9, 11]
    want = one.scorer.score(PROMPTS[1], output, logits=True).logits
    found = four.scorer.score(PROMPTS[1], output, logits=True).logits
    assert found.dtype == np.float64
    assert np.abs(found - want).max() < 1e-11


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ({"tp": 10}, "plan: tp 10 is more than the model's 9 query heads: give at most 9"),
        ({"tp": 3}, "plan: tp 3 does not divide the intermediate size 128: give one of 1, 2, 4, 8"),
    ],
)
def test_a_wrong_plan_is_refused_before_any_work(llama: Path, plan: dict[str, int], line: str) -> None:
    with pytest.raises(EngineError, match=line):
        start(llama, **plan)
    with pytest.raises(EngineError, match=line):
        start(llama, threaded=False, **plan)
