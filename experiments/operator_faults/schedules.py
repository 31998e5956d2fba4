"""Asks whether what an engine generates depends on anything but the model and the prompt: a probe of schedules.

Every schedule of `scenarios` runs on an engine of its own in the candidate's worker; all of its tokens are scored by
the trusted model. A request that never ends, an engine that fails, a request that falls far behind later ones of its
size, and an engine that afterwards takes fewer requests at once count as well. A verdict names the first schedule that
goes wrong as `phase`: what it has that those before it have not is where to look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.operator_faults.scenarios import Scenario, scenarios
from feedback.generation import generate
from feedback.judging import Bench, Finding, judge
from feedback.load.collect import Collector, Misreport
from feedback.load.metrics import RequestRecord
from feedback.load.verify import Bounds, verify
from feedback.operators.cases import input_seed
from feedback.probe import Context, Question
from feedback.target import Request
from feedback.verdict import Confidence, Location, Predicate, Status, Verdict
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import SessionHandle

START_SECONDS = 60.0
CALL_SECONDS = 30.0

#: Steps that requests to be ended get before that.
BEFORE_ABORT = 3

#: So many requests that came later may end before one of the same size. In order of arrival it is the batch at most.
OVERTAKEN = 4

#: Launch parameters of several ranks: schedules are tried on one.
ONE_RANK = {"tp": 1, "cp": 1, "layer_split": False}


@dataclass(frozen=True)
class Wrong:
    """What went wrong under one schedule."""

    feature: str
    text: str
    request: str | None = None
    file: str | None = None
    line: int | None = None


class SchedulesProbe:
    """The model's tokens under every schedule; every request ends, and none is overtaken by many."""

    layer: str = "schedules"
    cost_prior: float = 4.0

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="every token is the trusted model's, whatever else runs, ran before, was cached, lost its blocks "
            "or was ended; every request ends, and none falls behind many later ones of its size",
            parameters={"seed": question.seed, "tie": Bounds().tie, "overtaken": OVERTAKEN},
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = SchedulesProbe()


def _examine(bench: Bench) -> Finding:
    question = bench.question
    seed = input_seed(question.seed, "schedules")
    vocabulary = bench.oracle.vocabulary()
    tokens, tried = 0, []
    for scenario in scenarios(seed, vocabulary):
        found = _try(bench, scenario, vocabulary)
        if isinstance(found, Wrong):
            at = Location(phase=found.feature, request=found.request, file=found.file, line=found.line)
            same = f"; right before: {', '.join(tried)}" if tried else ""
            return Finding(
                Status.REFUTED,
                f"{found.feature}: {found.text}{same}",
                Confidence.DIRECT,
                at=(at,),
                gaps=("schedules after the first that is wrong",),
                data={"tried": tried, "wrong": vars(found)},
            )
        tokens += found
        tried.append(scenario.feature)
    return Finding(
        Status.CONFIRMED,
        f"{tokens} tokens under {len(tried)} schedules are the trusted model's ({', '.join(tried)})",
        Confidence.DIRECT,
        gaps=("other lengths and loads", "requests that arrive or end in the middle of a step", "several ranks"),
        metrics={"tokens": float(tokens), "schedules": float(len(tried))},
    )


def _try(bench: Bench, scenario: Scenario, vocabulary: int) -> Wrong | int:
    """Number of tokens that are right, or what is wrong."""
    config = bench.question.candidate.config | ONE_RANK | scenario.launch
    session: SessionHandle | None = None
    try:
        session = bench.candidate.start(config, timeout=START_SECONDS)
        for number in range(scenario.rounds):
            _abort(session, scenario, number)
        if scenario.every:
            records, overtaken = _arriving(session, scenario)
        else:
            records, overtaken = generate(session, scenario.requests, timeout=CALL_SECONDS, vocabulary=vocabulary), {}
        used = _at_once(session, scenario.after())
        session.close()
    except Misreport as error:
        return Wrong(scenario.feature, str(error), error.request)
    except WorkerFailure as failure:
        place = failure.location
        return Wrong(scenario.feature, failure.line, None, place.file if place else None, place.line if place else None)
    checked = verify(records, scenario.requests, bench.oracle.score, Bounds(exact=True), vocabulary=vocabulary)
    if checked.wrong:
        return Wrong(scenario.feature, checked.wrong[0].line(), checked.wrong[0].request)
    if used < len(scenario.after()):
        return Wrong(scenario.feature, f"afterwards {used} of {len(scenario.after())} requests run at once")
    worst = max(overtaken, key=lambda name: overtaken[name], default="")
    if scenario.ordered and overtaken.get(worst, 0) > OVERTAKEN:
        text = f"request {worst} ended after {overtaken[worst]} that came later and are as long"
        return Wrong("order", text, worst)
    return checked.tokens


def _abort(session: SessionHandle, scenario: Scenario, number: int) -> None:
    """Requests that run for some steps and are ended, waiting ones too."""
    renamed = [request.model_copy(update={"id": f"{request.id}-{number}"}) for request in scenario.aborted]
    session.submit(renamed, timeout=CALL_SECONDS)
    session.step(BEFORE_ABORT + number, timeout=CALL_SECONDS)
    session.abort([request.id for request in renamed], timeout=CALL_SECONDS)


def _at_once(session: SessionHandle, requests: tuple[Request, ...]) -> int:
    """How many of these short requests are under way at the same time."""
    collector = Collector(requests)
    session.submit(collector.submitting(requests, at=0.0), timeout=CALL_SECONDS)
    begun, ended, most = set[str](), set[str](), 0
    while not collector.done:
        report = session.step(1, timeout=CALL_SECONDS)
        collector.take(report, 1, 0.0, 1.0)
        begun |= {entry.id for entry in report.progress}
        most = max(most, len(begun - ended))
        ended |= {entry.id for entry in report.progress if entry.finish_reason is not None}
    return most


def _arriving(session: SessionHandle, scenario: Scenario) -> tuple[tuple[RequestRecord, ...], dict[str, int]]:
    """What was delivered when one request arrives after another; how many later ones ended before each."""
    collector, steps = Collector(scenario.requests), 0.0
    waiting: list[Request] = list(scenario.requests)
    ended: list[str] = []
    arrived: list[str] = []
    while not collector.done:
        if waiting:
            arrived.append(waiting[0].id)
            session.submit(collector.submitting([waiting.pop(0)], at=steps), timeout=CALL_SECONDS)
        count = scenario.every if waiting else 8
        report = session.step(count, timeout=CALL_SECONDS)
        collector.take(report, count, steps, steps + 1.0)
        ended += [entry.id for entry in report.progress if entry.finish_reason is not None]
        steps += 1.0
    place: dict[str, Any] = {name: at for at, name in enumerate(arrived)}
    before = {name: sum(place[other] > place[name] for other in ended[: ended.index(name)]) for name in ended}
    return collector.records(), before
