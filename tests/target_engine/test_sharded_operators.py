"""What the engine tells a judge of its sharded operators: pieces, what each rank must give, every step of the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.target import OperatorPlan, Sharded, Shardings
from target_engine.adapter import create
from target_engine.ops import registry
from target_engine.ops.specification import Arrays
from tests.target_engine.hybrid_model import make_hybrid

PAIRS = [
    (name, sharding.name) for name in registry.operator_names() for sharding in registry.specification(name).shardings
]
PLAIN: dict[str, Any] = {"exact": [], "wide": False, "patience": 20.0, "serial": False}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid(tmp_path_factory.mktemp("models") / "hybrid")


@pytest.fixture(scope="module")
def config(hybrid: Path) -> dict[str, Any]:
    return {"model": str(hybrid), "max_model_len": 256, "threads": 1, "tp": 2, "cp": 2}


def cases(operator: str, sharding: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    found = Shardings.model_validate(create().operator_shardings(operator, config))
    own = next(item for item in found.shardings if item.name == sharding).cases
    specified = [
        {"name": case.name, "dims": case.dims, "distribution": case.distribution, "tags": list(case.tags)}
        for case in registry.specification(operator).cases
    ]
    return [*(case.model_dump() for case in own), *specified]


def error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got.astype(np.float64) - want).max(initial=0.0))


def test_it_answers_what_is_optional(config: dict[str, Any]) -> None:
    assert isinstance(create(), Sharded)
    plan = OperatorPlan.model_validate(create().operator_plan(config))
    assert {"tp", "cp", None} == {row.axis for row in plan.rows}
    assert plan.unsharded == {name: config[name] for name in ("model", "max_model_len", "threads")}
    assert not plan.problems


@pytest.mark.parametrize(
    ("change", "parameter"), [({"tp": 3}, "tp"), ({"cp": 600}, "cp"), ({"cp": 1, "layer_split": True}, "layer_split")]
)
def test_a_plan_that_cannot_run_has_problems_and_no_rows(
    config: dict[str, Any], change: dict[str, Any], parameter: str
) -> None:
    plan = OperatorPlan.model_validate(create().operator_plan(config | change))
    assert parameter in {problem.parameter for problem in plan.problems}
    assert not plan.rows


def test_every_cut_of_the_plan_is_described_with_cases_of_the_models_heads(config: dict[str, Any]) -> None:
    plan = OperatorPlan.model_validate(create().operator_plan(config))
    for row in plan.rows:
        known = Shardings.model_validate(create().operator_shardings(row.operator, config))
        assert bool(known.shardings) != bool(known.unsharded)
        if row.sharding is not None:
            info = next(item for item in known.shardings if item.name == row.sharding)
            assert info.cases, row
            assert info.steps == row.steps


@pytest.mark.parametrize(("operator", "sharding"), PAIRS)
def test_exact_pieces_give_what_the_question_expects_after_every_step(
    operator: str, sharding: str, config: dict[str, Any]
) -> None:
    target, asked, stepped = create(), 0, set()
    steps = next(item.steps for item in registry.specification(operator).shardings if item.name == sharding)
    for number, case in enumerate(cases(operator, sharding, config)):
        if "layers" in case["name"] or case["dims"].get("N", 0) > 300:
            continue
        inputs = target.operator_inputs(operator, case, config, number)
        for ranks in (3, 2):
            question = target.sharded_question(operator, sharding, case, config, inputs, ranks, number)
            if "refused" not in question:
                break
        else:
            continue
        wide = [
            {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in p.items()} for p in question["pieces"]
        ]
        answer = target.sharded_run(operator, sharding, case, config, wide, PLAIN | {"exact": ["*"], "wide": True})
        assert "failed" not in answer, answer
        for want, got in zip(question["expected"], answer["ranks"], strict=True):
            assert set(got) == set(want)
            assert all(error(got[name], want[name]) < 1e-9 for name in want), case
        assert answer["changed"] == [[]] * ranks
        for want, got in zip(question["steps"] or [{}] * ranks, answer["steps"], strict=True):
            assert set(got) == set(want), "the reference tells every step that is recorded"
            stepped |= set(got)
            for step, arrays in want.items():
                assert {name: error(got[step][name], array) < 1e-9 for name, array in arrays.items()} == dict.fromkeys(
                    arrays, True
                ), (case, step)
        asked += 1
    assert asked >= 8
    assert {*stepped, "output"} == set(steps)


def test_ranks_that_hold_the_same_elements_are_told(config: dict[str, Any]) -> None:
    target = create()
    case = next(case for case in cases("attention_prefill", "heads", config) if case["name"] == "one-prompt")
    inputs = target.operator_inputs("qkv_projection", q := cases("qkv_projection", "heads", config)[0], config, 1)
    copies = target.sharded_question("qkv_projection", "heads", q, config, inputs, 4, 0)["copies"]
    assert set(copies[0]) == {"k", "v"}
    np.testing.assert_array_equal(copies[0]["k"], copies[1]["k"])
    assert not set(copies[0]["k"].ravel()) & set(copies[2]["k"].ravel())
    inputs = target.operator_inputs("attention_prefill", case, config, 1)
    assert target.sharded_question("attention_prefill", "heads", case, config, inputs, 2, 0)["copies"] == [{}, {}]


@pytest.mark.parametrize(
    ("operator", "sharding"), [("kda_chunk", "context"), ("short_convolution", "context"), ("linear", "head_rows")]
)
def test_inputs_of_the_running_model_can_be_cut_too(config: dict[str, Any], operator: str, sharding: str) -> None:
    target = create()
    found = target.captured_inputs(config, list(range(3, 40)))
    assert not found["left_out"], "a decode step follows the prompt, so that every operator is called"
    calls = [call for call in found["calls"] if call["operator"] == operator]
    assert calls[0]["case"]["name"] == "captured-0"
    assert len(calls) == (1 if operator == "kda_chunk" else 2), "layers share what has no constants"
    for call in calls:
        case, inputs = call["case"], call["inputs"]
        assert case["dims"].get("N", 37) == 37
        question = target.sharded_question(operator, sharding, case, config, inputs, 2, 0)
        answer = target.sharded_run(operator, sharding, case, config, question["pieces"], PLAIN)
        for got, want in zip(answer["ranks"], question["expected"], strict=True):
            assert all(error(got[name], want[name]) < 1e-4 for name in want)


def test_a_float64_merge_alone_makes_no_difference_to_a_right_one(config: dict[str, Any]) -> None:
    target = create()
    case = next(case for case in cases("kda_chunk", "context", config) if case["name"] == "weak-decay")
    inputs = target.operator_inputs("kda_chunk", case, config, 3)
    question = target.sharded_question("kda_chunk", "context", case, config, inputs, 4, 0)

    def worst(**options: Any) -> float:
        answer = target.sharded_run("kda_chunk", "context", case, config, question["pieces"], PLAIN | options)
        assert set(answer["used"]) == {"kda_chunk", "kda_local_state", "kda_state_merge"}
        pairs = zip(answer["ranks"], question["expected"], strict=True)
        return max(error(got["out"], want["out"]) for got, want in pairs)

    plain, merged, wide = worst(), worst(exact=["kda_state_merge"]), worst(wide=True)
    assert plain < 1e-5
    assert merged < 1e-5
    assert wide < 1e-12


def test_a_rank_that_raises_or_hangs_is_named_in_time(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from target_engine.ops.linear import parallel

    target, usual = create(), parallel.run
    case = cases("linear", "rows", config)[0]
    inputs = target.operator_inputs("linear", case, config, 1)
    pieces = target.sharded_question("linear", "rows", case, config, inputs, 2, 0)["pieces"]

    def raises(*arguments: Any) -> Arrays:
        if arguments[4].rank == 1:
            raise ZeroDivisionError("planted")
        return usual(*arguments)

    def hangs(*arguments: Any) -> Arrays:
        if arguments[4].rank == 1:
            time.sleep(3.0)
        return usual(*arguments)

    monkeypatch.setattr(parallel, "run", raises)
    answer = target.sharded_run("linear", "rows", case, config, pieces, PLAIN)
    assert answer["failed"] == "rank 1 of 2: ZeroDivisionError: planted"
    assert set(answer["steps"][0]) == {"partial"}
    monkeypatch.setattr(parallel, "run", hangs)
    for serial in (False, True):
        began = time.monotonic()
        answer = target.sharded_run("linear", "rows", case, config, pieces, PLAIN | {"patience": 0.5, "serial": serial})
        assert answer["failed"] == "rank 1 of 2 did not come to all_reduce of [4, 32] within 0.5 s"
        assert time.monotonic() - began < 3.0


@pytest.mark.parametrize("layout", [{"tp": 2, "cp": 1}, {"tp": 1, "cp": 3}, {"tp": 2, "cp": 2, "layer_split": True}])
def test_what_flows_between_layers_is_the_same_on_simulated_ranks(hybrid: Path, layout: dict[str, Any]) -> None:
    plain = {"model": str(hybrid), "max_model_len": 256, "threads": 1}
    tokens = np.random.default_rng(5).integers(3, 300, 141).tolist()
    whole, cut = create().start(plain), create().start_simulated(plain | layout)
    layers = whole.hidden(tokens, 0)["layers"]
    assert layers == 3
    for layer in range(layers + 1):
        want, got = whole.hidden(tokens, layer)["hidden"], cut.hidden(tokens, layer)["hidden"]
        assert want.shape == (len(tokens), 32)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    scored = [
        session.score([{"prompt": tokens[:100], "output": tokens[100:]}], logits=True) for session in (whole, cut)
    ]
    np.testing.assert_allclose(scored[0]["logits"][0], scored[1]["logits"][0], rtol=1e-3, atol=1e-3)
    whole.close()
    cut.close()
