"""The engine over ranks that are threads of this process: the same cuts and the same combining code, without processes.

For tests and for a judge; several processes are faster. `Engine(config, runner=ThreadedRunner.open)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from target_engine.checkpoint import Checkpoint
from target_engine.errors import RankFailure
from target_engine.execution.batch import Batch
from target_engine.execution.runner import Runner
from target_engine.launch import LaunchConfig
from target_engine.parallel.collectives import Crew
from target_engine.parallel.rank import Rank
from target_engine.parallel.strategy import check
from target_engine.parallel.topology import Topology
from target_engine.spans import SpanLog
from target_engine.weights import Weights

AGREEMENT = {"float32": 1e-3, "bfloat16": 1e-1}
"""How far logits of two ranks may be apart, relative to the largest. Context-parallel ranks compute decodes beside
different numbers of prefill tokens, and matrix products round by their number of rows.
"""


class ThreadedRunner(Runner):
    """Rank 0, which runs the other ranks beside it. Raises `RankFailure` when ranks that must agree do not."""

    rank_runner: type[Runner] = Runner
    """What the other ranks are."""

    def __init__(self, config: LaunchConfig, weights: Weights, spans: SpanLog) -> None:
        check(config, weights.config)
        topology = Topology(config.tp, config.cp)
        partitions = [topology.tp_groups, topology.cp_groups]
        self.crew = Crew(topology.size, partitions, config.rank_timeout, ": raise rank_timeout if it is only slow")
        ranks = [
            Rank(Topology(config.tp, config.cp, rank), tp, cp, weights.config, config.layer_split)
            for rank, (tp, cp) in enumerate(self.crew.groups)
        ]
        super().__init__(config, weights, spans, ranks[0])
        self.others = [self.rank_runner(config, weights, SpanLog(), rank) for rank in ranks[1:]]

    @classmethod
    def open(cls, config: LaunchConfig, checkpoint: Checkpoint, spans: SpanLog) -> ThreadedRunner:
        """All ranks of the model."""
        with torch.inference_mode(), Weights(checkpoint.folder, checkpoint.config, cls.dtype_of(config)) as weights:
            return cls(config, weights, spans)

    def run(self, batch: Batch) -> Tensor:
        """Logits of the batch, on which all ranks agree."""
        own = super().run
        found = self.crew.run(lambda rank: own(batch) if rank == 0 else self.others[rank - 1].run(batch))
        allowed = AGREEMENT[self.config.dtype] * max(1.0, float(found[0].abs().max())) if found[0].numel() else 0.0
        for rank, logits in enumerate(found):
            if logits.shape != found[0].shape or not torch.allclose(logits, found[0], rtol=0.0, atol=allowed):
                where = _difference(logits, found[0], allowed)
                raise RankFailure(f"rank {rank} of {len(found)} has other logits than rank 0: {where}")
        return found[0]

    def weight_bytes(self) -> int:
        """Bytes of all ranks' constants."""
        return super().weight_bytes() + sum(other.weight_bytes() for other in self.others)

    def kv_bytes(self) -> int:
        """Bytes of all ranks' keys and values."""
        return super().kv_bytes() + sum(other.kv_bytes() for other in self.others)

    def state_bytes(self) -> int:
        """Bytes of all ranks' recurrent states."""
        return super().state_bytes() + sum(other.state_bytes() for other in self.others)


def _difference(logits: Tensor, first: Tensor, allowed: float) -> str:
    """How far a rank's logits are from the first rank's, where, and how to find the operator that is to blame."""
    if logits.shape != first.shape:
        what = f"its shape is {list(logits.shape)}, not {list(first.shape)}"
    else:
        rows = torch.nan_to_num((logits - first).abs(), nan=torch.inf).amax(dim=1)
        row = int(rows.argmax())
        what = (
            f"they differ by up to {float(rows[row]):.3g} in row {row} of {len(rows)}, where {allowed:.3g} is allowed"
        )
    return f"{what}: run the operators of `target-engine plan` one by one with parallel.simulate.run_sharded"
