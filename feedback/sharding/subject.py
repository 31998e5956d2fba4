"""The candidate as it is asked: in its own worker, or, where it chose Triton kernels and there is no GPU, in one that
interprets them with the rounding of the hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from feedback.judging import Bench
from feedback.kernels.interpreted import InterpretingWorker, unavailable
from feedback.kernels.observed import NOT_MODELLED
from feedback.kernels.rounding import MODES
from feedback.sharding.compare import Answer, Steps
from feedback.sharding.cuts import Cut
from feedback.target import Arrays, Case, Unsupported
from feedback.verdict import Location
from feedback.workers.failures import WorkerFailure, one_line, optional
from feedback.workers.handle import Worker

METHOD = "sharded_run"

#: How long a simulated rank may keep the others waiting. A piece takes milliseconds, an interpreted one up to seconds.
PATIENCE, INTERPRETED_PATIENCE = 8.0, 60.0

#: What the worker may take beyond that, for starting and building.
MARGIN = 30.0


class Subject:
    """Runs cuts on the candidate; a context manager. `interpreted` names the operators whose kernels are interpreted,
    with the reason. Calls raise `WorkerFailure`, and `Unsupported` where kernels cannot be interpreted here either.
    """

    def __init__(self, bench: Bench, operators: Iterable[str]) -> None:
        self._bench = bench
        self._config = bench.question.candidate.config
        self._inside: InterpretingWorker | None = None
        self._worker: Worker = bench.candidate
        self._launched: frozenset[str] = frozenset()
        self.interpreted = unavailable(self._worker, self._config, sorted(set(operators)), bench.oracle)

    def __enter__(self) -> Self:
        if self.interpreted:
            self._inside = InterpretingWorker(self._bench, next(iter(self.interpreted.items())))
            self._worker = self._inside.worker
        return self

    def __exit__(self, *error: object) -> None:
        if self._inside is not None:
            self._inside.__exit__(*error)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._worker.alive

    def idle(self, used: Collection[str], files: Mapping[str, str]) -> list[str]:
        """Operators among those `used` whose kernels were to be interpreted and never ran; `files` are the
        implementations, by operator.
        """
        if self._inside is None:
            return []
        return self._inside.idle([name for name in self.interpreted if name in used], files, self._launched)

    def gaps(self) -> tuple[str, ...]:
        """What interpretation leaves open."""
        if not self.interpreted:
            return ()
        return (
            f"{', '.join(self.interpreted)} interpreted, not run on a GPU, by an interpreter in the process of the "
            "code that it judges",
            "repeated calls, inputs of a running model, and all but a few conditions of each cut, where kernels are "
            "interpreted",
            *NOT_MODELLED,
        )

    def run(
        self, cut: Cut, case: Case, pieces: Sequence[Arrays], exact: Sequence[str] = (), wide: bool = False
    ) -> list[Answer]:
        """One answer; where kernels are interpreted one for each way in which hardware may round, and under `wide` one
        whose products are exact.
        """
        patience = INTERPRETED_PATIENCE if self.interpreted else PATIENCE
        options = {"exact": list(exact), "wide": wide, "patience": patience, "serial": bool(self.interpreted)}
        arguments = [cut.info.name, cut.sharding.name, case.model_dump(), self._config, list(pieces), options]
        seconds = patience + MARGIN
        if not self.interpreted:
            found = optional(METHOD, lambda: self._worker.call(METHOD, *arguments, timeout=seconds))
            return [_answer(found, len(pieces))]
        answers = []
        if wide and not exact:  # a kernel is written for its types: its products are widened, not its arguments
            options["wide"] = False
        for mode in ("exact",) if wide else MODES:
            found = self._worker.call("interpreted", mode, METHOD, arguments, timeout=seconds)
            if not isinstance(found, dict):
                raise WorkerFailure("protocol", METHOD, f"{type(found).__name__} came, no answer")
            seen = found.get("seen")
            if self._inside is not None and isinstance(seen, dict) and isinstance(seen.get("files"), list):
                self._launched |= self._inside.relative(seen["files"])
            answer = _answer(found.get("result"), len(pieces))
            if ": Unfaithful: " in answer.failed:
                raise Unsupported(f"the rounding of {answer.failed.partition('Unfaithful: ')[2]} is not modelled")
            answers.append(answer)
        return answers


def _answer(found: Any, size: int) -> Answer:
    """The candidate's answer, checked: raises `WorkerFailure` for one that breaks the protocol."""
    try:
        steps = tuple(
            {str(step): _arrays(arrays) for step, arrays in one.items()} for one in _listed(found["steps"], size)
        )
        if "failed" in found:
            return Answer(steps=steps, failed=one_line(str(found["failed"])), at=_location(found.get("at")))
        return Answer(
            ranks=tuple(_arrays(one) for one in _listed(found["ranks"], size)),
            steps=steps,
            changed=tuple(tuple(map(str, names)) for names in _listed(found["changed"], size)),
            used=tuple(map(str, found["used"])),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WorkerFailure("protocol", METHOD, f"an answer that is none: {one_line(str(error), 120)}") from error


def _listed(values: Any, size: int) -> list[Any]:
    if not isinstance(values, list) or len(values) != size:
        raise ValueError(f"not one entry for each of {size} ranks")
    return values


def _arrays(values: Any) -> Arrays:
    if not isinstance(values, dict) or not all(isinstance(array, np.ndarray) for array in values.values()):
        raise ValueError("not a table of arrays")
    return {str(name): array for name, array in values.items()}


def _location(at: Any) -> Location | None:
    if isinstance(at, list) and len(at) == 2 and type(at[0]) is str and type(at[1]) is int and at[1] > 0:
        return Location(file=one_line(at[0], 200), line=at[1])
    return None


def steps_of(values: Any) -> tuple[Steps, ...] | None:
    """The trusted side's steps."""
    return None if values is None else tuple(values)
