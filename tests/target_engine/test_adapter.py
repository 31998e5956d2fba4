"""The engine as its judge sees it: every answer parses as the wire model that the protocol asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.target import (
    PROTOCOL_VERSION,
    ConfigProblem,
    Description,
    FileEntry,
    OperatorInfo,
    Role,
    Scored,
    Session,
    StepReport,
    Target,
)
from target_engine.adapter import PROFILE, create
from target_engine.launch import LaunchConfig, problems


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> dict[str, Any]:
    return {"model": str(tiny_model), "max_model_len": 256, "threads": 1}


@pytest.fixture
def session(config: dict[str, Any]) -> Any:
    session = create().start(config)
    yield session
    session.close()


def test_it_satisfies_the_protocol(config: dict[str, Any], session: Any) -> None:
    assert isinstance(create(), Target)
    assert isinstance(session, Session)


def test_the_description_is_true(trusted_root: Path) -> None:
    described = Description.model_validate(create().describe())
    assert described.protocol_version == PROTOCOL_VERSION
    for workload in described.workloads:
        assert (trusted_root / workload.path).is_file()
    assert [workload.name for workload in described.workloads if workload.held_out] == ["heldout"]
    assert described.profile_path == PROFILE
    assert {parameter.name for parameter in described.launch_space} >= {"dtype", "max_batch", "operators.linear"}


def test_files_have_their_roles(trusted_root: Path) -> None:
    roles = {entry.path: entry.role for entry in map(FileEntry.model_validate, create().files())}
    assert all((trusted_root / path).is_file() for path in roles)
    assert roles["target_engine/ops/linear/torch.py"] is Role.EDITABLE
    assert roles["target_engine/models/llama.py"] is Role.EDITABLE
    assert roles["target_engine/engine.py"] is Role.EDITABLE
    for path, role in roles.items():
        judged = path.endswith(("spec.py", "reference.py", "adapter.py", "spans.py", ".jsonl", "nll.txt", "paged.py"))
        if judged:
            assert role is Role.PROTECTED, path
    # The package ships no run profile; a branch that a run's moves were applied to has one.
    assert roles.get(PROFILE) is (Role.PROFILE if (trusted_root / PROFILE).exists() else None)
    assert not any("__pycache__" in path for path in roles)
    sources = {path.relative_to(trusted_root).as_posix() for path in (trusted_root / "target_engine").rglob("*.py")}
    assert {path for path in roles if path.endswith(".py")} == sources


def test_problems_are_wire_problems() -> None:
    found = [ConfigProblem.model_validate(item) for item in create().validate_config({"dtype": "int4", "slots": 3})]
    assert {item.parameter for item in found} == {"dtype", "slots"}
    assert create().validate_config({}) == []


def test_operators_are_described_with_the_models_sizes(config: dict[str, Any]) -> None:
    infos = [OperatorInfo.model_validate(item) for item in create().operators(config)]
    assert len({info.role for info in infos}) == len(infos)
    for info in infos:
        assert info.selected == "torch"
        assert set(info.files) == set(info.implementations)
        timed = [case for case in info.cases if "microbench" in case.tags]
        assert timed, info.name
        assert len({case.name for case in info.cases}) == len(info.cases)
    linear = next(info for info in infos if info.name == "linear")
    assert {"M": 64, "K": 128}.items() <= next(c for c in linear.cases if "microbench" in c.tags).dims.items()


def test_microbench_cases_make_inputs(config: dict[str, Any]) -> None:
    target = create()
    for info in map(OperatorInfo.model_validate, target.operators(config)):
        for case in info.cases:
            if "microbench" in case.tags:
                inputs = target.operator_inputs(info.name, case.model_dump(), config, 0)
                constants = {t.name: inputs[t.name] for t in info.tensors if t.kind == "constant"}
                handle = target.operator_open(info.name, config, case.model_dump(), constants)
                outputs = target.operator_run(handle, inputs)
                assert set(outputs) == {t.name for t in info.tensors if t.kind in ("output", "inout")}
                assert all(array.flags.c_contiguous for array in outputs.values())


def test_inputs_are_exact_in_the_compute_type(config: dict[str, Any]) -> None:
    case = {"name": "x", "dims": {"N": 5, "M": 6, "K": 7}}
    half = create().operator_inputs("linear", case, config | {"dtype": "bfloat16"}, 1)
    whole = create().operator_inputs("linear", case, config, 1)
    for name in ("weight", "x"):
        assert half[name].dtype == np.float32
        assert not (half[name].view(np.uint32) & 0xFFFF).any(), "more than 8 significant bits"
        np.testing.assert_allclose(half[name], whole[name], rtol=2**-8)


def test_read_only_inputs_and_inout_arrays_stay_as_they_are(config: dict[str, Any]) -> None:
    target = create()
    case = {"name": "x", "dims": {"N": 5, "X": 4, "S": 8, "G": 2, "D": 16}}
    inputs = target.operator_inputs("kv_write", case, config, 1)
    kept = {name: array.copy() for name, array in inputs.items()}
    for array in inputs.values():
        array.flags.writeable = False
    outputs = target.operator_run(target.operator_open("kv_write", config, case, {}), inputs)
    assert set(outputs) == {"k_cache", "v_cache"}
    assert not np.array_equal(outputs["k_cache"], kept["k_cache"])
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, kept[name])


def test_a_session_serves(session: Any) -> None:
    session.submit(
        [
            {"id": "text", "prompt": "the quick brown", "max_tokens": 6, "ignore_eos": True},
            {"id": "ids", "prompt_token_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 1.0},
            {"id": "gone", "prompt_token_ids": [5], "max_tokens": 50, "ignore_eos": True},
        ]
    )
    report = StepReport.model_validate(session.step(2))
    assert (report.steps, report.unfinished) == (2, 3)
    assert [len(item.token_ids) for item in report.progress] == [2, 2, 2]
    session.abort(["gone", "unknown"])
    report = StepReport.model_validate(session.step(100))
    assert report.steps == 4
    assert {item.id: item.finish_reason for item in report.progress} == {"text": "length", "ids": "length"}
    assert StepReport.model_validate(session.step(5)) == StepReport(steps=0, progress=(), unfinished=0)
    assert all(isinstance(value, int | float) for value in session.metrics().values())


def test_unseeded_requests_differ_and_repeat_with_the_session(config: dict[str, Any]) -> None:
    def draw() -> list[tuple[int, ...]]:
        session = create().start(config)
        hot = {"prompt_token_ids": [5, 6, 7], "max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
        session.submit([{"id": str(index), **hot} for index in range(2)])
        session.submit([{"id": "2", **hot}])
        report = StepReport.model_validate(session.step(100))
        return [item.token_ids for item in report.progress]

    first = draw()
    assert len(set(first)) == 3
    assert draw() == first


def test_submit_refuses_by_name_and_queues_nothing(session: Any) -> None:
    good = {"id": "good", "prompt_token_ids": [5], "max_tokens": 2}
    for bad, words in (
        ({"id": "bad", "max_tokens": 2}, "either prompt or prompt_token_ids"),
        ({"id": "bad", "prompt": "x", "prompt_token_ids": [1], "max_tokens": 2}, "either prompt or prompt_token_ids"),
        ({"id": "bad", "prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"id": "bad", "prompt": "x", "max_tokens": 2, "beams": 4}, "beams"),
        ({"id": "bad", "prompt_token_ids": [5000], "max_tokens": 2}, "vocabulary"),
        ({"id": "bad", "prompt_token_ids": [5] * 300, "max_tokens": 2}, "300 tokens"),
        (dict(good), "its id is in use"),
    ):
        with pytest.raises(ValueError, match=f"request {bad['id']}: .*{words}"):
            session.submit([good, bad])
        assert session.step(1)["unfinished"] == 0, "a refused submission queued something"


def test_scores_cross_as_wire_values(session: Any) -> None:
    sequences = [{"prompt": [5, 6], "output": [7, 8, 9]}, {"prompt": [10], "output": [11]}]
    result = session.score(sequences, logits=True)
    scored = [Scored.model_validate(item) for item in result["scored"]]
    assert [len(item.logprob) for item in scored] == [3, 1]
    assert [(array.shape, array.dtype.name) for array in result["logits"]] == [
        ((3, 300), "float32"),
        ((1, 300), "float32"),
    ]
    assert "logits" not in session.score(sequences)


def test_spans_are_drained_and_the_level_set(session: Any) -> None:
    assert session.spans(2) == {"version": 1, "rows": [], "dropped": 0}
    session.submit([{"id": "r", "prompt_token_ids": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}])
    session.step(10)
    assert {row[1] for row in session.spans(0)["rows"]} == {"step", "phase", "op"}
    assert session.spans()["rows"] == []


def test_tokenize_knows_text_and_turns(session: Any) -> None:
    plain, turn = session.tokenize(["a dog"])[0], session.tokenize(["a dog"], chat=True)[0]
    assert len(plain) < len(turn)
    assert turn[0] == 1, "the template opens with <|im_start|>"


def test_a_start_that_cannot_be_is_one_line(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^launch configuration: dtype: .*'int4'"):
        create().start(config | {"dtype": "int4"})
    with pytest.raises(ValueError, match="no such file or folder"):
        create().start(config | {"model": "/nowhere/model.gguf"})
    assert problems(LaunchConfig().model_dump()) == []
