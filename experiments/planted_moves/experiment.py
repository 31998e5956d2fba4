"""Is every planted move turned down by the cheapest layer that can see through it, with place and reason, and how fast?

Wrong for odd lengths, slow, crashing, hanging, editing the evaluator, printing a fake result, patching the clock: each
is handed in on the state of `first_run` as an optimisation, and goes through the ladder of a run until it is turned
down. Cold: in a new world, everything started first. Warm: in a world that has judged before. Two honest moves must
pass the same layers.

Options: `model`; `repeats` (3), how often each is submitted warm; `cold` (1), how often cold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.planted_moves.submitting import HONEST, PLANTS, Submission, right, session
from infra_agent.experiments import Context, Result
from infra_agent.report.svg import BLUE, GREY, RED, Canvas, spanning

COLUMNS = ("move", "adequate", "refuted_by", "asked", "right", "cold_s", "warm_s", "line")


def run(context: Context) -> Result:
    """Submit all, warm and cold."""
    model = context.option("model", "")
    found: list[Submission] = []
    repeats = int(context.option("repeats", "3"))
    for number in range(repeats):
        honest = HONEST if number == 0 else ()
        found += session(context.out / f"warm-{number}", PLANTS, model, cold=False, honest=honest)
        context.say(
            f"warm {number + 1} of {repeats}: "
            + ", ".join(f"{s.plant.name} {s.seconds:.1f} s" for s in found[-len(PLANTS) :])
        )
    for number in range(int(context.option("cold", "1"))):
        for plant in PLANTS:
            folder = context.out / f"cold-{number}-{plant.name.replace(' ', '-')}"
            found += session(folder, [plant], model, cold=True)
            context.say(f"cold: {plant.name} {found[-1].seconds:.1f} s")
    return told(found)


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    p50, p95 = np.quantile(np.asarray(seconds), [0.5, 0.95])
    return float(p50), float(p95)


def told(found: Sequence[Submission]) -> Result:
    """Table, picture, claims. Pure."""
    wrong = {submission.plant.name: why for submission in found if (why := right(submission))}
    planted = [submission for submission in found if submission.plant.layers]
    notes = [f"{name}: {why}" for name, why in wrong.items()]
    for title, cold in (("warm", False), ("cold", True)):
        seconds = [submission.seconds for submission in planted if submission.cold == cold]
        if seconds:
            p50, p95 = quantiles(seconds)
            notes.append(f"submit to verdict, {title}: p50 {p50:.1f} s, p95 {p95:.1f} s (n = {len(seconds)})")
    dearest = max((s for s in planted if s.plant.layers == ("static",)), key=lambda s: s.seconds, default=None)
    claims = {
        "every planted move is rejected by an adequate layer, with place and reason": bool(planted)
        and not any(submission.plant.name in wrong for submission in planted),
        "no honest move is refuted or left open": not any(not s.plant.layers and s.plant.name in wrong for s in found),
        "what the text shows is refuted without running it": dearest is not None
        and all(s.asked == ("static",) for s in planted if s.plant.layers == ("static",)),
    }
    return Result(
        columns=COLUMNS,
        rows=rows(found),
        picture=picture(planted),
        notes=tuple(notes),
        claims=claims,
        data={
            "submissions": [
                {
                    "move": s.plant.name,
                    "cold": s.cold,
                    "seconds": s.seconds,
                    "decision": s.decision,
                    "verdicts": [
                        {"layer": v.layer, "status": v.status.value, "line": v.line(), "seconds": v.cost_seconds}
                        for v in s.verdicts
                    ],
                }
                for s in found
            ]
        },
    )


def rows(found: Sequence[Submission]) -> tuple[tuple[object, ...], ...]:
    """One row a move: its first submission's story, medians of the times."""
    made = []
    for name in dict.fromkeys(submission.plant.name for submission in found):
        own = [submission for submission in found if submission.plant.name == name]
        first, refuting = own[0], own[0].refuting
        times = [[s.seconds for s in own if s.cold == cold] for cold in (True, False)]
        cold, warm = (float(np.median(seconds)) if seconds else None for seconds in times)
        wrong = next(filter(None, map(right, own)), "")
        line = refuting.line() if refuting else wrong or "all confirmed"
        adequate = " or ".join(first.plant.layers) or "none"
        by = refuting.layer if refuting else None
        made.append((name, adequate, by, ", ".join(first.asked), "NO" if wrong else "yes", cold, warm, line[:160]))
    return tuple(made)


def picture(planted: Sequence[Submission]) -> Canvas:
    """Seconds from submission to verdict, a row a move; hollow: cold."""
    names = list(dict.fromkeys(submission.plant.name for submission in planted))
    canvas = Canvas(820, 60 + 28 * len(names), "Seconds from submission to verdict; hollow: cold")
    scale = spanning([submission.seconds for submission in planted], 220, 790, floor=0.0)
    for tick in scale.ticks():
        canvas.line(scale(tick), 16, scale(tick), 22 + 28 * len(names), GREY, 0.5)
        canvas.text(scale(tick), 40 + 28 * len(names), f"{tick:g} s", anchor="middle")
    for line, name in enumerate(names):
        y = 30.0 + 28 * line
        canvas.text(210, y + 4, name, anchor="end")
        for submission in planted:
            if submission.plant.name == name:
                colour = RED if right(submission) else BLUE
                canvas.dot(
                    scale(submission.seconds), y, colour, hollow=submission.cold, hint=f"{submission.seconds:.1f} s"
                )
    return canvas
