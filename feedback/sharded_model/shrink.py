"""The smallest set of requests whose output still changes: fewest requests, shortest prompts, fewest tokens.

Pure: `differs` runs a set of requests on both engines and names the first request whose output differs, and where.
Delta debugging (Zeller and Hildebrandt, 2002), on the list of requests and on every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from feedback.target import Request

T = TypeVar("T")

#: Runs at most.
BUDGET = 60


@dataclass(frozen=True)
class Change:
    """The first request whose output differs, the place of its first other token, and the two tokens (None: the run
    failed, as `what` says).
    """

    request: str
    position: int
    tokens: tuple[int, int] | None
    what: str = ""


Differs = Callable[[Sequence[Request]], Change | None]


@dataclass(frozen=True)
class Reproducer:
    """What is left, the change that it shows, and how many runs that took; `complete` when nothing more could be left
    out one by one.
    """

    requests: tuple[Request, ...]
    change: Change
    runs: int
    complete: bool

    def words(self) -> str:
        """`1 request of 7 prompt tokens and 2 output tokens reproduces it`."""
        count = len(self.requests)
        prompt = sum(len(request.prompt_token_ids or ()) for request in self.requests)
        tokens = sum(request.max_tokens for request in self.requests)
        whole = "" if self.complete else " (not yet minimal)"
        return (
            f"{count} request{'s' * (count > 1)} of {prompt} prompt token{'s' * (prompt > 1)} and {tokens} output "
            f"token{'s' * (tokens > 1)} reproduce{'s' * (count == 1)} it{whole}"
        )


class _Spent(Exception):
    """The budget of runs is used up."""


def shrink(requests: Sequence[Request], change: Change, differs: Differs, budget: int = BUDGET) -> Reproducer:
    """Shrink requests that are known to show `change`. Any change counts: what is left may show another one."""
    state = _State(tuple(requests), change, differs, budget)
    complete = True
    try:
        state.fewer_tokens()
        state.fewer_requests()
        state.fewer_tokens()
        state.shorter_prompts()
        state.fewer_tokens()
    except _Spent:
        complete = False
    return Reproducer(state.requests, state.change, state.runs, complete)


class _State:
    """The smallest set so far, and the runs that were spent."""

    def __init__(self, requests: tuple[Request, ...], change: Change, differs: Differs, budget: int) -> None:
        self.requests, self.change, self._differs, self._budget, self.runs = requests, change, differs, budget, 0

    def holds(self, requests: Sequence[Request]) -> bool:
        """Whether a smaller set still shows a change; then it is kept."""
        if not requests:
            return False
        if self.runs >= self._budget:
            raise _Spent
        self.runs += 1
        found = self._differs(requests)
        if found is None:
            return False
        self.requests, self.change = tuple(requests), found
        return True

    def fewer_tokens(self) -> None:
        """No request generates more than the changed one needs to show it, and then as few as will do."""
        need = self.change.position + 1
        self.holds([_with(request, max_tokens=min(request.max_tokens, need)) for request in self.requests])
        for index, request in enumerate(self.requests):
            if request.id != self.change.request and request.max_tokens > 1:
                self.holds(_replaced(self.requests, index, _with(request, max_tokens=1)))

    def fewer_requests(self) -> None:
        minimal(self.requests, self.holds)

    def shorter_prompts(self) -> None:
        """Each prompt with as few tokens as will do, one at least."""
        for index in range(len(self.requests)):

            def holds(tokens: Sequence[int], index: int = index) -> bool:
                request = _with(self.requests[index], prompt_token_ids=tuple(tokens))
                return bool(tokens) and self.holds(_replaced(self.requests, index, request))

            tokens = self.requests[index].prompt_token_ids or ()
            for kept in _halvings(len(tokens)):  # most often the last few tokens alone will do
                if not holds(tokens[-kept:]):
                    break
                tokens = tokens[-kept:]
            minimal(tokens, holds)


def minimal(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A part of `items` for which `holds` is true and of which no single item can be left out; it holds for `items`."""
    parts = 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        for number in range(len(chunks)):
            rest = [item for other, chunk in enumerate(chunks) if other != number for item in chunk]
            if holds(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(items):
                return items
            parts = min(len(items), 2 * parts)
    return items


def _halvings(count: int) -> list[int]:
    sizes = []
    while count > 1:
        count //= 2
        sizes.append(count)
    return sizes


def _with(request: Request, **changes: object) -> Request:
    return request.model_copy(update=changes)


def _replaced(requests: Sequence[Request], index: int, request: Request) -> list[Request]:
    return [*requests[:index], request, *requests[index + 1 :]]
