"""A test bed for probes: private copies of the engine on the tiny model, a small workload, questions about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from feedback.evidence import EvidenceStore
from feedback.probe import Context, Question, Tree
from feedback.statistics import NoiseFloor
from feedback.workers.pool import Limits, WorkerPool
from tests.feedback.planted import copy_target
from tests.tiny_model import make_tiny_llama

ADAPTER = "target_engine.adapter"
CHECKOUT = Path(__file__).resolve().parents[2]
WORDS = ("the quick brown fox ", "engines compute tokens ", "in blocks and then ")

#: A floor as a quiet machine has it, for questions whose answer does not depend on it.
QUIET = NoiseFloor(sd_log=0.01, n=4, within=1e-5)


def write_workload(path: Path, count: int, tokens: int, **more: Any) -> Path:
    """`count` requests of 4 to 16 words and `tokens` output tokens each."""
    rows: list[dict[str, Any]] = [{"workload": path.stem, "version": 1}]
    rows += [
        {"id": f"r{i}", "prompt": WORDS[i % 3] * (1 + i % 4), "max_tokens": tokens, "ignore_eos": True, **more}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@dataclass
class Bed:
    """Makes trees and questions. `base` is the engine as it is, with four slots and one thread."""

    folder: Path
    pool: WorkerPool
    model: Path

    def config(self, **changes: Any) -> dict[str, Any]:
        plain = {"model": str(self.model), "dtype": "float32", "max_batch": 4, "max_model_len": 256, "threads": 1}
        return plain | changes

    def tree(self, name: str, plant: Callable[[Path], Any] | None = None, **config: Any) -> Tree:
        """A copy of the engine under `name`, edited by `plant`; made once a name."""
        root = self.folder / name
        if not root.exists():
            copy_target(self.folder / "pristine", root)
            if plant is not None:
                plant(root)
        return Tree(root, name, self.config(**config))

    def question(self, candidate: Tree, workload: Path, base: Tree | None = None, **more: Any) -> Question:
        trusted = self.tree("trusted", max_batch=1)
        values: dict[str, Any] = {"kind": "code", "changed": (), "seed": 7}
        return Question(
            "h1", base or self.tree("base"), candidate, trusted, ADAPTER, workload=workload, **(values | more)
        )

    def context(self, noise: NoiseFloor | None = QUIET) -> Context:
        return Context(self.pool, EvidenceStore(self.folder / "evidence"), noise)

    def evidence(self, id: str | None, name: str = "finding.json") -> Any:
        assert id is not None
        return json.loads((self.folder / "evidence" / id / name).read_text())


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One pool of workers for a module of tests."""
    folder = tmp_path_factory.mktemp("bed")
    copy_target(CHECKOUT, folder / "pristine")  # all trees differ by their plants alone
    with WorkerPool(ADAPTER, Limits(call_seconds=60)) as pool:
        yield Bed(folder, pool, make_tiny_llama(folder / "model"))


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on the machine, no unit counts as disturbed: for tests whose answer is not a time."""
    monkeypatch.setattr("feedback.units.DISTURBED_SHARE", 1.0)
