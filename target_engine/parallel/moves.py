"""What simulated ranks do at any moment: tells one that hangs from those that wait for it. Torch-free."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from target_engine.errors import RankFailure


class Moves:
    """What the ranks of a crew do: the collective that each is inside, and when it last entered or left one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.begin([])

    def begin(self, threads: list[threading.Thread]) -> None:
        """These threads are the ranks now; nobody is inside a collective."""
        self.threads = threads
        self.inside: list[str | None] = [None] * self.size
        self.since = [time.monotonic()] * self.size
        self.given_up: set[int] = set()

    def mine(self, rank: int) -> bool:
        """Whether the calling thread is this rank, and not one that was given up in an earlier run."""
        return threading.current_thread() is self.threads[rank]

    def enter(self, rank: int, call: str) -> None:
        """The rank comes to the collective `call`."""
        if not self.mine(rank):
            raise RankFailure(f"rank {rank} of {self.size} came back after the run that it belongs to")
        self.inside[rank], self.since[rank] = call, time.monotonic()

    def leave(self, rank: int) -> None:
        """The rank computes by itself again."""
        self.inside[rank], self.since[rank] = None, time.monotonic()


def named(ranks: Sequence[int], size: int) -> str:
    """`rank 1 of 4`, `ranks 1, 2 of 4`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {size}"
