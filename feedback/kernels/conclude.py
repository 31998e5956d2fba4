"""From trials and compile reports to what a verdict says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from feedback.judging import Finding
from feedback.kernels.observed import NOT_MODELLED
from feedback.kernels.trial import Site, Trial
from feedback.verdict import Confidence, Location, Status

Reports = Sequence[Mapping[str, Any]]

#: A worker's path of a file as the person knows it.
Naming = Callable[[str], str]


def concluded(
    subject: str,
    trials: Sequence[Trial],
    reports: Reports,
    *,
    must_compile: Sequence[str] = (),
    confidence: tuple[Confidence, Sequence[str]],
    naming: Naming = str,
    gaps: Sequence[str] = (),
    at: Location | None = None,
) -> Finding:
    """What trials (at least one) and compile reports say about `subject`."""
    believed, why = confidence
    seen = gaps_of(trials)
    open_ = (*why, *gaps, *seen, *NOT_MODELLED)
    data = {
        "cases": [_as_data(trial, naming) for trial in trials],
        "compiled": [dict(report) for report in reports],
        "applicability": applicability(reports),
    }
    metrics = figures(trials, reports)
    bad = [trial for trial in trials if trial.worst.wrong]
    if bad:
        places = _places(bad[0], naming, at)
        text = f"{subject}: {_wrong(bad, len(trials))}"
        nxt = "tf32x3 or ieee for these products" if bad[0].by_precision else None
        return Finding(Status.REFUTED, text, believed, at=places, gaps=open_, next=nxt, metrics=metrics, data=data)
    launched = [trial for trial in trials if trial.seen.get("launches")]
    if not launched:
        text = f"{subject}: no kernel was launched: what came back was computed some other way"
        return Finding(Status.UNSUPPORTED, text, gaps=(text, *open_), metrics=metrics, data=data)
    if len(launched) < len(trials):
        unlaunched = ", ".join(trial.case for trial in trials if trial not in launched)
        open_ = (f"cases in which no kernel was launched: {unlaunched}", *open_)
    unfit = _unfit(reports, must_compile)
    if unfit:
        text = f"{subject}: {unfit[0]['kernel']} {unfit[0]['fact']}"
        places = (at,) if at else ()
        return Finding(Status.REFUTED, text, Confidence.DIRECT, at=places, gaps=open_, metrics=metrics, data=data)
    unknown = _unknown(reports, must_compile)
    if unknown:
        text = f"{subject}: right as interpreted, but whether it compiles is not known: {unknown}"
        return Finding(Status.INCONCLUSIVE, text, believed, gaps=(unknown, *open_), metrics=metrics, data=data)
    worst = max(trial.worst.ratio for trial in trials)
    cases = "1 case" if len(trials) == 1 else f"{len(trials)} cases"
    text = (
        f"{subject}: {cases} within bounds of float64 under truncation and under rounding of tf32 operands, largest "
        f"error {worst:.0%} of what is allowed{compile_text(reports)}"
    )
    return Finding(Status.CONFIRMED, text, believed, gaps=open_, metrics=metrics, data=data)


def _unfit(reports: Reports, must_compile: Sequence[str]) -> list[dict[str, str]]:
    """Facts that rule the subject out: a promised device on which a kernel cannot be used, and a kernel that can be
    used on no device that it was compiled for.
    """
    facts = applicability(reports)
    found = [fact for fact in facts if fact["device"] in must_compile]
    for kernel in dict.fromkeys(report["kernel"] for report in reports):
        devices = {report["device"] for report in reports if report["kernel"] == kernel}
        own = [fact for fact in facts if fact["kernel"] == kernel]
        if devices == {fact["device"] for fact in own}:
            found += [fact for fact in own if fact not in found]
    return found


def _unknown(reports: Reports, must_compile: Sequence[str]) -> str:
    """A promised device of which nothing is known (not compiled for, or not within the time), or an empty text."""
    for device in must_compile:
        own = [report for report in reports if report["device"] == device]
        if not own:
            return f"nothing was compiled for {device}"
        late = next((report for report in own if report.get("timed_out")), None)
        if late is not None:
            return f"{late['kernel']} for {device}: {late['problem']}"
    return ""


def compile_text(reports: Reports) -> str:
    """One phrase a device: `; cuda:90 255 registers, 404 bytes spilled, 105 KiB shared, 24 HGMMA`."""
    parts = []
    for device in dict.fromkeys(report["device"] for report in reports):
        own = [report for report in reports if report["device"] == device]
        facts = [fact["fact"] for fact in applicability(own)]
        parts.append(facts[0] if facts else f"{device} {_resources(own)}")
    return "".join(f"; {part}" for part in parts)


def applicability(reports: Reports) -> list[dict[str, str]]:
    """Where a kernel cannot be used, and why: it does not compile there, or needs more than the device has."""
    found = []
    for report in reports:
        if report.get("timed_out"):
            continue  # slow is not unable
        reasons = [f"does not compile for {report['device']}: {report['problem']}"] if report["problem"] else []
        for reason in [*reasons, *report["excess"]]:
            found.append({"kernel": report["kernel"], "device": report["device"], "fact": reason})
    return found


def figures(trials: Sequence[Trial], reports: Reports) -> dict[str, float]:
    """Numbers for the verdict: the worst error, and per device the most that any kernel uses."""
    worst = [trial.worst for trial in trials]
    named = {
        "cases": float(len(trials)),
        "worst_error_ratio": max((outcome.ratio for outcome in worst), default=0.0),
        "worst_relative_error": max((outcome.relative for outcome in worst), default=0.0),
    }
    for report in reports:
        if not report["problem"]:
            for field in ("registers", "spill_bytes", "shared_bytes"):
                key = f"{report['device']}_{field}"
                named[key] = max(named.get(key, 0.0), float(report[field]))
    return named


def gaps_of(trials: Sequence[Trial]) -> tuple[str, ...]:
    """What the runs themselves add to what is not modelled."""
    types = {site[2] for trial in trials for site in trial.seen.get("dots", ())}
    found = []
    if "bf16" in types or "fp16" in types:
        found.append("results of half-width products before they are rounded to float32")
    if any(site[3] == "tf32" for trial in trials for site in trial.seen.get("dots", ())):
        found.append("xf32, AMD's form of tf32")
    return tuple(found)


def _wrong(bad: Sequence[Trial], total: int) -> str:
    first, worst = bad[0], bad[0].worst
    by_mode = ", ".join(f"{_size(outcome.relative)} under {outcome.mode}" for outcome in first.outcomes)
    text = f"{worst.output} off by {by_mode} (relative to the largest value) in {first.case}"
    if not np.isfinite(worst.relative):
        text = f"{worst.output} {worst.pattern} in {first.case}"
    else:
        text += f", {worst.ratio:.3g} times what is allowed"
    more = f"; {len(bad)} of {total} cases wrong" if total > 1 else ""
    return f"{text}; {_cause(first)}{more}"


def _cause(trial: Trial) -> str:
    if not trial.by_precision:
        return "wrong with exact products too: logic, not precision"
    if not trial.sites:
        return "vanishes with exact products: precision, of several products together"
    ways = ", ".join(sorted({site[3] or site[2] for site in trial.sites}))
    count = "one product" if len(trial.sites) == 1 else f"{len(trial.sites)} products, each alone"
    return f"vanishes with exact products: precision, not logic; {ways} in {count}"


def _places(trial: Trial, naming: Naming, at: Location | None) -> tuple[Location, ...]:
    """The products that spoil the result, else the subject itself with the pattern of the error."""
    base = at or Location(condition=trial.case)
    if not trial.sites:
        pattern = trial.worst.pattern or None
        return (base.model_copy(update={"condition": trial.case, "pattern": pattern}),)
    return tuple(
        base.model_copy(
            update={"file": naming(site[0]), "line": site[1], "condition": trial.case, "pattern": _way(site)}
        )
        for site in trial.sites[:8]
    )


def _way(site: Site) -> str:
    return f"tl.dot in {site[3] or site[2]}"


def _resources(reports: Reports) -> str:
    """The most of each over the kernels of one device."""
    most = {field: max(report[field] for report in reports) for field in ("registers", "spill_bytes", "shared_bytes")}
    spilled = max(report["spilled_registers"] for report in reports)
    dots: dict[str, int] = {}
    for report in reports:
        for name, count in report["dots"].items():
            dots[name] = dots.get(name, 0) + count
    parts = [f"{most['registers']} registers"]
    parts += [f"{most['spill_bytes']} bytes spilled"] if most["spill_bytes"] else []
    parts += [f"{spilled} registers spilled"] if spilled else []
    parts += [f"{most['shared_bytes'] / 1024:.0f} KiB shared", *(f"{count} {name}" for name, count in dots.items())]
    return (f"at most {', '.join(parts)} in {len(reports)} kernels") if len(reports) > 1 else ", ".join(parts)


def _size(value: float) -> str:
    return f"{value:.1e}" if np.isfinite(value) else "no number"


def _as_data(trial: Trial, naming: Naming) -> dict[str, Any]:
    def site(found: Sequence[Any]) -> list[Any]:
        return [naming(str(found[0])), *found[1:]]

    return {
        "case": trial.case,
        "outcomes": [_plain(asdict(outcome)) for outcome in trial.outcomes],
        "exact": None if trial.exact is None else _plain(asdict(trial.exact)),
        "spoiling": [site(found) for found in trial.sites],
        "seen": {**trial.seen, "dots": [site(found) for found in trial.seen.get("dots", ())]},
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}
