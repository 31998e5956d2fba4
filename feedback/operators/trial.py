"""One case of one operator, from fresh inputs to what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedback.judging import Bench
from feedback.operators.calls import OpenOperator
from feedback.operators.cases import input_seed
from feedback.operators.checks import Call, Deviation, judge_case, worst_ratio
from feedback.target import Arrays, Case, OperatorInfo, Tolerance

#: Input sets of one case: calls on A and B in turn, so that a result kept from one call shows in the next.
TURNS = ("A", "B", "A", "B")


class Trial:
    """One case of one operator: inputs drawn, references computed, the candidate run, results compared."""

    def __init__(
        self, bench: Bench, info: OperatorInfo, case: Case, config: dict[str, Any], tolerance: Tolerance
    ) -> None:
        self.bench, self.info, self.case, self.config, self.tolerance = bench, info, case, config, tolerance
        self.known = bench.oracle.known_config(config)
        self.constants = frozenset(tensor.name for tensor in info.tensors if tensor.kind == "constant")
        self.drawn = {label: self._draw(label) for label in sorted(set(TURNS))}
        # One implementation has one set of constants: all turns use A's.
        own = {name: self.drawn["A"][name] for name in self.constants}
        self.sets = {label: {**inputs, **own} for label, inputs in self.drawn.items()}
        self.expected = {label: self._reference(inputs) for label, inputs in self.sets.items()}
        self.calls, self.worst = 0, 0.0
        self._first: Call | None = None
        self._opened: OpenOperator | None = None

    def turns(self) -> list[Deviation]:
        """Calls on A and B in turn."""
        self._opened = OpenOperator(self.bench.candidate, self.info, self.config, self.case, self.sets["A"])
        calls = self._opened.run([self.sets[label] for label in TURNS])
        self.calls += len(calls)
        self._first = calls[0]
        found = self._judge(calls, TURNS, [self.expected[label] for label in TURNS])
        if all(deviation.kind != "shape" for deviation in found):
            pairs = zip(calls, TURNS, strict=True)
            self.worst = max(worst_ratio(c.results, self.expected[label], self.tolerance) for c, label in pairs)
        return found

    def other_weights(self) -> list[Deviation]:
        """A second instance with other constants must follow them, and the first must still follow its own."""
        assert self._opened is not None
        assert self._first is not None
        other = {**self.drawn["A"], **{name: self.drawn["B"][name] for name in self.constants}}
        second = OpenOperator(self.bench.candidate, self.info, self.config, self.case, other)
        called, again = second.run([other]), self._opened.run([self.sets["A"]])
        self.calls += 2
        if self._judge(called, ("A",), [self._reference(other)]):
            return [Deviation("weights", self.case.name, "a second instance does not follow its own weights")]
        repeat = self._judge([self._first, *again], ("A", "A"), [self.expected["A"]] * 2)
        text = "the first instance no longer follows its own weights after a second one was made"
        return [Deviation("weights", self.case.name, text)] if repeat else []

    def sample(self) -> dict[str, np.ndarray]:
        """Inputs, results and expected values of the first call, for the evidence folder."""
        if self._first is None:
            return {}
        named = {"input": self._first.given, "got": self._first.results, "expected": self.expected["A"]}
        return {f"{group}.{name}": array for group, arrays in named.items() for name, array in arrays.items()}

    def _draw(self, label: str) -> Arrays:
        seed = input_seed(self.bench.question.seed, self.info.name, self.case.name, label)
        return self.bench.oracle.inputs(self.info.name, self.case, self.known, seed)

    def _reference(self, inputs: Arrays) -> Arrays:
        return self.bench.oracle.reference(self.info.name, self.case, self.known, inputs)

    def _judge(self, calls: Sequence[Call], labels: Sequence[str], expected: Sequence[Arrays]) -> list[Deviation]:
        return judge_case(self.info, self.case.name, calls, expected, labels, self.tolerance)
