"""Does the feedback find faults that people really made, and faults that a generator makes, and does it say where?

A corpus of faults from public reports about other engines and from the lecture, each put into the place of this engine
that does the same work, and mutants of the operators' code, of eight kinds. Each is planted alone in a copy of the
engine and shown to the layers that such a change is shown to, cheapest first, until one refutes it. Counted are kills
by layer, whether operator and step (or the feature of a schedule) are named right, seconds, and alarms about the engine
as it is, over several seeds. A mutant that every layer confirms is run beside the engine on many fresh inputs: where
not one bit differs it is equivalent, where all agrees in float64 it is the same function regrouped (`equivalence`).
Both are listed, and everything else that survives is listed with what is known of why.

Options: `sample` mutants (200, `all` for every one), `kinds` of them (comma-separated; `none` for none), `reports`
(`yes`, or `no`), `only` faults whose name contains one of these (comma-separated), `seeds` of the clean engine (3),
`layers=all` (ask on after a refutation), `model` (kda-hybrid-tiny), `table=FILE` (the table of outcomes for
`feedback_information`), `resume` (`yes`: faults that --out has records of are not asked again).
"""

from __future__ import annotations

import json
from pathlib import Path

from experiments.operator_faults import campaign
from experiments.operator_faults.conclusions import conclude
from experiments.operator_faults.corpus import RECORDS
from experiments.operator_faults.faults import Fault, Sources
from experiments.operator_faults.kinds import KINDS
from experiments.operator_faults.mutants import mutants, sampled
from feedback.errors import UserError
from infra_agent.experiments import Context, Result
from infra_agent.targetfiles import root_of

#: Files left beside the result.
OUTCOMES, LAYERS = "outcomes.json", "layers.json"


def run(context: Context) -> Result:
    """Everything that is asked for, what is known already left alone."""
    kinds, count = _kinds(context), _count(context)
    seeds = _number(context, "seeds", 3)
    only = context.option("only", "").split(",")
    resume = context.option("resume", "yes") == "yes"
    if not resume:
        (context.out / campaign.FILE).unlink(missing_ok=True)
    model = context.option("model", "kda-hybrid-tiny")
    with campaign.opened(context.out, root_of(campaign.ADAPTER), model) as bench:
        planted = recorded(bench.sources) if context.option("reports", "yes") == "yes" else []
        drawn = sampled(mutants(bench.sources), count, context.seed, kinds) if kinds else []
        planted, drawn = ([f for f in some if any(part in f.name for part in only)] for some in (planted, drawn))
        if not (planted or drawn or seeds):
            raise UserError("these options leave no fault to plant, and no engine to ask about as it is")
        known = campaign.read(context.out)
        if known:
            context.say(f"{len(known)} records are there already")
        every, say = context.option("layers", "") == "all", context.say
        clean = [
            record
            for number in range(seeds)
            for record in campaign.run(
                bench, [campaign.nothing(context.seed + number)], context.seed + number, known, say, all_layers=True
            )
        ]
        reports = campaign.run(bench, planted, context.seed, known, say, every)
        made = campaign.run(bench, drawn, context.seed, known, say, every)
    result = conclude(reports, made, clean, whole=only == [""] and set(kinds) == set(KINDS))
    _tables(context, result)
    return result


def recorded(sources: Sources) -> list[Fault]:
    """The corpus on these sources. Raises `NotThere` for a record that no longer fits."""
    return [record.planted(sources) for record in RECORDS]


def _tables(context: Context, result: Result) -> None:
    """The tables of outcomes, beside the result and where the option says."""
    named = context.option("table", "")
    places = {context.out / OUTCOMES: "outcomes", context.out / LAYERS: "layers"}
    if named:
        places[Path(named).expanduser()] = "outcomes"
    for path, name in places.items():
        if result.data[name]:
            path.write_text(json.dumps(result.data[name], indent=1) + "\n", encoding="utf-8")


def _kinds(context: Context) -> tuple[str, ...]:
    given = context.option("kinds", "")
    if given == "none":
        return ()
    kinds = tuple(name.strip() for name in given.split(",") if name.strip()) or tuple(KINDS)
    unknown = [name for name in kinds if name not in KINDS]
    if unknown:
        raise UserError(f"--option kinds={given}: there is no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    return kinds


def _count(context: Context) -> int | None:
    return None if context.option("sample", "200") == "all" else _number(context, "sample", 200)


def _number(context: Context, name: str, default: int) -> int:
    given = context.option(name, str(default))
    if not given.isdigit():
        raise UserError(f"--option {name}={given}: a whole number is needed")
    return int(given)
