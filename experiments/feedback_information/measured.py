"""The same machinery on a table of outcomes that another experiment has measured (`--option table=FILE`).

The table (format: `feedback.information.outcomes`) says what each probe answered with each cause planted, and in which
time. From it follow what a probe tells, which causes no probe tells apart, and how ways of choosing fare. In the
episodes a probe's answer is drawn from the very counts that its likelihood comes from (from all causes' where it was
never asked of this one), so the shares found are an upper bound for new faults of the same kinds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from experiments.feedback_information.laboratory import generator
from experiments.feedback_information.lecture import AS_COUNTED
from experiments.feedback_information.picture import Told, drawn
from experiments.feedback_information.tables import score_rows, text_of
from feedback.information.belief import Belief
from feedback.information.choice import alike, ranked, worth
from feedback.information.diagnosis import Stopping
from feedback.information.outcomes import Likelihood, OutcomeTable
from feedback.information.scores import Score, World, at_random, cheapest_first, most, play
from infra_agent.experiments import Result

COLUMNS = ("probe", "outcomes", "planted", "seconds", "bits", "bits_as_counted", "bits_per_second")

#: At most so many pairs of causes are spelled out.
SHOWN = 12

WAYS = {
    "most bits per second": most("bits per second"),
    "most bits": most("bits"),
    "cheapest first": cheapest_first,
    "at random": at_random,
}


def played(table: OutcomeTable, seed: int, draws: int, stopping: Stopping) -> list[Score]:
    """Every way of choosing on every cause, so often."""
    likelihoods, start = table.likelihoods(), Belief.before(table)
    worlds = [_world(table, likelihoods, cause, seed, number) for cause in table.causes for number in range(draws)]
    return [play(name, start, likelihoods, worlds, maker, stopping) for name, maker in WAYS.items()]


def _world(table: OutcomeTable, likelihoods: Sequence[Likelihood], cause: str, seed: int, number: int) -> World:
    known = {likelihood.probe: likelihood for likelihood in likelihoods}

    def ask(probe: str, call: int) -> str:
        rng = generator("table", seed, cause, number, probe, call)
        seen = table.counts.get((cause, probe))
        if seen:
            counts = np.array(list(seen.values()), np.float64)
            return list(seen)[rng.choice(len(seen), p=counts / counts.sum())]
        likelihood = known[probe]
        row = likelihood.matrix[likelihood.causes.index(cause)]
        return likelihood.outcomes[rng.choice(row.size, p=row / row.sum())]

    return World(cause, ask)


def told(table: OutcomeTable, scores: Sequence[Score]) -> Result:
    """Table, picture, claims. Pure."""
    start, likelihoods = Belief.before(table), table.likelihoods()
    by_name = {likelihood.probe: likelihood for likelihood in likelihoods}
    rows, within = [], True
    for found in ranked(start, likelihoods):
        outcomes = by_name[found.probe].outcomes
        counted = worth(start, table.likelihood(found.probe, AS_COUNTED)).bits
        planted = sum(table.planted(cause, found.probe) for cause in table.causes)
        within &= counted <= min(start.entropy, math.log2(len(outcomes))) + 1e-9
        rows.append((found.probe, len(outcomes), planted, found.seconds, found.bits, counted, found.rate))
    pairs = alike(likelihoods)
    shown = ", ".join(f"{a} / {b}" for a, b in pairs[:SHOWN]) + (", ..." if len(pairs) > SHOWN else "")
    notes = [
        f"{len(table.causes)} causes, {start.entropy:.2f} bits unknown before anything is asked",
        f"pairs of causes that no probe tells apart: {len(pairs)}{': ' if pairs else ''}{shown}",
        *text_of(("chosen by", "found", "wrong", "calls", "seconds", "bits"), score_rows(scores)),
    ]
    return Result(
        columns=COLUMNS,
        rows=tuple(rows),
        picture=drawn([Told(row[0], row[4], row[3]) for row in rows], scores, start.entropy),
        notes=tuple(notes),
        claims={"no probe tells more than is unknown, or than it can say": within},
        data={"about": dict(table.about), "alike": pairs},
    )
