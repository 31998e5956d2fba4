"""Watching ranks that are threads: where one raised or hangs, and that only one computes at a time. Torch-free.

Not for an agent to edit: it says which rank is to blame.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from target_engine.errors import RankFailure

T = TypeVar("T")

PACKAGE = Path(__file__).resolve().parents[1]

COLLECTIVES = "target_engine/parallel/collectives.py"
"""The file in which a rank waits for others."""

ASIDE = ("watch.py", "sharded_operators.py")
"""Files around every rank, which are never to blame."""


class Turns:
    """Lets one rank at a time call an implementation, and knows which one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.holder: int | None = None

    def around(self, rank: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def one_at_a_time(*arguments: Any) -> Any:
            with self._lock:
                self.holder = rank
                try:
                    return call(*arguments)
                finally:
                    self.holder = None

        return one_at_a_time


class Watch:
    """Where ranks that are threads raised, or are when they do not come back."""

    def __init__(self) -> None:
        self._threads: dict[int, int] = {}
        self._raised: dict[int, list[Any]] = {}

    def watched(self, body: Callable[[int], T]) -> Callable[[int], T]:
        """The body of a rank, watched."""

        def run(rank: int) -> T:
            self._threads[rank] = threading.get_ident()
            try:
                return body(rank)
            except RankFailure:  # another rank's
                raise
            except Exception as error:
                places = _places(reversed(list(traceback.walk_tb(error.__traceback__))))
                self._raised[rank] = next((place for place in places if place[0] != COLLECTIVES), [])
                raise
            finally:
                self._threads.pop(rank, None)

        return run

    def place(self) -> list[Any]:
        """[file relative to the root, line] in this package of the first rank that raised or hangs, not of those that
        waited for it; or nothing.
        """
        frames = sys._current_frames()
        running = {rank: frames[thread] for rank, thread in self._threads.copy().items() if thread in frames}
        hanging = [next(_places(traceback.walk_stack(frame)), []) for _, frame in sorted(running.items())]
        raised = [self._raised[rank] for rank in sorted(self._raised)]
        return next((place for place in (*raised, *hanging) if place and place[0] != COLLECTIVES), [])


def _places(stack: Iterable[tuple[FrameType, int]]) -> Iterator[list[Any]]:
    """[file, line] of the frames in this package of a stack, from the innermost on."""
    for frame, line in stack:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and path.name not in ASIDE:
            yield [f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}", line]
