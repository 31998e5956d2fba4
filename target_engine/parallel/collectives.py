"""Moving tensors between the ranks of a group: one rank alone, or ranks simulated by threads.

Every collective gives the same bits to all ranks that get the same result, so that ranks which compute alike stay
alike. A rank that fails, ends early, waits too long or calls another collective than the rest ends the call for all of
them with one line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from target_engine.errors import RankFailure
from target_engine.parallel.moves import Moves, named

T = TypeVar("T")
Build = Callable[..., Any]
"""`build(operator, **constants)` makes the chosen implementation of an operator around its constants."""
Record = Callable[[str, dict[str, Tensor]], None]
"""`record(step, tensors)` takes the values after a named step of the combination; nothing when serving."""


class Group(Protocol):
    """The ranks that share one cut. Tensors given are not changed; results are new, or the given tensor itself."""

    rank: int
    size: int

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        ...

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        """Every rank's tensor, in order of ranks. First dimensions may differ; `sizes` are the first dimensions, where
        every rank knows them.
        """
        ...

    def broadcast(self, tensor: Tensor, root: int) -> Tensor:
        """The tensor of rank `root`; the others give one of its shape and type, whose values do not matter."""
        ...

    def barrier(self) -> None:
        """Returns when every rank has come."""
        ...


def widened(tensor: Tensor) -> Tensor:
    """Half-width floats as float32, for sums over ranks; other types as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def no_record(step: str, tensors: dict[str, Tensor]) -> None:
    """Records nothing."""


class Alone:
    """A group of one rank."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        return [tensor]

    def broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return tensor

    def barrier(self) -> None:
        return None


GRACE = 1.0
"""Seconds that simulated ranks have beyond their time-out to say who keeps them waiting."""
POLL = 0.1
"""Seconds after which whoever waits looks again at what the other ranks do."""
SAME_ORDER = "every rank must call the same collectives in the same order"


class _Meeting:
    """Where the simulated ranks of one group meet: a collective is complete when all have brought their part."""

    def __init__(self, ranks: Sequence[int], timeout: float, remedy: str, moves: Moves, blame: list[str]) -> None:
        self.ranks, self.size, self.timeout, self.remedy = ranks, len(ranks), timeout, remedy
        self.moves, self.blame = moves, blame
        self._condition = threading.Condition()
        self._results: list[Any] = []
        self._round = 0
        self.begin()

    def begin(self) -> None:
        """Nobody has come, ended or failed."""
        self._brought: dict[int, tuple[str, Any]] = {}
        self._ended: set[int] = set()
        self._failure: str | None = None

    def exchange(self, place: int, call: str, part: Any) -> list[Any]:
        """Bring `part` to the collective `call`; returns every rank's part."""
        self.moves.enter(self.ranks[place], call)
        try:
            with self._condition:
                return self._exchange(place, call, part)
        finally:
            self.moves.leave(self.ranks[place])

    def _exchange(self, place: int, call: str, part: Any) -> list[Any]:
        self._brought[place] = (call, part)
        began, round = time.monotonic(), self._round
        if len({called for called, _ in self._brought.values()}) > 1:
            calls = [f"rank {self.ranks[index]} {called}" for index, (called, _) in sorted(self._brought.items())]
            self._fail(f"ranks call different collectives: {', '.join(calls)}: {SAME_ORDER}")
        elif len(self._brought) == self.size:
            self._results = [self._brought[index][1] for index in range(self.size)]
            self._brought = {}
            self._round += 1
            self._condition.notify_all()
        self._check_ended()
        while self._round == round and self._failure is None:
            self._wait(call, began)
        if self._round == round:
            raise RankFailure(self._failure)
        return self._results

    def _wait(self, call: str, began: float) -> None:
        """Wait a little; fail when a rank has kept this one waiting for too long. One that waits in another collective
        itself is not to blame.
        """
        missing = [rank for place, rank in enumerate(self.ranks) if place not in self._brought]
        now = time.monotonic()
        waited = {rank: now - max(began, self.moves.since[rank]) for rank in missing if not self.moves.inside[rank]}
        late = [rank for rank, seconds in waited.items() if seconds >= self.timeout]
        if late:
            self.moves.given_up.update(late)
            self._fail(f"{named(late, self.moves.size)} did not come to {call} within {self.timeout:g} s{self.remedy}")
        else:
            self._condition.wait(min([POLL, *(self.timeout - seconds for seconds in waited.values())]))

    def end(self, place: int) -> None:
        """This rank calls no more collectives."""
        with self._condition:
            self._ended.add(place)
            self._check_ended()

    def fail(self, why: str) -> None:
        """End the waiting of all who are here, and of all who come."""
        with self._condition:
            self._fail(why)

    def _check_ended(self) -> None:
        if self._ended and self._brought:
            waiting = next(iter(self._brought.values()))[0]
            ended = named([self.ranks[place] for place in sorted(self._ended)], self.moves.size)
            self._fail(f"{ended} ended while others wait in {waiting}: {SAME_ORDER}")

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self.blame.append(self._failure)
        self._condition.notify_all()


class Simulated:
    """One of several ranks that are threads of this process; made by `Crew`."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def all_reduce(self, tensor: Tensor) -> Tensor:
        parts = self._meeting.exchange(self.rank, f"all_reduce of {list(tensor.shape)}", tensor.clone())
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        assert sizes is None or tensor.shape[0] == sizes[self.rank], f"{tensor.shape[0]} rows, {sizes} were announced"
        what = f"all_gather of {['any', *tensor.shape[1:]]}"
        return list(self._meeting.exchange(self.rank, what, tensor.clone()))

    def broadcast(self, tensor: Tensor, root: int) -> Tensor:
        what = f"broadcast of {list(tensor.shape)} from rank {root}"
        parts = self._meeting.exchange(self.rank, what, tensor.clone() if self.rank == root else None)
        return parts[root].clone()

    def barrier(self) -> None:
        self._meeting.exchange(self.rank, "barrier", None)


class Crew:
    """Ranks simulated by threads. `partitions` are ways to group them, each a list of groups of ranks; `groups[rank]`
    has the rank's group of each partition. `remedy` ends the lines about time.
    """

    def __init__(
        self, size: int, partitions: Sequence[Sequence[Sequence[int]]], timeout: float = 60.0, remedy: str = ""
    ) -> None:
        self.size, self.timeout, self.remedy = size, timeout, remedy
        self._blame: list[str] = []
        self._moves = Moves(size)
        self._places: list[list[tuple[int, _Meeting]]] = [[] for _ in range(size)]
        for partition in partitions:
            for ranks in partition:
                meeting = _Meeting(ranks, timeout, remedy, self._moves, self._blame)
                for place, rank in enumerate(ranks):
                    self._places[rank].append((place, meeting))
        self._meetings = [meeting for places in self._places for place, meeting in places if place == 0]
        self.groups: list[list[Group]] = [
            [Alone() if meeting.size == 1 else Simulated(place, meeting) for place, meeting in places]
            for places in self._places
        ]

    def run(self, body: Callable[[int], T]) -> list[T]:
        """`body(rank)` for every rank, each in a thread of its own; what each returned, in order.

        Raises `RankFailure` with one line when a rank raises, keeps others waiting for `timeout` seconds, or leaves
        them waiting; and when, for a little longer than `timeout`, no rank enters or leaves a collective.
        """
        self._blame.clear()
        results: list[Any] = [None] * self.size
        errors: list[BaseException | None] = [None] * self.size

        def run(rank: int) -> None:
            try:
                with torch.inference_mode():
                    results[rank] = body(rank)
            except BaseException as error:  # the caller learns of it below
                errors[rank] = error
                if not isinstance(error, RankFailure) and self._moves.mine(rank):
                    self._blame.append(f"rank {rank} of {self.size}: {type(error).__name__}: {error}")
            if self._moves.mine(rank):
                for place, meeting in self._places[rank]:
                    meeting.end(place)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(self.size)]
        for meeting in self._meetings:
            meeting.begin()
        self._moves.begin(threads)
        for thread in threads:
            thread.start()
        while alive := self._alive():
            threads[alive[0]].join(POLL)
            # Longer than a collective waits, so that ranks which wait for the one that hangs can name it first.
            if time.monotonic() - max(self._moves.since) > self.timeout + GRACE:
                self._give_up()
        failed = [error for error in errors if error is not None]
        if self._blame or failed:
            raise RankFailure([*self._blame, *map(str, failed)][0]) from next(iter(failed), None)
        return results

    def _alive(self) -> list[int]:
        """The ranks that are still waited for."""
        given_up = self._moves.given_up
        return [rank for rank, thread in enumerate(self._moves.threads) if thread.is_alive() and rank not in given_up]

    def _give_up(self) -> None:
        """Wait no longer for ranks that compute by themselves, and free those that wait in collectives."""
        alive, inside = self._alive(), self._moves.inside
        if not alive:
            return
        late = [rank for rank in alive if not inside[rank]]
        if late:
            why = f"did not end or come to a collective within {self.timeout + GRACE:g} s{self.remedy}"
            why = f"{named(late, self.size)} {why}"
        else:
            calls = ", ".join(f"rank {rank} in {inside[rank]}" for rank in alive)
            why = f"ranks wait for one another: {calls}: {SAME_ORDER}"
        self._blame.append(why)
        self._moves.given_up.update(late)
        for meeting in self._meetings:
            meeting.fail(why)


def simulate(size: int, body: Callable[[Group], T], timeout: float = 60.0) -> list[T]:
    """Run `body` as every rank of one group of simulated ranks; `RankFailure` as `Crew.run` has it."""
    crew = Crew(size, [[range(size)]], timeout)
    return crew.run(lambda rank: body(crew.groups[rank][0]))
