"""What do code moves add to the best that launch parameters alone can do, at the same budget?

From `first_run`, for each seed, three searches with the same budget, loop, probes and acceptance: random search over
the launch parameters, the embedded proposer with launch moves, and the embedded proposer with code moves too. Then the
best states side by side in one session: the best launch-only state of all searches is chosen, and every state with
code moves is compared with it in rebuilt instances.

Options: `wall_seconds` a search (300), `seeds` (3), `rebuilds` (2), `model`, `goal` (throughput). With the same output
folder a run that was cut off goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.arms.finals import Finals, finals, side_by_side
from experiments.arms.searching import ARMS, Arm, Floor, Searched, searched
from experiments.worlds import ADAPTER
from feedback.errors import UserError
from infra_agent.experiments import Context, Result
from infra_agent.goal import Goal
from infra_agent.report.svg import AMBER, BLUE, GREEN, GREY, Canvas, spanning

COLUMNS = ("arm", "seed", "candidates", "kept", "search_s", "over_start", "over_best_launch", "low", "high", "moves")
COLOURS = dict(zip((arm.name for arm in ARMS), (GREY, AMBER, GREEN), strict=True))
WANTED = 1.15


def run(context: Context) -> Result:
    """Search with every arm and seed, then compare."""
    seeds = range(context.seed, context.seed + int(context.option("seeds", "3")))
    found: list[Searched] = []
    floor = Floor(context.out / "floor.json")
    for seed in seeds:
        goal = goal_for(context, seed)
        for arm in ARMS:
            context.say(f"seed {seed}: {arm.name}")
            folder = context.out / "searches" / f"{seed}-{arm.name.replace(' ', '-')}"
            found.append(searched(arm, goal, folder, floor))
            context.say(f"{arm.name}: {len(found[-1].kept)} kept of {found[-1].candidates}; {found[-1].reason}")
    from feedback.workers.pool import WorkerPool

    rebuilds = int(context.option("rebuilds", "2"))
    with WorkerPool(ADAPTER) as pool:
        compare = side_by_side(pool, context.out / "finals", found[0], context.seed)
        return told(found, finals(found, rebuilds, compare, context.say))


def goal_for(context: Context, seed: int) -> Goal:
    """The goal of one seed's searches: the shipped one with another budget, and nothing to do at its end."""
    wall = float(context.option("wall_seconds", "300"))
    goal = Goal.load(context.option("goal", "throughput")).overridden(wall_seconds=wall, seed=seed)
    objective = goal.objective.model_copy(update={"held_out": None})
    model = context.option("model", "") or goal.model
    if goal.adapter != ADAPTER:
        raise UserError(f"the arms are compared on the bundled target, not on {goal.adapter}")
    return goal.model_copy(update={"objective": objective, "model": model})


def told(found: Sequence[Searched], final: Finals) -> Result:
    """Table, picture, claims. Pure."""
    code = final.code
    claim = f"code moves add at least {WANTED}x to the best launch-only state (lower bound)"
    notes = [f"the best launch-only state: {final.best.arm.name}, seed {final.best.seed}: {settings(final.best)}"]
    if code is not None:
        notes.insert(0, f"with code moves, over it: {code.point:.3f}x [{code.low:.3f}, {code.high:.3f}]")
    else:
        notes.insert(0, "no comparison with code moves could be used: " + "; ".join(final.lines))
    return Result(
        columns=COLUMNS,
        rows=tuple(row(search, final) for search in found),
        picture=picture(found),
        notes=tuple(notes),
        claims={claim: code is not None and code.low >= WANTED},
        data={
            "curves": [
                {"arm": s.arm.name, "seed": s.seed, "curve": s.curve, "reason": s.reason, "config": s.state.config}
                for s in found
            ],
            "lines": final.lines,
        },
    )


def row(search: Searched, final: Finals) -> tuple[object, ...]:
    """One row of the table."""
    ratio = final.ratios.get((search.arm.name, search.seed))
    interval = (None, None) if ratio is None or search.arm.launch_only else (ratio.low, ratio.high)
    point = None if ratio is None else ratio.point
    head = (search.arm.name, search.seed, search.candidates, len(search.kept), round(search.seconds))
    return (*head, search.over_start, point, *interval, moves(search))


def moves(search: Searched) -> str:
    """What was kept, in short."""
    if search.arm.launch_only:
        return settings(search)
    return "; ".join("+".join(record.skeletons) for record in search.kept) or "nothing"


def settings(search: Searched) -> str:
    """The launch parameters of a state."""
    shown = {k: v for k, v in search.state.config.items() if k not in ("model", "operators", "seed")}
    return ", ".join(f"{name}={value}" for name, value in sorted(shown.items()))


def picture(found: Sequence[Searched]) -> Canvas:
    """Best so far (as measured in the search) over the seconds spent, a line a search."""
    canvas = Canvas(820, 400, "Best so far over the start, as each search measured it")
    across = spanning([point[0] for search in found for point in search.curve], 60, 790, floor=0.0)
    up = spanning([point[1] for search in found for point in search.curve], 350, 30, floor=1.0)
    for tick in up.ticks():
        canvas.line(60, up(tick), 790, up(tick), GREY, 0.4)
        canvas.text(52, up(tick) + 4, f"{tick:g}x", anchor="end")
    for tick in across.ticks():
        canvas.text(across(tick), 372, f"{tick:g} s", anchor="middle")
    for search in found:
        canvas.path([(across(x), up(y)) for x, y in search.curve], COLOURS.get(search.arm.name, BLUE), 1.8)
    for number, arm in enumerate(ARMS):
        _legend(canvas, arm, 80 + 200 * number)
    return canvas


def _legend(canvas: Canvas, arm: Arm, x: float) -> None:
    canvas.rect(x, 386, 18, 6, COLOURS[arm.name])
    canvas.text(x + 24, 394, arm.name)
