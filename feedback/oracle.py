"""The trusted tree's answers: what is right, computed in a worker that no candidate code has ever been in.

One oracle serves all probes of a session (`Oracle.of`), its engine started when first needed. Answers that depend on
nothing but the trusted files, its launch configuration and the question are remembered for the whole process: the same
prompts scored for the tenth candidate cost nothing. They stay in the parent; no candidate is ever sent one.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedback.generation import generate
from feedback.guard import file_digest, protected_digests
from feedback.load.collect import Misreport
from feedback.load.metrics import RequestRecord
from feedback.probe import Tree
from feedback.remembering import MEMORY, Memory
from feedback.target import (
    Arrays,
    Case,
    ConfigProblem,
    Description,
    FileEntry,
    OperatorInfo,
    OperatorPlan,
    Request,
    Scored,
    Shardings,
    Unsupported,
)
from feedback.verdict import canonical_json
from feedback.workers.failures import WorkerFailure, lacks
from feedback.workers.handle import SessionHandle, Worker
from feedback.workers.pool import WorkerPool

__all__ = ["MEMORY", "Memory", "Oracle", "OracleFailure"]


class OracleFailure(Exception):
    """The trusted side failed, so nothing was learnt about the candidate; the text is one line."""


_ORACLES: weakref.WeakKeyDictionary[WorkerPool, dict[str, Oracle]] = weakref.WeakKeyDictionary()


class Oracle:
    """Answers of one trusted tree.

    All methods raise `OracleFailure` when its worker fails, `Unsupported` as the target does.
    """

    def __init__(self, pool: WorkerPool, tree: Tree) -> None:
        self._pool, self.tree = weakref.ref(pool), tree
        self._worker: Worker | None = None
        self._session: SessionHandle | None = None
        self._entries: tuple[FileEntry, ...] | None = None
        self._key = ""

    @classmethod
    def of(cls, pool: WorkerPool, tree: Tree) -> Oracle:
        """The session's oracle for this tree; made once per pool, and it ends with the pool."""
        known = _ORACLES.setdefault(pool, {})
        name = canonical_json([str(tree.root), tree.commit, tree.config])
        if name not in known:
            known[name] = cls(pool, tree)
        return known[name]

    def entries(self) -> tuple[FileEntry, ...]:
        """The trusted tree's files with their roles."""
        if self._entries is None:
            self._entries = tuple(FileEntry.model_validate(item) for item in self._call("files"))
        return self._entries

    def protected(self) -> dict[str, str]:
        """Path -> SHA-256 of the trusted tree's protected files."""
        return protected_digests(self.tree.root, self.entries())

    def description(self) -> Description:
        """What the target says of itself."""
        return self._remembered("describe", (), lambda: Description.model_validate(self._call("describe")))

    def problems(self, config: dict[str, Any]) -> tuple[ConfigProblem, ...]:
        """Why a launch configuration cannot start, as the trusted tree sees it."""
        found = self._remembered("problems", (config,), lambda: self._call("validate_config", config))
        return tuple(ConfigProblem.model_validate(item) for item in found)

    def known_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """`config` with every parameter that the trusted tree refuses set to the trusted configuration's own value.

        A candidate may select an implementation that only its own tree has; what is right does not depend on it.
        """
        known = dict(config)
        for _ in config:
            refused = {problem.parameter.split(".")[0] for problem in self.problems(known)} & known.keys()
            if not refused:
                break
            for name in refused:
                known.pop(name)
                if name in self.tree.config:
                    known[name] = self.tree.config[name]
        return known

    def operators(self, config: dict[str, Any]) -> tuple[OperatorInfo, ...]:
        """Specifications of the operators that run under `config`."""
        known = self.known_config(config)
        found = self._remembered("operators", (known,), lambda: self._call("operators", known))
        return tuple(OperatorInfo.model_validate(item) for item in found)

    def inputs(self, operator: str, case: Case, config: dict[str, Any], seed: int) -> Arrays:
        """Fresh inputs, constants included."""
        return self._call("operator_inputs", operator, case.model_dump(), config, seed)

    def reference(self, operator: str, case: Case, config: dict[str, Any], inputs: Arrays) -> Arrays:
        """Expected outputs and inout arrays."""
        return self._call("operator_reference", operator, case.model_dump(), config, inputs)

    def plan(self, config: dict[str, Any]) -> OperatorPlan:
        """Which operators run under `config`, and how each is cut over ranks; or what is wrong with it.

        Only implementations that the trusted tree does not have are replaced: a configuration whose ranks it refuses
        has no plan, and not the plan of another one.
        """
        known = self.known_config(config)
        tables = {problem.parameter.split(".")[0] for problem in self.problems(config) if "." in problem.parameter}
        asked = {name: value for name, value in config.items() if name not in tables}
        asked |= {name: known[name] for name in tables & known.keys()}
        found = self._remembered("plan", (asked,), lambda: self._optional("operator_plan", asked))
        return OperatorPlan.model_validate(found)

    def unavailable(self, config: dict[str, Any], operators: list[str]) -> dict[str, str]:
        """Operators that the trusted tree cannot run on this machine as `config` chooses, with the reason."""
        return dict(self._optional("unavailable_operators", config, operators))

    def shardings(self, operator: str, config: dict[str, Any]) -> Shardings:
        """All ways to cut an operator."""
        known = self.known_config(config)
        found = self._remembered(
            "shardings", (operator, known), lambda: self._optional("operator_shardings", operator, known)
        )
        return Shardings.model_validate(found)

    def sharded_question(
        self,
        operator: str,
        sharding: str,
        case: Case,
        config: dict[str, Any],
        ranks: int,
        seed: int,
        cut: int,
        constants: Mapping[str, int] | None = None,
        given: Arrays | None = None,
    ) -> dict[str, Any]:
        """What each rank is given and must give on fresh inputs; see `feedback.target.Sharded.sharded_question`.
        `constants` are drawn from other seeds, by name. `given` are whole inputs in place of fresh ones.
        """
        if given is not None:
            named = (operator, sharding, case.model_dump(), config)
            return self._optional("sharded_question", *named, given, ranks, cut)

        def compute() -> Any:
            inputs = self.inputs(operator, case, config, seed)
            for name, other in (constants or {}).items():
                inputs[name] = self.inputs(operator, case, config, other)[name]
            named = (operator, sharding, case.model_dump(), config)
            return self._optional("sharded_question", *named, inputs, ranks, cut)

        asked = (operator, sharding, case.model_dump(mode="json"), config, ranks, seed, cut, dict(constants or {}))
        return self._remembered("sharded_question", asked, compute)

    def captured(
        self, config: dict[str, Any], tokens: Sequence[int]
    ) -> tuple[list[tuple[str, Case, Arrays]], list[str]]:
        """(operator, case, whole inputs) out of a running model, and the operators that were left out."""
        known, listed = self.known_config(config), list(tokens)
        found = self._remembered("captured", (known, listed), lambda: self._optional("captured_inputs", known, listed))
        calls = [(call["operator"], Case.model_validate(call["case"]), call["inputs"]) for call in found["calls"]]
        return calls, list(found["left_out"])

    def tokenize(self, texts: list[str], chat: bool = False) -> list[list[int]]:
        """Token ids of each text."""
        return self._remembered("tokenize", (texts, chat), lambda: self._on_session(lambda s: s.tokenize(texts, chat)))

    def score(self, sequences: Sequence[dict[str, Any]]) -> tuple[Scored, ...]:
        """Teacher-forced scores of `{"prompt": ids, "output": ids}` sequences."""

        def one(sequence: dict[str, Any]) -> Scored:
            return self._remembered(
                "score", (sequence,), lambda: self._on_session(lambda s: s.score([sequence]).scored[0])
            )

        return tuple(one(sequence) for sequence in sequences)

    def ends_after(self, prompts: Sequence[Sequence[int]]) -> tuple[bool, ...]:
        """Whether the model, decoding greedily, ends right after each prompt of token ids."""

        def compute(session: SessionHandle) -> tuple[bool, ...]:
            asked = [
                Request(id=str(index), prompt_token_ids=tuple(prompt), max_tokens=1)
                for index, prompt in enumerate(prompts)
            ]
            return tuple(record.finish_reason == "stop" for record in generate(session, asked))

        listed = [list(prompt) for prompt in prompts]
        return self._remembered("ends_after", (listed,), lambda: self._on_session(compute))

    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> np.ndarray:
        """Teacher-forced logits [output length, vocabulary], float32, of the positions that predict `output`."""

        def compute(session: SessionHandle) -> np.ndarray:
            return session.score([{"prompt": list(prompt), "output": list(output)}], logits=True).logits[0]

        return self._remembered("logits", (list(prompt), list(output)), lambda: self._on_session(compute))

    def hidden(self, tokens: Sequence[int], layer: int) -> tuple[int, np.ndarray]:
        """The number of layers, and what enters one of them: float32 [tokens, size]."""
        listed = list(tokens)

        def compute() -> Any:
            return self._lenient("hidden", lambda: self._on_session(lambda s: s.hidden(listed, layer)))

        return self._remembered("hidden", (listed, layer), compute)

    def generated(self, requests: Sequence[Request]) -> tuple[RequestRecord, ...]:
        """What the model delivers for requests that carry token ids, in order."""
        asked = [request.model_dump(mode="json") for request in requests]
        return self._remembered("generated", (asked,), lambda: self._on_session(lambda s: generate(s, requests)))

    def vocabulary(self) -> int:
        """Number of token ids: what a request may hold and an engine may deliver."""
        return int(self.logits([0], [0]).shape[1])

    def close(self) -> None:
        """End its worker; the next question opens a new one."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._session = None

    def _remembered(self, what: str, arguments: tuple, compute: Callable[[], Any]) -> Any:
        if not self._key:
            files = [(entry.path, file_digest(self.tree.root, entry.path)) for entry in self.entries()]
            text = canonical_json([str(self.tree.root), files, self.tree.config])
            self._key = hashlib.sha256(text.encode()).hexdigest()
        text = canonical_json([what, *arguments])
        return MEMORY.get(f"{self._key}:{hashlib.sha256(text.encode()).hexdigest()}", compute)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._trusted(lambda: self._opened().call(method, *arguments))

    def _optional(self, method: str, *arguments: Any) -> Any:
        """A method that a target need not have; raises `Unsupported` where it has none."""
        return self._lenient(method, lambda: self._call(method, *arguments))

    def _lenient(self, method: str, ask: Callable[[], Any]) -> Any:
        if self.description().protocol_version < 2:
            raise Unsupported(f"this target follows version 1 of the protocol and has no {method}")
        try:
            return ask()
        except OracleFailure as error:
            if lacks(error.__cause__, method):
                raise Unsupported(f"this target has no {method}") from error
            raise

    def _on_session(self, ask: Callable[[SessionHandle], Any]) -> Any:
        def run() -> Any:
            worker = self._opened()
            if self._session is None:
                self._session = worker.start(self.tree.config)
            return ask(self._session)

        return self._trusted(run)

    def _opened(self) -> Worker:
        if self._worker is None:
            pool = self._pool()
            assert pool is not None, "an oracle is not used after its pool"
            self._worker = pool.open(self.tree, role="oracle")
        return self._worker

    def _trusted(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except WorkerFailure as failure:
            if failure.kind != "error":
                self.close()  # a broken worker answers nothing; the next question starts afresh
            raise OracleFailure(f"the trusted target failed: {failure.line}") from failure
        except Misreport as error:
            self.close()
            raise OracleFailure(f"the trusted target failed: {error}") from error
