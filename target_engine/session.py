"""A started engine as its judge sees it, in plain values and numpy arrays. The judge keeps the clock."""

from __future__ import annotations

from typing import Any

from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.scheduling.request import SamplingParams
from target_engine.spans import SCHEMA_VERSION


class EngineSession:
    """A started engine; `runner` starts what computes its steps, in place of what the configuration asks for."""

    def __init__(self, config: LaunchConfig, runner: Any = None) -> None:
        from target_engine.engine import Engine  # brings torch in

        self._engine: Any = Engine(config) if runner is None else Engine(config, runner=runner)

    def submit(self, requests: list[dict[str, Any]]) -> None:
        """Queue requests, all or, when one of them cannot be served, none."""
        engine, queued = self._engine, []
        for request in requests:
            values = dict(request)
            id, seed = values.pop("id"), values.pop("seed", None)
            prompt, ids = values.pop("prompt", None), values.pop("prompt_token_ids", None)
            if (prompt is None) == (ids is None):
                raise EngineError(f"request {id}: give either prompt or prompt_token_ids")
            try:
                sampling = SamplingParams.of(values, engine.next_seed(len(queued)) if seed is None else seed)
            except (TypeError, EngineError) as error:
                raise EngineError(f"request {id}: {error}") from error
            queued.append((id, engine.tokenizer.encode(prompt) if ids is None else list(ids), sampling))
        added: list[str] = []
        try:
            for id, tokens, sampling in queued:
                engine.add_request(id, tokens, sampling)
                added.append(id)
        except EngineError:
            self.abort(added)
            raise

    def abort(self, ids: list[str]) -> None:
        """End requests early."""
        for id in ids:
            self._engine.abort(id)

    def step(self, n: int) -> dict[str, Any]:
        """At most `n` engine steps."""
        tokens: dict[str, list[int]] = {}
        reasons: dict[str, str] = {}
        steps = 0
        while steps < n and self._engine.has_work:
            for output in self._engine.step():
                tokens.setdefault(output.request_id, []).append(output.token_id)
                if output.finish_reason is not None:
                    reasons[output.request_id] = str(output.finish_reason)
            steps += 1
        progress = [{"id": id, "token_ids": ids, "finish_reason": reasons.get(id)} for id, ids in tokens.items()]
        return {"steps": steps, "progress": progress, "unfinished": self._engine.unfinished}

    def score(self, sequences: list[dict[str, Any]], logits: bool = False) -> dict[str, Any]:
        """Teacher-forced scores with this session's weights and operators."""
        scores = [self._engine.scorer.score(item["prompt"], item["output"], logits) for item in sequences]
        result: dict[str, Any] = {
            "scored": [{"logprob": s.logprob, "best": s.best, "best_logprob": s.best_logprob} for s in scores]
        }
        if logits:
            result["logits"] = [score.logits for score in scores]
        return result

    def hidden(self, tokens: list[int], layer: int) -> dict[str, Any]:
        """`hidden` float32 [tokens, hidden size]: what goes into layer number `layer` (0 is the first) with this
        session's weights and operators. There are `layers`; that number gives what comes out of the last.
        """
        from target_engine.execution.taps import hidden_states

        runner = self._engine.runner
        return {"layers": len(runner.model.layers), "hidden": hidden_states(runner, list(tokens), layer)}

    def tokenize(self, texts: list[str], chat: bool = False) -> list[list[int]]:
        """Token ids of each text."""
        tokenizer = self._engine.tokenizer
        if chat:
            return [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
        return [tokenizer.encode(text) for text in texts]

    def spans(self, level: int | None = None) -> dict[str, Any]:
        """Drain the span log, and set its level when given."""
        log = self._engine.spans
        rows = [span.row() for span in log.drain()]
        if level is not None:
            log.level = level
        return {"version": SCHEMA_VERSION, "rows": rows, "dropped": log.dropped}

    def metrics(self) -> dict[str, float]:
        """Counters since start."""
        return self._engine.metrics()

    def close(self) -> None:
        """Let go of the model and its caches."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
