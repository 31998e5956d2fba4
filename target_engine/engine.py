"""The engine: requests in, tokens out. A step is schedule, run, postprocess."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError
from target_engine.execution.batch import Batch, WorkRow
from target_engine.execution.host import available_threads, keep_freed_memory
from target_engine.execution.runner import Runner
from target_engine.execution.sampler import Sampler
from target_engine.execution.scoring import Scorer
from target_engine.execution.text import TextStream
from target_engine.launch import LaunchConfig
from target_engine.memory.blocks import BlockPool
from target_engine.memory.prefix import PrefixCache
from target_engine.memory.snapshots import Snapshots
from target_engine.memory.states import StatePool
from target_engine.models.config import ModelConfig
from target_engine.scheduling.recurrent import Recurrent
from target_engine.scheduling.request import FinishReason, Request, SamplingParams
from target_engine.scheduling.scheduler import Plan, Scheduler
from target_engine.spans import PHASES, SpanLog
from target_engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Output:
    """What a step gave one request: its new token, the text that became certain (for requests that want text), and why
    it ended.
    """

    request_id: str
    token_id: int
    text: str = ""
    finish_reason: FinishReason | None = None


RunnerFactory = Callable[[LaunchConfig, Checkpoint, SpanLog], Runner]
"""Starts what computes the steps: in this process, or on several ranks."""


def open_runner(config: LaunchConfig, checkpoint: Checkpoint, spans: SpanLog) -> Runner:
    """The runner that the launch configuration asks for: in this process, or rank 0 with others in theirs."""
    if config.tp * config.cp > 1:
        from target_engine.parallel.ranks import open_runner as open_ranks

        return open_ranks(config, checkpoint, spans)
    return Runner.open(config, checkpoint, spans)


class Engine:
    """One model with its caches and its queue. Not thread-safe: one thread calls it.

    `runner` starts what computes the steps. Raises `EngineError` at construction when the model cannot be found, read,
    or run under `config`.
    """

    def __init__(self, config: LaunchConfig, spans: SpanLog | None = None, runner: RunnerFactory = open_runner) -> None:
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
        self.batch_rows = 0
        self._texts: dict[str, TextStream] = {}
        self._added = 0
        self.runner = runner(config, checkpoint, self.spans)
        try:
            self._prepare()
        except BaseException:
            self.runner.close()  # nobody else can: the engine is not handed out
            raise

    def _prepare(self) -> None:
        """What samples, scores and schedules over the runner."""
        config, model = self.config, self.model_config
        self.sampler = Sampler(self.runner.make("sampling"))
        self.scorer = Scorer(self.runner, model)
        self.pool = BlockPool(config.kv_blocks, config.block_size)
        prefix = PrefixCache(self.pool) if config.prefix_cache else None
        self.states = state_pool(config, model)
        self.scheduler = Scheduler(
            self.pool,
            prefix,
            config.max_batch,
            config.prefill_chunk,
            config.max_model_len,
            recurrent=None if self.states is None else recurrent_states(self.states, prefix),
        )

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
        logits = self.runner.run(batch_of(plan))
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
            "state_bytes": self.runner.state_bytes(),
            "state_slots_peak": self.states.peak_held if self.states else 0,
            "max_batch": self.config.max_batch,
        }

    def close(self) -> None:
        """End what the runner started; the engine is unusable afterwards."""
        self.runner.close()


def state_pool(config: LaunchConfig, model: ModelConfig) -> StatePool | None:
    """Slots for the states of a model with recurrent layers, None for any other."""
    if not model.kda_layers:
        return None
    return StatePool(config.max_batch, config.snapshot_slots, model.state_layout(config.dtype, config.tp))


def recurrent_states(states: StatePool, prefix: PrefixCache | None) -> Recurrent:
    """The scheduler's part in states, with snapshots where there is a prefix cache for them."""
    return Recurrent(states, None if prefix is None else Snapshots(states, prefix))


def batch_of(plan: Plan) -> Batch:
    """A plan with its tokens, as plain values."""
    rows = [
        WorkRow(
            row.start,
            row.request.tokens[row.start : row.start + row.count],
            row.block_ids,
            int(row.samples),
            row.is_decode,
            -1 if row.state is None else row.state.slot,
        )
        for row in plan.rows
    ]
    return Batch(rows, plan.zeroed, plan.restored, plan.kept)
