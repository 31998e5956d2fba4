"""The ledger: the append-only record of a run, and what makes it resumable.

Every effect (a measurement, a commit, a model call) goes through `Ledger.once`: an intent row, the effect, a result
row. To resume, the deterministic loop is simply run again: effects with a result row return it, the one that was cut
off is run again and leaves an `interrupted` row, and the rest is new. Nothing else needs to be saved, and no decision
can differ from the one made before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from pydantic import BaseModel

from feedback.errors import UserError
from infra_agent.ledger_store import Phase, Row, RowStore, is_being_written

__all__ = ["Ledger", "LedgerDiverged", "Phase", "Row", "is_being_written"]

Model = TypeVar("Model", bound=BaseModel)


class LedgerDiverged(UserError):
    """On replay an effect was asked for with other inputs than the recorded ones: another program or another goal."""


class Ledger:
    """A run's ledger, open for writing (`open`) or reading (`read`). Use as a context manager; one thread."""

    def __init__(self, store: RowStore, observer: Callable[[Row], None] | None = None) -> None:
        self.path = store.path
        #: Called with every new row once it is durable: progress displays, and tests that cut a run off at a write.
        self.observer = observer
        self._store = store
        self._latest: dict[tuple[str, str, Phase], Row] = {(r.kind, r.key, r.phase): r for r in store.rows}
        self._seconds = 0.0
        self._nested: list[float] = []

    @classmethod
    def open(cls, path: Path, observer: Callable[[Row], None] | None = None) -> Ledger:
        """Open for writing, created when absent. `UserError` when another process writes it, or when it is damaged."""
        return cls(RowStore.open(Path(path)), observer)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Open for reading only, also while another process writes. `UserError` when it is missing or damaged."""
        return cls(RowStore.read(Path(path)))

    @overload
    def once(self, kind: str, key: str, payload: Any, fn: Callable[[], Any]) -> Any: ...
    @overload
    def once(self, kind: str, key: str, payload: Any, fn: Callable[[], Model], model: type[Model]) -> Model: ...

    def once(
        self, kind: str, key: str, payload: Any, fn: Callable[[], Any], model: type[BaseModel] | None = None
    ) -> Any:
        """Run `fn` unless its result is recorded, and return the result as read back from JSON (as `model` when given).

        `payload` are the inputs of the effect; on replay they must be the recorded ones, else `LedgerDiverged`. `fn`
        returns a JSON value or a pydantic model. What `fn` raises passes through and leaves the effect open, to be run
        again. Effects may nest.
        """
        inputs = _json(payload)
        intent = self._latest.get((kind, key, "intent"))
        if intent is not None and _json(intent.payload) != inputs:
            raise self._diverged(kind, key)
        done = self._latest.get((kind, key, "result"))
        if done is None:
            self._append(kind, key, "intent" if intent is None else "interrupted", inputs, 0.0)
            done = self._perform(kind, key, fn)
        else:
            self._count(done.seconds)
        return done.payload if model is None else model.model_validate(done.payload)

    def note(self, kind: str, key: str, payload: Any) -> None:
        """Record something that was decided, not done (no intent row). On replay it must be what was recorded."""
        text = _json(payload)
        done = self._latest.get((kind, key, "result"))
        if done is None:
            self._append(kind, key, "result", text, 0.0)
        elif _json(done.payload) != text:
            raise self._diverged(kind, key)

    @property
    def seconds(self) -> float:
        """Wall seconds of the effects handed out so far, what a budget counts: the same on replay as at first."""
        return self._seconds

    def has(self, kind: str, key: str) -> bool:
        """Whether a result is recorded."""
        return (kind, key, "result") in self._latest

    def result(self, kind: str, key: str) -> Any:
        """The recorded result; `KeyError` when there is none."""
        return self._latest[kind, key, "result"].payload

    def rows(self, kind: str | None = None, phase: Phase | None = None) -> Iterator[Row]:
        """Rows in order: those found at opening and those appended since."""
        for row in list(self._store.rows):
            if (kind is None or row.kind == kind) and (phase is None or row.phase == phase):
                yield row

    def close(self) -> None:
        """Close the file and let another process write. Idempotent."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform(self, kind: str, key: str, fn: Callable[[], Any]) -> Row:
        # Nested effects that were only read back count too: without the cut this effect would have taken their time.
        self._nested.append(0.0)
        began = time.monotonic()
        try:
            text = _json(fn())
        finally:
            read_back = self._nested.pop()
        seconds = time.monotonic() - began + read_back
        row = self._append(kind, key, "result", text, seconds)
        # An enclosing effect's own clock has seen all of this but what was read back.
        self._count(read_back if self._nested else seconds)
        return row

    def _count(self, seconds: float) -> None:
        if self._nested:
            self._nested[-1] += seconds
        else:
            self._seconds += seconds

    def _append(self, kind: str, key: str, phase: Phase, payload: str, seconds: float) -> Row:
        row = self._store.append(kind, key, phase, payload, seconds)
        self._latest[kind, key, phase] = row
        if self.observer is not None:
            self.observer(row)
        return row

    def _diverged(self, kind: str, key: str) -> LedgerDiverged:
        return LedgerDiverged(
            f"{self.path}: {kind} {key!r} was recorded with other inputs than the run asks for now; "
            "the program or its goal has changed since, so start a new run"
        )


def _json(value: Any) -> str:
    """Canonical JSON of a value or a model. `ValueError` for NaN and infinity, `TypeError` for what JSON has not."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_dump)


def _dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"a ledger payload holds JSON values and models only, not {type(value).__name__}")
