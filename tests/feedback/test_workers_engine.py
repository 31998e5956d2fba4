"""The bundled engine in workers: torch forked warm, confined, and as good as unconfined."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feedback.probe import Tree
from feedback.target import Case, Description, FileEntry, OperatorInfo, Request
from feedback.workers.pool import Limits, WorkerFailure, WorkerPool
from tests.tiny_model import make_tiny_llama

CHECKOUT = Path(__file__).resolve().parents[2]
PROMPTS = ("the quick brown fox", "engines compute tokens", "a")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("target_engine.adapter", Limits(call_seconds=60)) as pool:
        yield pool


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A candidate's tree: the engine alone, as a workspace holds it, on the tiny model."""
    root = tmp_path_factory.mktemp("engine")
    shutil.copytree(CHECKOUT / "target_engine", root / "target_engine", ignore=shutil.ignore_patterns("__pycache__"))
    model = make_tiny_llama(root / "model")
    return Tree(root, "", {"model": str(model), "dtype": "float32", "max_model_len": 128, "threads": 1})


def generated(pool: WorkerPool, tree: Tree, role: str) -> dict[str, list[int]]:
    with pool.open(tree, role) as worker:  # type: ignore[arg-type]
        session = worker.start(tree.config)
        session.submit([Request(id=prompt, prompt=prompt, max_tokens=8, ignore_eos=True) for prompt in PROMPTS])
        tokens: dict[str, list[int]] = {prompt: [] for prompt in PROMPTS}
        while (report := session.step(8)).steps:
            for item in report.progress:
                tokens[item.id] += item.token_ids
            if not report.unfinished:
                break
        assert worker.imported().keys() >= {"target_engine/engine.py", "target_engine/adapter.py"}
        assert session.metrics()["output_tokens"] == 8 * len(PROMPTS)
        prompt = session.tokenize([PROMPTS[0]])[0]
        scores = session.score([{"prompt": prompt, "output": tokens[PROMPTS[0]]}], logits=True)
        assert list(scores.scored[0].best) == tokens[PROMPTS[0]]
        assert scores.logits[0].shape[0] == 8
        return tokens


def test_a_confined_engine_generates_what_the_trusted_one_does(pool: WorkerPool, tree: Tree) -> None:
    trusted = Tree(CHECKOUT, "", tree.config)
    assert generated(pool, tree, "candidate") == generated(pool, trusted, "oracle")


def test_the_checkout_is_out_of_a_candidates_sight(pool: WorkerPool, tree: Tree, tmp_path: Path) -> None:
    """The engine is installed from the checkout; a tree that leaves a file out must not find it there."""
    partial = tmp_path / "partial"
    shutil.copytree(tree.root / "target_engine", partial / "target_engine")
    (partial / "target_engine" / "spans.py").unlink()

    def used() -> None:
        with pool.open(Tree(partial, "", tree.config)) as worker:
            worker.start(tree.config)

    with pytest.raises(WorkerFailure, match=r"ModuleNotFoundError: No module named 'target_engine\.spans'"):
        used()


def test_descriptions_and_operators_parse(pool: WorkerPool, tree: Tree) -> None:
    with pool.open(tree) as candidate:
        Description.model_validate(candidate.call("describe"))
        assert candidate.call("validate_config", tree.config) == []
        entries = [FileEntry.model_validate(row) for row in candidate.call("files")]
        assert "target_engine/engine.py" in {entry.path for entry in entries}
        infos = {info.name: info for info in map(OperatorInfo.model_validate, candidate.call("operators", tree.config))}
        norm = infos["rms_norm"]
        case: Case = norm.cases[0]
        sets = [candidate.call("operator_inputs", norm.name, case.model_dump(), tree.config, n) for n in range(8)]
        names = [tensor.name for tensor in norm.tensors if tensor.kind == "constant"]
        constants = {name: sets[0][name] for name in names}
        handle = candidate.call("operator_open", norm.name, tree.config, case.model_dump(), constants)
        runtime = [{name: array for name, array in one.items() if name not in names} for one in sets]
        batch = candidate.operator_batch(handle, runtime, repeat=2)
        assert batch.mutated == ()
        for index, outputs in zip(batch.order, batch.outputs, strict=True):
            expected = candidate.call(
                "operator_reference", norm.name, case.model_dump(), tree.config, runtime[index] | constants
            )
            for name, array in outputs.items():
                assert np.allclose(array, expected[name], rtol=1e-4, atol=1e-5)
