"""Where a rank stands among tp x cp ranks. Torch-free.

Ranks of one tensor-parallel group are neighbours (they talk twice a layer): rank = cp_rank * tp + tp_rank.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """`tp` ranks share out heads, columns and vocabulary; `cp` such groups share out the tokens of a prefill."""

    tp: int = 1
    cp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        assert self.tp >= 1
        assert self.cp >= 1
        assert 0 <= self.rank < self.size

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp

    @property
    def tp_rank(self) -> int:
        """Place among the ranks that hold the other parts of the same layers."""
        return self.rank % self.tp

    @property
    def cp_rank(self) -> int:
        """Place among the ranks that hold the other tokens of the same prefill."""
        return self.rank // self.tp

    @property
    def tp_groups(self) -> list[list[int]]:
        """Every tensor-parallel group, as ranks in order."""
        return [[group * self.tp + place for place in range(self.tp)] for group in range(self.cp)]

    @property
    def cp_groups(self) -> list[list[int]]:
        """Every context-parallel group, as ranks in order."""
        return [[place * self.tp + group for place in range(self.cp)] for group in range(self.tp)]

    def name(self, rank: int) -> str:
        """A rank as errors call it."""
        return f"rank {rank} of {self.size} (tp {rank % self.tp}, cp {rank // self.tp})"


def owner(layer: int, ranks: int) -> int:
    """The context-parallel rank that keeps the keys and values of the `layer`-th attention layer under Layer Split.

    Layers go round, so that a number of layers that `ranks` does not divide leaves nobody with two more than another.
    """
    return layer % ranks
