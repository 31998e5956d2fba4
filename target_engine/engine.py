"""The engine: requests in, tokens out. A step is schedule, run, postprocess."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError
from target_engine.execution.host import available_threads, keep_freed_memory
from target_engine.execution.runner import Runner
from target_engine.execution.sampler import Sampler
from target_engine.execution.scoring import Scorer
from target_engine.execution.text import TextStream
from target_engine.launch import LaunchConfig
from target_engine.memory.blocks import BlockPool
from target_engine.memory.prefix import PrefixCache
from target_engine.scheduling.request import FinishReason, Request, SamplingParams
from target_engine.scheduling.scheduler import Plan, Row, Scheduler
from target_engine.spans import PHASES, SpanLog
from target_engine.tokenizer import Tokenizer
from target_engine.weights import Weights


@dataclass(frozen=True, slots=True)
class Output:
    """What a step gave one request: its new token, the text that became certain (for requests that want text), and why
    it ended.
    """

    request_id: str
    token_id: int
    text: str = ""
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """A planned row with its tokens."""

    row: Row

    @property
    def start(self) -> int:
        return self.row.start

    @property
    def count(self) -> int:
        return self.row.count

    @property
    def block_ids(self) -> Sequence[int]:
        return self.row.block_ids

    @property
    def samples(self) -> bool:
        return self.row.samples

    @property
    def is_decode(self) -> bool:
        return self.row.is_decode

    @property
    def token_ids(self) -> Sequence[int]:
        return self.row.request.tokens[self.row.start : self.row.start + self.row.count]


class Engine:
    """One model with its caches and its queue. Not thread-safe: one thread calls it.

    Raises `EngineError` at construction when the model cannot be found, read, or run under `config`.
    """

    def __init__(self, config: LaunchConfig, spans: SpanLog | None = None) -> None:
        self.config = config
        self.spans = spans or SpanLog(level=config.span_level)
        torch.set_num_threads(config.threads or available_threads())
        keep_freed_memory()
        checkpoint = Checkpoint.open(config.model)
        longest = checkpoint.config.max_position_embeddings
        if config.max_model_len > longest:
            raise EngineError(f"max_model_len {config.max_model_len} is longer than the model's {longest} positions")
        self.model_config = checkpoint.config
        self.tokenizer = Tokenizer.load(checkpoint.folder, checkpoint.config.eos_token_ids)
        with (
            torch.inference_mode(),
            Weights(checkpoint.folder, checkpoint.config, getattr(torch, config.dtype)) as weights,
        ):
            self.runner = Runner(config, weights, self.spans)
        self.sampler = Sampler(self.runner.make("sampling"))
        self.scorer = Scorer(self.runner)
        self.pool = BlockPool(config.kv_blocks, config.block_size)
        prefix = PrefixCache(self.pool) if config.prefix_cache else None
        self.scheduler = Scheduler(self.pool, prefix, config.max_batch, config.prefill_chunk, config.max_model_len)
        self.batch_rows = 0
        self._texts: dict[str, TextStream] = {}
        self._added = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self.scheduler.has_work

    @property
    def unfinished(self) -> int:
        """Number of unfinished requests."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def next_seed(self, ahead: int = 0) -> int:
        """The seed of the request added after `ahead` more: different for each, the same in every run with the same
        `seed`.
        """
        return (self.config.seed << 32) + self._added + ahead

    def add_request(self, id: str, prompt: Sequence[int], sampling: SamplingParams, text: bool = False) -> None:
        """Queue a request; with `text`, outputs carry its text. Raises `EngineError` naming the request when it cannot
        be served.
        """
        vocabulary = self.model_config.vocab_size
        outside = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if outside is not None:
            raise EngineError(f"request {id}: token {outside} is not in the vocabulary of {vocabulary}")
        self.scheduler.add(Request(id, list(prompt), sampling))
        self._added += 1
        if text or sampling.stop:
            self._texts[id] = TextStream(self.tokenizer, sampling.stop)

    def abort(self, id: str) -> bool:
        """End a request now; False when there is no such unfinished request."""
        self._texts.pop(id, None)
        return self.scheduler.abort(id) is not None

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Schedule, run, postprocess: one new token for each request that has computed all of its tokens."""
        self.spans.step += 1
        start = time.monotonic_ns()
        with self.spans.span("schedule"):
            plan = self.scheduler.schedule()
        if not plan.rows:
            self.scheduler.cancel(plan)
            return []
        try:
            sampled = self._run(plan)
        except BaseException:
            self.scheduler.cancel(plan)
            raise
        with self.spans.span("postprocess"):
            outputs = self._postprocess(plan, sampled)
        self.batch_rows += len(plan.rows)
        if self.spans.level >= PHASES:
            decodes = sum(row.is_decode for row in plan.rows)
            facts = {
                "rows": len(plan.rows),
                "decodes": decodes,
                "tokens": plan.tokens,
                "waiting": len(self.scheduler.waiting),
            }
            self.spans.add("step", "step", start, time.monotonic_ns(), facts)
        return outputs

    def _run(self, plan: Plan) -> dict[str, int]:
        """Compute the plan; the sampled token by request id."""
        logits = self.runner.run([_Work(row) for row in plan.rows])
        requests = [row.request for row in plan.rows if row.samples]
        if not requests:
            return {}
        with self.spans.span("sample"):
            return self.sampler.sample(logits, requests)

    def _postprocess(self, plan: Plan, sampled: dict[str, int]) -> list[Output]:
        """Take the tokens in: stop conditions, text, finished requests."""
        texts: dict[str, str] = {}
        stopped: dict[str, FinishReason] = {}
        requests = [row.request for row in plan.rows if row.samples]
        for request in requests:
            token, stream = sampled[request.id], self._texts.get(request.id)
            if token in self.tokenizer.eos_token_ids and not request.sampling.ignore_eos:
                stopped[request.id] = FinishReason.STOP
            elif stream is not None:
                texts[request.id] = stream.push(token)
                if stream.stopped:
                    stopped[request.id] = FinishReason.STOP
        reasons = {item.request.id: item.reason for item in self.scheduler.complete(plan, sampled, stopped)}
        for id in reasons:
            stream = self._texts.pop(id, None)
            if stream is not None:
                texts[id] = texts.get(id, "") + stream.finish()
        return [
            Output(request.id, sampled[request.id], texts.get(request.id, ""), reasons.get(request.id))
            for request in requests
        ]

    def metrics(self) -> dict[str, float]:
        """Counters since start; bytes and tokens as their names say."""
        totals = self.scheduler.totals
        return {
            "steps": totals.steps,
            "prompt_tokens": totals.prompt_tokens,
            "cached_prompt_tokens": totals.cached_tokens,
            "output_tokens": totals.output_tokens,
            "scheduled_tokens": totals.computed_tokens,
            "preemptions": totals.preemptions,
            "batch_rows": self.batch_rows,
            "kv_blocks": self.pool.num_blocks,
            "kv_blocks_peak": self.pool.peak_held,
            "weight_bytes": self.runner.weight_bytes(),
            "kv_bytes": self.runner.kv_bytes(),
            "max_batch": self.config.max_batch,
        }
