"""What the page says: the summary of the run, each hypothesis with its verdicts and its diff, the pictures, the
environment.
"""

from __future__ import annotations

import json
from typing import Any

from feedback.errors import UserError
from feedback.verdict import Verdict
from infra_agent.ledger import Ledger, is_being_written
from infra_agent.ledger_store import Row
from infra_agent.paths import RunPaths
from infra_agent.records import BaselineRecord, CandidateRecord, ProfileRecord, ProposalRecord, RunRecord, VerdictRecord
from infra_agent.report import charts
from infra_agent.report.svg import BLUE, GREEN, Canvas
from infra_agent.summary import summary

#: A diff longer than this is cut: the page is to be read, and `git show` in the workspace has the whole.
DIFF_LINES = 400


def gather(run: RunPaths) -> dict[str, Any]:
    """Everything that the page shows, as plain values and SVG."""
    ledger = Ledger.read(run.ledger)
    try:
        rows = list(ledger.rows(phase="result"))
    finally:
        ledger.close()
    told = summary(rows, running=is_being_written(run.ledger))
    record = next((RunRecord.model_validate(row.payload) for row in rows if row.kind == "run"), None)
    moves = _moves(run, rows, told)
    start = next((BaselineRecord.model_validate(row.payload) for row in rows if row.kind == "baseline"), None)
    return {
        "run": run.id,
        "told": told,
        "record": record,
        "start": start,
        "moves": moves,
        "evolution": _markup(
            charts.evolution(_steps(told), _references(told), told["objective"]["metric"] or "objective")
        ),
        "predictions": _predictions(told),
        "ablation_chart": _ablation(told),
        "environment": _environment(run, rows),
        "diagnosis": _diagnoses(rows),
        "reproduce": _reproduce(run, record),
    }


def _moves(run: RunPaths, rows: list[Row], told: dict[str, Any]) -> list[dict[str, Any]]:
    proposals = {row.key: ProposalRecord.model_validate(row.payload) for row in rows if row.kind == "proposal"}
    candidates = {row.key: CandidateRecord.model_validate(row.payload) for row in rows if row.kind == "candidate"}
    verdicts: dict[str, list[Verdict]] = {}
    for row in rows:
        if row.kind == "verdict":
            record = VerdictRecord.model_validate(row.payload)
            verdicts.setdefault(record.move or "", []).append(Verdict.model_validate(record.verdict))
    diffs = _Diffs(run)
    shown = []
    for move in told["moves"]:
        proposal, candidate = proposals.get(move["id"]), candidates.get(move["id"])
        own = verdicts.get(move["id"], [])
        shown.append(
            {
                **move,
                "observations": list(proposal.observations) if proposal else [],
                "lines": [(v.status.value, v.line(), v.cost_seconds, v.evidence) for v in own],
                "diff": diffs.between(candidate.base, move["commit"] or candidate.commit) if candidate else [],
                "change": _change(proposal),
            }
        )
    return shown


def _change(proposal: ProposalRecord | None) -> str:
    """A launch change in words; code changes are shown by their diff."""
    launch = proposal.change.get("launch", {}) if proposal else {}
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in launch.items())


class _Diffs:
    """Diffs out of the workspace; none when it is gone."""

    def __init__(self, run: RunPaths) -> None:
        from infra_agent.workspace import Workspace

        try:
            self._workspace: Workspace | None = Workspace.open(run)
        except UserError:
            self._workspace = None

    def between(self, base: str, commit: str) -> list[tuple[str, str]]:
        """Lines as (class, text); class is add, del, hunk, file or empty."""
        if self._workspace is None:
            return []
        try:
            lines = self._workspace.diff(base, commit).splitlines()
        except UserError:
            return [("hunk", "this commit is not in the workspace any more")]
        shown = [(_kind(line), line) for line in lines[:DIFF_LINES]]
        return shown if len(lines) <= DIFF_LINES else [*shown, ("hunk", f"... {len(lines) - DIFF_LINES} more lines")]


def _kind(line: str) -> str:
    if line.startswith(("diff ", "index ", "--- ", "+++ ", "new file", "deleted file")):
        return "file"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")


def evolution_of(told: dict[str, Any]) -> Canvas:
    """The evolution chart of a run's summary."""
    metric = told["objective"]["metric"] or "objective"
    return charts.evolution(_steps(told), _references(told), metric)


def _steps(told: dict[str, Any]) -> list[charts.Step]:
    """Each move at the ratio to the start that it would have reached: what was kept before, times its own."""
    steps, best = [], 1.0
    for move in told["moves"]:
        m = move["measured"]
        scaled = {key: best * m[key] for key in ("point", "low", "high")} if m else {}
        steps.append(
            charts.Step(move["title"], move["decision"], scaled.get("point"), scaled.get("low"), scaled.get("high"))
        )
        if move["decision"] == "keep" and m:
            best = scaled["point"]
    return steps


def _references(told: dict[str, Any]) -> list[tuple[str, float]]:
    """Par and sequential as ratios to the start."""
    final = told["final"]
    if not final:
        return []
    whole = final["ratio"]["point"]
    return [
        (other["against"], whole / other["ratio"]["point"])
        for other in final["comparisons"]
        if other["against"] != "start" and not other["held_out"]
    ]


def _predictions(told: dict[str, Any]) -> Any:
    points = [
        (move["title"], move["predicted"]["mean"], move["measured"]["point"], move["decision"])
        for move in told["moves"]
        if move["measured"]
    ]
    return _markup(charts.predictions(points)) if points else None


def _ablation(told: dict[str, Any]) -> Any:
    titles = {move["id"]: move["title"] for move in told["moves"]}
    rows = [
        charts.Bar(
            titles.get(entry["label"], entry["label"] if " " in entry["label"] else f"all {entry['label']} moves"),
            entry["gain"]["point"],
            entry["gain"]["low"],
            entry["gain"]["high"],
            GREEN if entry["label"] in titles else BLUE,
        )
        for entry in told["ablation"]
        if entry["gain"]
    ]
    return _markup(charts.bars(rows, "what each move is worth in the end", base=1.0)) if rows else None


def _diagnoses(rows: list[Row]) -> list[tuple[str, float]]:
    """What the start was found to suffer from."""
    from infra_agent.proposers import deviations
    from infra_agent.proposers.causes import diagnosis, with_found

    profile = next((ProfileRecord.model_validate(row.payload) for row in rows if row.kind == "profile"), None)
    if profile is None:
        return []
    openings = next((row.payload for row in rows if row.kind == "openings" and row.key == profile.commit), {})
    if deviations.known(profile.facts):
        return deviations.diagnosis(profile.facts)
    offered = [move["cause"] for move in openings.get("moves", ()) if move["kind"] == "code"]
    return diagnosis(with_found(profile.facts, offered, openings.get("looked_for", ())))[:6]


def _environment(run: RunPaths, rows: list[Row]) -> list[tuple[str, str]]:
    """The environment of the first verdict that has evidence."""
    from feedback.evidence import EvidenceStore

    store = EvidenceStore(run.evidence)
    folders = [row.payload.get("evidence") for row in rows if row.kind == "baseline"]
    folders += [row.payload["verdict"].get("evidence") for row in rows if row.kind == "verdict"]
    for folder in filter(None, folders):
        try:
            found = store.manifest(folder)["environment"]
        except (UserError, ValueError, KeyError):
            continue
        return [(str(name), value if isinstance(value, str) else json.dumps(value)) for name, value in found.items()]
    return []


def _reproduce(run: RunPaths, record: RunRecord | None) -> list[str]:
    """Commands that repeat the run, look into it, and take its result."""
    goal = run.goal if run.goal.is_file() else (record.goal if record else "GOAL")
    return [f"infra-agent run {goal}", f"infra-agent show {run.id} --json", f"infra-agent apply {run.id}"]


def _markup(canvas: Canvas) -> Any:
    """SVG is escaped where it is made (`svg.Canvas`), so the page takes it as it is."""
    from markupsafe import Markup

    return Markup(canvas.render())
