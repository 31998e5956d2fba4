"""One condition of one cut: inputs drawn and cut by the trusted side, the candidate run, the answers judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedback.judging import Bench
from feedback.operators.cases import input_seed
from feedback.sharding.compare import Answer, Fault, Question, judge, ratio_of, relative_error, repeats, stale
from feedback.sharding.conditions import Condition
from feedback.sharding.cuts import Cut
from feedback.sharding.localise import Step, first_wrong_step
from feedback.sharding.subject import Subject, steps_of
from feedback.target import Tolerance

#: Input sets of a condition that is tried in turns: a result kept from one call shows in the next.
TURNS = ("A", "B", "A")


@dataclass(frozen=True)
class Outcome:
    """What one condition gave: the worst error as a multiple of what is allowed and over the size of the results, what
    is wrong (None: nothing), and the step where it starts; `label` is the set of inputs that shows it.
    """

    condition: Condition
    ratio: float
    relative: float
    fault: Fault | None
    step: Step | None = None
    used: tuple[str, ...] = ()
    label: str = TURNS[0]


class Trials:
    """Asks about one cut. Raises `OracleFailure` for a case that the specification refuses, `WorkerFailure` when the
    candidate's worker fails.
    """

    def __init__(self, bench: Bench, subject: Subject, cut: Cut, tolerance: Tolerance) -> None:
        self.bench, self.subject, self.cut, self.tolerance = bench, subject, cut, tolerance
        self._config: dict[str, Any] = bench.oracle.known_config(bench.question.candidate.config)
        self.calls = 0

    def question(self, condition: Condition, label: str = "A") -> Question | None:
        """What is asked; None where these sizes cannot be cut over so many ranks. All labels have A's constants."""
        info, case = self.cut.info, condition.case
        seed, first = (
            input_seed(self.bench.question.seed, info.name, case.name, str(sorted(case.dims.items())), each)
            for each in (label, TURNS[0])
        )
        asked = (info.name, self.cut.sharding.name, case, self._config, condition.ranks, seed, condition.cut)
        kept = {tensor.name: first for tensor in info.tensors if tensor.kind == "constant" and label != TURNS[0]}
        found = self.bench.oracle.sharded_question(*asked, kept, condition.inputs)
        if "refused" in found:
            return None
        return Question(
            tuple(found["pieces"]), tuple(found["expected"]), steps_of(found["steps"]), tuple(found["copies"])
        )

    def ask(
        self, condition: Condition, question: Question, exact: Sequence[str] = (), wide: bool = False
    ) -> list[Answer]:
        """The candidate's answers."""
        self.calls += 1
        return self.subject.run(self.cut, condition.case, question.pieces, exact, wide)

    def once(self, condition: Condition, turns: bool = False) -> Outcome | None:
        """The condition tried, with `turns` on two sets of inputs in turn; None where it cannot be cut so."""
        questions: dict[str, Question] = {}
        firsts: dict[str, list[Answer]] = {}
        ratio = relative = 0.0
        used: tuple[str, ...] = ()
        for label in TURNS if turns else TURNS[:1]:
            if label not in questions:
                question = self.question(condition, label)
                if question is None:
                    return None
                questions[label] = question
            question = questions[label]
            answers = self.ask(condition, question)
            for number, answer in enumerate(answers):
                used = answer.used
                fault = judge(self.cut.info, question, answer, self.tolerance)
                ratio = max(ratio, ratio_of(question, answer, self.tolerance))
                relative = max(relative, relative_error(self.cut.info, question, answer))
                if fault is None and label in firsts:
                    fault = repeats(self.cut.info, firsts[label][number], answer)
                if fault is not None:
                    earlier = [given[number] for other, given in firsts.items() if other != label]
                    fault = stale(answer, earlier) or fault
                    step = first_wrong_step(self.cut.sharding.steps, question, answer, self.tolerance)
                    return Outcome(condition, ratio, relative, fault, step, used, label)
            firsts.setdefault(label, answers)
        return Outcome(condition, ratio, relative, None, used=used)

    def sample(self, outcome: Outcome) -> dict[str, np.ndarray]:
        """Pieces, results, steps and expected values, for the evidence folder."""
        question = self.question(outcome.condition, outcome.label)
        if question is None or not self.subject.alive:
            return {}
        answer = self.ask(outcome.condition, question)[0]
        arrays: dict[str, np.ndarray] = {}
        for rank, piece in enumerate(question.pieces):
            groups = {"input": piece, "expected": question.expected[rank]}
            groups |= {"got": answer.ranks[rank]} if answer.ranks else {}
            for kind, steps in (("step", answer.steps), ("expected-step", question.steps or ())):
                groups |= {f"{kind}.{name}": found for name, found in (steps[rank].items() if steps else ())}
            for kind, some in groups.items():
                arrays |= {f"rank{rank}.{kind}.{name}": array for name, array in some.items()}
        return arrays
