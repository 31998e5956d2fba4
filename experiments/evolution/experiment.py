"""How far does a run take the first version of the engine, and how far is that from the best we know?

The main job: the shipped goal `throughput`, from `first_run`, unattended. Beside the evolution stand par (the shipped
production profile) and one request at a time, measured in the same session.
"""

from __future__ import annotations

import sys
from typing import Any

from infra_agent.experiments import Context, Result
from infra_agent.goal import Goal
from infra_agent.loop import run_goal
from infra_agent.progress import Lines
from infra_agent.report import write
from infra_agent.report.data import evolution_of
from infra_agent.session import begin
from infra_agent.showing import read_summary

COLUMNS = ("step", "kind", "predicted", "measured", "low", "high", "decision", "best_over_start")


def run(context: Context) -> Result:
    """Run the goal and tell its evolution. Options: `goal` (a name or a file), `wall_seconds`."""
    wall = context.options.get("wall_seconds")
    goal = Goal.load(context.option("goal", "throughput"))
    goal = goal.overridden(wall_seconds=float(wall) if wall else None, seed=context.seed or goal.seed)
    goal, place = begin(goal)
    context.say(f"run {place.id}")
    run_goal(goal, place, Lines(sys.stderr))
    told = read_summary(place)
    page = write(place, context.out / "report.html")
    ratio = told["objective"]["ratio"]
    held_out = [c["ratio"] for c in (told["final"] or {}).get("comparisons", ()) if c["held_out"]]
    return Result(
        columns=COLUMNS,
        rows=rows(told),
        picture=evolution_of(told),
        notes=(*notes(told), f"run {place.id}; its report is {page}"),
        claims={
            "the run ended improved, with its constraints held": told["status"] == "improved",
            "output throughput at least 3x the start (lower bound)": ratio["low"] >= 3.0,
            "held-out workload at least 2.5x (lower bound)": any(r["low"] >= 2.5 for r in held_out),
        },
        data=told,
    )


def rows(told: dict[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """One row a move, then the references, all as ratios to the start where they can be."""
    best, found = 1.0, []
    for move in told["moves"]:
        measured = move["measured"]
        if move["decision"] == "keep" and measured:
            best *= measured["point"]
        interval = [measured[key] for key in ("point", "low", "high")] if measured else [None] * 3
        found.append((move["title"], move["kind"], move["predicted"]["mean"], *interval, move["decision"], best))
    final = told["final"]
    if final:
        whole = final["ratio"]
        found.append(
            ("best against start", "final", None, whole["point"], whole["low"], whole["high"], "", whole["point"])
        )
        for other in final["comparisons"]:
            r = other["ratio"]
            name = f"best against {other['against']}" + (" (held out)" if other["held_out"] else "")
            found.append((name, "final", None, r["point"], r["low"], r["high"], "", None))
    return tuple(found)


def notes(told: dict[str, Any]) -> tuple[str, ...]:
    """The outcome in words."""
    objective, cost = told["objective"], told["cost"]
    said = [
        f"{told['status'].replace('_', ' ')}: {told['reason']}",
        f"{cost['wall_seconds']:.0f} s, {cost['candidates']} candidates",
    ]
    if objective["start"] is not None and objective["best"] is not None:
        said.insert(0, f"{objective['metric']} {objective['start']:.4g} -> {objective['best']:.4g}")
    return tuple(said)
