"""Ranks that are processes, over torch.distributed: gloo, for tensors on the CPU, where the engine keeps all of them.

nccl is written down but nobody asks for it: it waits until weights and caches can be placed on devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from target_engine.errors import RankFailure
from target_engine.parallel.collectives import Alone, Group


class Distributed:
    """A rank that is a process, over a process group of torch.distributed, whose time-out bounds every call; gloo's
    takes CPU tensors. `entered` is told each collective by name before it begins.
    """

    def __init__(self, group: Any, rank: int, size: int, entered: Callable[[str], None]) -> None:
        self.rank, self.size = rank, size
        self._group, self._entered = group, entered

    def all_reduce(self, tensor: Tensor) -> Tensor:
        result = tensor.clone(memory_format=torch.contiguous_format)
        self._call("all_reduce", result, lambda: self._group.allreduce([result]))
        return result

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        if sizes is None:
            mine = torch.tensor([tensor.shape[0]], device=tensor.device)
            counts = [torch.empty_like(mine) for _ in range(self.size)]
            self._call("all_gather of sizes", mine, lambda: self._group.allgather([counts], [mine]))
            sizes = [int(count) for count in counts]
        assert tensor.shape[0] == sizes[self.rank], f"{tensor.shape[0]} rows, {sizes} were announced"
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))  # equal shapes alone are gathered
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        self._call("all_gather", padded, lambda: self._group.allgather([parts], [padded]))
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, tensor: Tensor, root: int) -> Tensor:
        result = tensor.contiguous()
        self._call("broadcast", result, lambda: self._group.broadcast(result, root))
        return result

    def barrier(self) -> None:
        self._call("barrier", None, lambda: self._group.barrier())

    def _call(self, name: str, tensor: Tensor | None, call: Callable[[], Any]) -> None:
        """Run a collective, unless there is nothing to move."""
        self._entered(name)
        if tensor is not None and tensor.numel() == 0:
            return
        try:
            call().wait()
        except RuntimeError as error:
            raise RankFailure(f"{name} failed (raise rank_timeout if a rank is only slow): {error}") from error


def connect(
    rank: int, size: int, rendezvous: str, partitions: Sequence[Sequence[Sequence[int]]], timeout: float,
    entered: Callable[[str], None], backend: str = "gloo",
) -> list[Group]:  # fmt: skip
    """Join `size` processes at the file `rendezvous`; this rank's group of each partition of the ranks.

    Every process gives the same partitions. `backend` is "gloo" (CPU tensors); "nccl" would need each rank's tensors on
    a device of its own, which nothing provides yet. Raises `RankFailure` when the others do not come.
    """
    limit = timedelta(seconds=timeout)
    mine: list[Group] = []
    try:
        store = dist.FileStore(rendezvous, size)
        for number, partition in enumerate(partitions):
            for ranks in partition:
                if rank not in ranks:
                    continue
                place, prefix = list(ranks).index(rank), dist.PrefixStore(f"{number}/{ranks[0]}", store)
                if len(ranks) == 1:
                    mine.append(Alone())
                    continue
                kind: Any = dist.ProcessGroupNCCL if backend == "nccl" else dist.ProcessGroupGloo
                mine.append(Distributed(kind(prefix, place, len(ranks), limit), place, len(ranks), entered))
    except RuntimeError as error:
        raise_it = "raise rank_timeout if they only start slowly"
        raise RankFailure(f"the ranks did not find each other: {error}: {raise_it}") from error
    return mine
