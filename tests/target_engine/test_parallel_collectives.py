"""Simulated ranks: what collectives give, and one line for every way in which ranks can fail to meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from target_engine.errors import RankFailure
from target_engine.parallel.collectives import GRACE, Alone, Crew, Group, simulate


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_collectives_give_every_rank_the_same(sizes: list[int]) -> None:
    def body(group: Group) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        mine = torch.full((sizes[group.rank], 2), float(group.rank))
        total = group.all_reduce(torch.tensor([group.rank + 1.0]))
        group.barrier()
        sent = group.broadcast(torch.tensor([float(group.rank)]), group.size - 1)
        return total, group.all_gather(mine), group.all_gather(mine, sizes), sent

    ranks = len(sizes)
    for total, gathered, known, sent in simulate(ranks, body):
        assert float(total) == ranks * (ranks + 1) / 2
        assert [part.shape[0] for part in gathered] == sizes
        assert all(torch.equal(part, torch.full_like(part, rank)) for rank, part in enumerate(known))
        assert float(sent) == ranks - 1


def test_a_rank_keeps_what_it_gave() -> None:
    def body(group: Group) -> torch.Tensor:
        mine = torch.ones(2)
        parts = group.all_gather(mine)
        mine += 5  # changes nobody else's view
        group.barrier()
        assert all(torch.equal(part, torch.ones(2)) for part in parts)
        given = torch.ones(2)
        group.all_reduce(given)
        return given

    assert all(torch.equal(given, torch.ones(2)) for given in simulate(3, body))


def raises(group: Group) -> None:
    if group.rank == 1:
        raise ValueError("bad\nshard")
    group.barrier()


def leaves(group: Group) -> None:
    if group.rank != 2:
        group.all_reduce(torch.ones(3))


def calls_another(group: Group) -> None:
    if group.rank:
        group.all_gather(torch.ones(3))
    else:
        group.all_reduce(torch.ones(3))


def other_shapes(group: Group) -> None:
    group.all_reduce(torch.ones(3 + group.rank))


def hangs(group: Group) -> None:
    if group.rank == 1:
        time.sleep(3)
    group.barrier()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (raises, "rank 1 of 3: ValueError: bad shard"),
        (leaves, r"rank 2 of 3 ended while others wait in all_reduce of \[3\]"),
        (
            calls_another,
            r"ranks call different collectives: rank \d all_\w+ of .*, rank \d all_.*: every rank must call",
        ),
        (other_shapes, r"ranks call different collectives: rank \d all_reduce of"),
        (hangs, "rank 1 of 3 did not come to barrier within 0.5 s$"),
    ],
)
def test_a_rank_that_does_not_meet_the_others_is_named(body: Callable[[Group], None], line: str) -> None:
    start = time.monotonic()
    with pytest.raises(RankFailure, match=line) as caught:
        simulate(3, body, timeout=0.5)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 2.5


def test_a_crew_meets_in_two_directions_and_can_run_again() -> None:
    crew = Crew(4, [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1], [2], [3]]])

    def body(rank: int) -> tuple[float, float]:
        row, column, alone = crew.groups[rank]
        assert isinstance(alone, Alone)
        value = torch.tensor([float(rank)])
        return float(row.all_reduce(value)), float(column.all_reduce(value))

    expected = [(1.0, 2.0), (1.0, 4.0), (5.0, 2.0), (5.0, 4.0)]
    assert crew.run(body) == expected

    def broken(rank: int) -> None:
        if rank == 3:
            raise KeyError("lost")
        crew.groups[rank][0].barrier()
        crew.groups[rank][1].barrier()

    with pytest.raises(RankFailure, match="rank 3 of 4: KeyError: 'lost'"):
        crew.run(broken)
    assert crew.run(body) == expected


GRID = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]


def fail(crew: Crew, body: Callable[[int], None]) -> tuple[str, float]:
    """The line of a crew that fails, and after how many seconds."""
    begun = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        crew.run(body)
    return str(caught.value), time.monotonic() - begun


def test_ranks_that_are_slow_but_come_are_waited_for() -> None:
    """All in all far longer than the time-out, and for one rank also longer than it in one collective."""
    crew = Crew(4, GRID, timeout=0.5)

    def body(rank: int) -> float:
        row, column = crew.groups[rank]
        total = torch.ones(1)
        for _ in range(7):
            time.sleep(0.3 if rank == 3 else 0.0)
            total = column.all_reduce(total)
            time.sleep(0.35 if rank == 1 else 0.0)
            total = row.all_reduce(total) / 4
        return float(total)

    begun = time.monotonic()
    assert crew.run(body) == [1.0] * 4
    assert time.monotonic() - begun > 0.5 + GRACE + 0.5


@pytest.mark.parametrize("guilty", range(4))
def test_a_hang_that_begins_late_is_the_fault_of_who_hangs(guilty: int) -> None:
    """Every other rank waits in a collective, one of them for a rank that waits for the guilty one."""
    crew = Crew(4, GRID, timeout=0.5, remedy=": be patient")
    release = threading.Event()

    def body(rank: int) -> None:
        row, column = crew.groups[rank]
        for _ in range(8):
            time.sleep(0.25)
            row.barrier()
        if rank == guilty:
            release.wait(20)
        column.barrier()
        row.barrier()

    line, seconds = fail(crew, body)
    assert line == f"rank {guilty} of 4 did not come to barrier within 0.5 s: be patient"
    assert 2.5 <= seconds < 2.5 + GRACE + 0.5

    def again(rank: int) -> float:
        if rank == 0:
            release.set()  # the one that was given up comes back now, and must not take this run's place
        time.sleep(0.2)
        return float(crew.groups[rank][0].all_reduce(torch.tensor([float(rank)])))

    assert crew.run(again) == [1.0, 1.0, 5.0, 5.0]


def test_a_rank_that_hangs_where_nobody_waits_for_it_is_named() -> None:
    crew = Crew(3, [[range(3)]], timeout=0.3)

    def body(rank: int) -> None:
        for _ in range(5):
            time.sleep(0.1)
            crew.groups[rank][0].barrier()
        time.sleep(5.0 if rank == 2 else 0.0)

    line, seconds = fail(crew, body)
    assert line == "rank 2 of 3 did not end or come to a collective within 1.3 s"
    assert seconds < 3


def test_ranks_that_wait_for_one_another_are_told_where() -> None:
    crew = Crew(4, GRID, timeout=0.2)

    def body(rank: int) -> None:
        crew.groups[rank][rank in (1, 2)].barrier()

    line, seconds = fail(crew, body)
    assert line.startswith(
        "ranks wait for one another: rank 0 in barrier, rank 1 in barrier, rank 2 in barrier, rank 3"
    )
    assert seconds < 2.5
