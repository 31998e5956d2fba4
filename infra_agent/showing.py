"""A run's summary as text for a person, from the JSON value of `summary`."""

from __future__ import annotations

from typing import Any

from feedback.errors import UserError
from infra_agent.ledger import Ledger, is_being_written
from infra_agent.paths import RunPaths
from infra_agent.summary import summary

Told = dict[str, Any]


def read_summary(run: RunPaths) -> Told:
    """The summary of a run on disk; `UserError` when its ledger cannot be read or is of another version."""
    from pydantic import ValidationError

    try:
        with Ledger.read(run.ledger) as ledger:
            told = summary(ledger.rows(), is_being_written(run.ledger))
    except ValidationError as error:
        raise UserError(f"{run.ledger} was written by another version of the program: {error.title}") from error
    return told | {"run": run.id, "folder": str(run.root)}


def told(run: RunPaths) -> Told:
    """The same for a list: a run that cannot be read says so instead of hiding the others."""
    try:
        return read_summary(run)
    except UserError as error:
        return {"run": run.id, "folder": str(run.root), "status": "unreadable", "reason": str(error)}


def runs_header() -> str:
    """The head of the table of runs."""
    return f"{'RUN':<32} {'GOAL':<14} {'START':<12} {'STATUS':<12} {'BEST':>8} {'KEPT':>7} {'SECONDS':>8}"


def run_line(run: Told) -> str:
    """One run as a row of the table."""
    if run["status"] == "unreadable":
        return f"{run['run']:<32} {'unreadable':<41} {run['reason']}"
    kept = sum(move["kept"] for move in run["moves"])
    best = f"{run['objective']['ratio']['point']:.2f}x" if run["objective"]["basis"] != "none" else "-"
    return (
        f"{run['run']:<32} {run['goal'] or '-':<14} {run['start'] or '-':<12} {run['status']:<12} {best:>8} "
        f"{kept:>3}/{len(run['moves']):<3} {run['cost']['wall_seconds']:>8.0f}"
    )


def run_text(run: Told) -> str:
    """The whole run as text."""
    lines = [
        f"run       {run['run']}  ({run['folder']})",
        f"goal      {run['goal'] or 'not begun'} from {run['start'] or '-'}",
        f"status    {run['status'].replace('_', ' ')}{': ' + run['reason'] if run['reason'] else ''}",
        f"objective {_objective(run['objective'])}",
        "",
    ]
    for move in run["moves"]:
        predicted = move["predicted"]
        lines.append(f"{move['decision']:<7} {move['id']}  {move['title']}")
        lines.append(
            f"          predicted {_ratio(predicted['mean'], predicted)}, measured {_measured(move['measured'])}"
        )
        lines.append(f"          {move['reason']}")
        if move["regression"]:
            lines.append(f"          its regression test, which fails on the base: {move['regression']}")
    for taken in run["ablation"]:
        worth = f"worth {_measured(taken['gain'])}" if taken["gain"] or not taken["note"] else taken["note"]
        lines.append(f"ablation  {taken['label']}: {worth}")
    cost = run["cost"]
    lines += [
        *([""] if run["moves"] else []),
        f"cost      {cost['wall_seconds']:.0f} s, {cost['candidates']} candidates, "
        f"{cost['tokens']} tokens, {cost['usd']:.2f} USD",
    ]
    return "\n".join(lines)


def _objective(objective: dict[str, Any]) -> str:
    if objective["metric"] is None or objective["start"] is None:
        return f"{objective['metric'] or '-'}: the start is not measured yet"
    basis = {"final": "side by side", "moves": "product of the kept moves", "none": "nothing kept yet"}
    ratio = objective["ratio"]
    return (
        f"{objective['metric']} {objective['start']:.4g} -> {objective['best']:.4g}, "
        f"{_ratio(ratio['point'], ratio)} ({basis[objective['basis']]})"
    )


def _measured(ratio: dict[str, float] | None) -> str:
    return "nothing" if ratio is None else _ratio(ratio["point"], ratio)


def _ratio(point: float, interval: dict[str, float]) -> str:
    return f"{point:.3f}x [{interval['low']:.3f}, {interval['high']:.3f}]"
