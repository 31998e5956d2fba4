"""Does the diagnosis name what is wrong with an engine, and leave a healthy one alone?

Six starts of the shipped engine with one planted cause each are profiled; the first-ranked cause has to be the planted
one in five. Facts and offered moves of `first_run` then make recorded worlds, in which the loop must keep the same
moves whatever the order of the library; so must a recorded run, where one is given. The shipped engine itself must end
without a patch: in recorded worlds where nothing pays, and, when asked for, in a short live run.

Options: `model`; `worlds` (4) and `orders` (5); `replay`, a run or `latest`; `healthy=live` with `wall_seconds` (150)
for the live run from the shipped engine, which needs a quiet machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.diagnosis.cases import CASES, HEALTHY, Case
from experiments.diagnosis.observing import ORDERS, Seen, observe
from experiments.diagnosis.recorded import play, replayed, shuffled, table_from
from experiments.worlds import FixedLibrary, goal_of, opened, place_of
from infra_agent.experiments import Context, Result
from infra_agent.ledger import Ledger
from infra_agent.loop import run as run_loop
from infra_agent.measurements.live import LiveMeasurements
from infra_agent.measurements.recorded import Table
from infra_agent.paths import find_run
from infra_agent.progress import Lines
from infra_agent.records import EndStatus, RunRecord
from infra_agent.report.svg import AMBER, GREEN, RED, Canvas

COLUMNS = ("start", "planted", "first", "probability", "second", "right", "because")
SLOW = Case("first_run", "", "everything plain")


def run(context: Context) -> Result:
    """Profile the starts, then play the recorded worlds."""
    model = context.option("model", "")
    seen = []
    for case in (*CASES, HEALTHY):
        found = observe(case, context.out / "starts" / case.start, model)
        context.say(f"{case.start}: {found.ranked[0][0]} {found.ranked[0][1]:.0%}, planted: {case.planted}")
        seen.append(found)
    slow = observe(SLOW, context.out / "starts" / SLOW.start, model, ORDERS)
    worlds = [table_from(slow.facts, slow.openings.moves, seed) for seed in range(int(context.option("worlds", "4")))]
    replay = context.option("replay", "")
    if replay:
        worlds.append(replayed(find_run(replay).ledger))
    same, kept = orders_agree(worlds, int(context.option("orders", "5")), context)
    healthy = seen[-1]
    ends = [
        play(table_from(healthy.facts, healthy.openings.moves, seed, healthy=True), goal_of("production"))[0].status
        for seed in range(8)
    ]
    live = live_end(context, model) if context.option("healthy", "recorded") == "live" else None
    return told(seen, slow.same_offers, same, kept, ends, live)


def orders_agree(worlds: Sequence[Table], orders: int, context: Context) -> tuple[bool, list[tuple[str, ...]]]:
    """Whether the loop keeps the same moves in every order of a world's library, for all worlds; and which."""
    goal = goal_of("first_run", budget={"wall_seconds": 900.0})
    agreed, kept = True, []
    for number, table in enumerate(worlds):
        sets = {play(shuffled(table, order), goal)[1] for order in range(orders)}
        kept.append(sorted(sets)[0])
        agreed &= len(sets) == 1
        context.say(f"world {number}: {len(kept[-1])} moves kept, {'the same' if len(sets) == 1 else 'NOT the same'}")
    return agreed, kept


def live_end(context: Context, model: str) -> EndStatus:
    """How a short live run from the shipped engine ends."""
    budget = {"wall_seconds": float(context.option("wall_seconds", "150"))}
    goal = goal_of("production", model=model, name="healthy", budget=budget, seed=context.seed)
    goal, place = place_of(goal, context.out / "healthy")
    show = Lines(sys.stderr)
    with Ledger.open(place.ledger) as ledger, opened(goal, place, FixedLibrary(), LiveMeasurements) as (world, ground):
        record = ledger.once("run", "run", {"goal": goal.digest}, ground.record, RunRecord)
        return run_loop(goal, ledger, world, show, record.base_commit).status


def told(
    seen: Sequence[Seen],
    same_offers: bool,
    same_kept: bool,
    kept: Sequence[tuple[str, ...]],
    healthy: Sequence[EndStatus],
    live: EndStatus | None,
) -> Result:
    """Table, picture, claims. Pure."""
    planted = [found for found in seen if found.case.planted != HEALTHY.planted]
    right = sum(found.right for found in planted)
    claims = {
        f"the first diagnosis is right in at least five of six starts ({right} of {len(planted)})": len(planted) == 6
        and right >= 5,
        "a library read in another order offers the same moves": same_offers,
        "a shuffled library gives the same kept set under recorded measurements": same_kept
        and any(len(titles) > 1 for titles in kept),
        "the shipped engine ends with no patch where nothing pays (recorded)": bool(healthy)
        and all(status is EndStatus.NO_WIN for status in healthy),
    }
    if live is not None:
        claims["the shipped engine ends with no patch (live)"] = live is EndStatus.NO_WIN
    notes = [f"kept in world {number}: {'; '.join(titles) or 'nothing'}" for number, titles in enumerate(kept)]
    return Result(
        columns=COLUMNS,
        rows=tuple(row(found) for found in seen),
        picture=picture(seen),
        notes=tuple(notes),
        claims=claims,
        data={"facts": {found.case.start: dict(found.facts) for found in seen}},
    )


def row(found: Seen) -> tuple[object, ...]:
    """One row of the table."""
    (first, probability), *rest = found.ranked
    second = f"{rest[0][0]} {rest[0][1]:.0%}" if rest else ""
    right = "yes" if found.right else "NO"
    return (found.case.start, found.case.planted, first, probability, second, right, found.because)


def picture(seen: Sequence[Seen]) -> Canvas:
    """For each start the probabilities that the diagnosis gives, the planted cause in green."""
    canvas = Canvas(860, 40 + 34 * len(seen), "What the diagnosis says of each start; green: what was planted")
    for line, found in enumerate(seen):
        y, x = 20.0 + 34 * line, 200.0
        canvas.text(190, y + 16, found.case.start, anchor="end")
        for number, (cause, probability) in enumerate(found.ranked[:4]):
            width = 620 * probability
            colour = GREEN if cause == found.case.planted else RED if number == 0 else AMBER
            canvas.rect(x, y, width - 2, 24, colour, "0.85")
            if width > 110:
                canvas.text(x + 6, y + 16, f"{cause} {probability:.0%}", size=11)
            x += width
    return canvas
