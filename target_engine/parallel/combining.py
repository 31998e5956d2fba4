"""What the code that combines the ranks' pieces of an operator is given, and what it must give back."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, Record


class Combine(Protocol):
    """`run` of `ops/<operator>/parallel.py`: one rank's part in one call of the operator. The engine, the simulated
    ranks and the judge of shardings all call it.

    The module may also have `ROWS`. Under context parallelism a step has decodes, which every rank has whole, before
    its prefills, of which every rank has a piece. "tokens" says that the operator's rows (axes N, B and E of its
    tensors) are those of a whole step, "logits" that they are those whose logits are wanted; the engine then computes
    the decodes' rows without `run`, alike on every rank, and gives `run` the prefills' rows. Without `ROWS`, `run` gets
    all rows as they come.
    """

    def __call__(
        self, sharding: str, build: Build, settings: OperatorSettings, inputs: dict[str, Tensor], group: Group,
        record: Record,
    ) -> dict[str, Tensor]:  # fmt: skip
        """The rank's outputs and inout tensors by name, with the shapes that `Sharding.join` puts together.

        `sharding`: the name of one of the operator's shardings; `settings`: the rank's sizes. `build(operator,
        **constants)` makes the chosen implementation of this operator or of another, over this rank's constants.

        `inputs`: the rank's pieces of the constant, runtime and inout tensors, cut as `Sharding.cuts` says, with the
        whole of what is replicated. Constants are for `build`: the engine gives their shapes alone (meta tensors), as
        the implementation keeps the values. Inout tensors are changed in place, by the implementation or by `run`, and
        returned too; no other input may be changed. Beside the operator's own there are

        - `shard_lengths` int64 [ranks, B], where `Sharding.by_tokens`: how many tokens of run b lie on each rank, in
          order (for rows of logits: how many of them); 0 where a rank has none. What tells of whole runs, as
          `query_starts` and `context_lens`, counts the tokens of all ranks. Missing in a step without prefills.
        - `owner` int64 [1], where `Sharding.owned`: the rank that keeps those tensors; the others have no rows of them.
        - `vocabulary_sizes` int64 [ranks], under the sharding "vocabulary": how many tokens of it each rank has, in
          order.

        `group`: the ranks that share the cut. All of them must call the same collectives in the same order, those
        without tokens too. `record(step, tensors)` must be called once for each of `Sharding.steps` in order except the
        last, which is what is returned: it takes the values after that step, so that a wrong one can be found.
        """
        ...
