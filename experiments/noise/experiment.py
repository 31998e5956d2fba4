"""How small an effect can interleaved units resolve, and is what they say what whole runs say?

A/A and three moves whose size is roughly known, on the shipped engine. For each, pairs of fresh engines are started,
and on each of them passes are taken by both methods in turn: units of 100-200 ms in alternation, and whole runs one
after the other. Both see the same processes, so their means must agree (bias), and what is left of the spread is the
method's (within instances) or the machine's (between them).

Options: `pairs` a move and method (40), `instances` that they are spread over (10), `model`, `workload` (a file).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.noise.measuring import METHODS, Bench, Taken
from experiments.noise.moves import known_moves, profile
from experiments.noise.pairs import Bias, Spread, bias, spread
from experiments.worlds import ADAPTER
from feedback.load.workload import Workload
from infra_agent.experiments import Context, Result
from infra_agent.report.svg import BLUE, GREEN, GREY, Canvas, spanning
from infra_agent.targetfiles import root_of

INTERLEAVED, WHOLE = METHODS
COLUMNS = (
    "move", "held_to_be", "method", "pairs", "ratio", "low", "high",
    "sd_log", "within_instances", "between_instances", "resolves_1_pair", "resolves_4_pairs", "thrown_away",
)  # fmt: skip

#: How far the two methods may be apart, as a log ratio, and how much of the whole runs' spread may be left.
BIAS = 0.02
SPREAD = 0.5


def run(context: Context) -> Result:
    """Take all pairs."""
    from feedback.oracle import Oracle
    from feedback.probe import Tree
    from feedback.workers.pool import WorkerPool

    pairs, instances = int(context.option("pairs", "40")), int(context.option("instances", "10"))
    root, model = root_of(ADAPTER), context.option("model", "")
    named = context.option("workload", "")
    workload = Workload.read(Path(named) if named else root / "target_engine" / "workloads" / "main.jsonl")
    taken = []
    with WorkerPool(ADAPTER) as pool:
        oracle = Oracle.of(pool, Tree(root, "installed", profile(root, "sequential", model)))
        bench = Bench(pool, root, workload, oracle, context.seed)
        for move in known_moves(profile(root, "production", model)):
            taken.append(bench.take(move, pairs, min(pairs, instances), context.say))
            context.say(f"{move.name}: " + ", ".join(f"{m} {len(p)} pairs" for m, p in taken[-1].pairs.items()))
    return told(taken)


def told(taken: Sequence[Taken]) -> Result:
    """Table, picture, claims. Pure."""
    spreads = {one.move.name: {m: spread(p) for m, p in one.pairs.items() if len(p) > 1} for one in taken}
    biases = {one.move.name: bias(one.pairs[INTERLEAVED], one.pairs[WHOLE]) for one in taken if _both(one)}
    known = {name: both for name, both in spreads.items() if len(both) == len(METHODS)}
    claims = {
        f"no move shows a bias of more than {BIAS:.0%} between the methods": bool(biases)
        and all(not found.seen or found.below(BIAS) for found in biases.values()),
        "A/A: the interleaved mean is 1, within its interval or half a percent": _holds_one(
            spreads.get("A/A", {}).get(INTERLEAVED)
        ),
        f"within instances interleaved units leave at most {SPREAD:.0%} of the whole runs' spread": bool(known)
        and all(both[INTERLEAVED].within <= SPREAD * both[WHOLE].within for both in known.values()),
    }
    return Result(
        columns=COLUMNS,
        rows=tuple(row(one, method, spreads[one.move.name].get(method)) for one in taken for method in METHODS),
        picture=picture(taken),
        notes=tuple(notes(biases)),
        claims=claims,
        data={
            "log_ratios": {
                one.move.name: {m: [[p.instance, p.log_ratio] for p in own] for m, own in one.pairs.items()}
                for one in taken
            }
        },
    )


def _both(one: Taken) -> bool:
    shared = set.intersection(*({pair.instance for pair in pairs} for pairs in one.pairs.values()))
    return len(shared) > 1


def _holds_one(found: Spread | None) -> bool:
    return found is not None and abs(found.mean) <= max(found.half, 0.005)


def row(one: Taken, method: str, found: Spread | None) -> tuple[object, ...]:
    """One row of the table."""
    head, tail = (one.move.name, one.move.about, method, len(one.pairs[method])), (one.thrown_away[method],)
    if found is None:
        return (*head, *([None] * 8), *tail)
    interval = (found.ratio, math.exp(found.mean - found.half), math.exp(found.mean + found.half))
    parts = (found.sd, _number(found.within), _number(found.between), found.resolvable(1), found.resolvable(4))
    return (*head, *interval, *parts, *tail)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def notes(biases: Mapping[str, Bias]) -> list[str]:
    """The methods' differences in words."""
    return [
        f"{name}: interleaved minus whole runs {found.mean:+.4f} +- {found.half:.4f} (log ratio)"
        for name, found in biases.items()
    ]


def picture(taken: Sequence[Taken]) -> Canvas:
    """Every pair as a dot around its move's whole-run mean, in percent."""
    rows = [(one, method) for one in taken for method in METHODS]
    canvas = Canvas(860, 60 + 30 * len(rows), "Single pairs around the mean of their move, percent")
    centres = {one.move.name: _centre(one) for one in taken}
    spots = [100 * (p.log_ratio - centres[one.move.name]) for one, method in rows for p in one.pairs[method]]
    scale = spanning(spots, 290, 830, floor=0.0)
    canvas.line(scale(0), 14, scale(0), 24 + 30 * len(rows), GREY)
    for tick in scale.ticks():
        canvas.text(scale(tick), 42 + 30 * len(rows), f"{tick:+g} %", anchor="middle")
    for line, (one, method) in enumerate(rows):
        y = 30.0 + 30 * line
        canvas.text(280, y + 4, f"{one.move.name}: {method}", anchor="end")
        for pair in one.pairs[method]:
            x = scale(100 * (pair.log_ratio - centres[one.move.name]))
            canvas.dot(x, y, GREEN if method == INTERLEAVED else BLUE, 3.0, hollow=True)
    return canvas


def _centre(one: Taken) -> float:
    values = [pair.log_ratio for pairs in one.pairs.values() for pair in pairs]
    return sum(values) / len(values) if values else 0.0
