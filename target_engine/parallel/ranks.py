"""Opens a model over several ranks: this process is rank 0, which schedules; the others are processes that follow."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from target_engine.checkpoint import Checkpoint
from target_engine.errors import RankFailure
from target_engine.execution.batch import Batch
from target_engine.execution.runner import Runner
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.parallel.distributed import connect
from target_engine.parallel.processes import AGAIN, SLOW_START, STARTING, Processes, Progress, Ready, threads_of_a_rank
from target_engine.parallel.rank import Followers, Rank
from target_engine.parallel.strategy import check
from target_engine.parallel.topology import Topology
from target_engine.spans import SpanLog
from target_engine.weights import Weights


def open_runner(config: LaunchConfig, checkpoint: Checkpoint, spans: SpanLog) -> Runner:
    """Rank 0 of the plan, with the other ranks started.

    Raises `EngineError` for a plan that this model or machine cannot run, before any work, and `RankFailure` when a
    rank does not start.
    """
    check(config, checkpoint.config)
    processes = Processes(config, checkpoint)
    try:
        torch.set_num_threads(threads_of_a_rank(config))
        processes.expect(bool, STARTING, "start", SLOW_START)
        rank = place(config, checkpoint.config, 0, processes.folder, processes.progress, processes)
        with torch.inference_mode(), Weights(checkpoint.folder, checkpoint.config, Runner.dtype_of(config)) as weights:
            runner = LeadRunner(config, weights, spans, rank, processes)
        runner.ready = list(processes.expect(Ready, STARTING, "load its weights", SLOW_START).values())
    except RankFailure as error:
        raise processes.fail_with(error) from error
    except BaseException:
        processes.stop()
        raise
    return runner


def place(
    config: LaunchConfig, model: ModelConfig, rank: int, folder: str, progress: Progress,
    followers: Followers | None = None,
) -> Rank:  # fmt: skip
    """Join the other ranks, which meet in `folder`."""
    topology = Topology(config.tp, config.cp, rank)
    if "GLOO_SOCKET_IFNAME" not in os.environ and Path("/sys/class/net/lo").exists():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine; a host name may not resolve
    with _quiet():
        tp, cp = connect(
            rank,
            topology.size,
            str(Path(folder) / "rendezvous"),
            [topology.tp_groups, topology.cp_groups],
            config.rank_timeout,
            progress.entered,
        )
    return Rank(topology, tp, cp, model, config.layer_split, followers)


@contextmanager
def _quiet() -> Generator[None]:
    """Nothing on standard output: gloo announces there that it has connected."""
    sys.stdout.flush()
    kept = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


class LeadRunner(Runner):
    """Rank 0: computes its share of each batch while the others compute theirs."""

    ready: list[Ready]

    def __init__(
        self, config: LaunchConfig, weights: Weights, spans: SpanLog, rank: Rank, processes: Processes
    ) -> None:
        super().__init__(config, weights, spans, rank)
        self.processes = processes

    def run(self, batch: Batch) -> Tensor:
        """Logits of the batch. Raises `RankFailure` with one line when a rank dies, hangs or fails; no rank is left
        then.
        """
        try:
            return super().run(batch)
        except RankFailure as error:
            raise self.processes.fail_with(error) from error
        except BaseException as error:
            self.processes.fail(f"the ranks were stopped: rank 0 failed ({type(error).__name__}): {AGAIN}")
            raise

    def weight_bytes(self) -> int:
        """Bytes of all ranks' constants."""
        return super().weight_bytes() + sum(other.weight_bytes for other in self.ready)

    def kv_bytes(self) -> int:
        """Bytes of all ranks' keys and values."""
        return super().kv_bytes() + sum(other.kv_bytes for other in self.ready)

    def state_bytes(self) -> int:
        """Bytes of all ranks' recurrent states."""
        return super().state_bytes() + sum(other.state_bytes for other in self.ready)

    def close(self) -> None:
        """End the other ranks."""
        self.processes.stop()
