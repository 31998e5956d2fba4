"""What came of all faults: kill rates by layer and by kind, places, seconds, survivors and why, false alarms. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.feedback_information.tables import text_of
from experiments.operator_faults.absent import ABSENT
from experiments.operator_faults.campaign import Record
from experiments.operator_faults.layers import LAYERS
from experiments.operator_faults.picture import drawn
from feedback.information.outcomes import Observed, OutcomeTable
from infra_agent.experiments import Result

COLUMNS = ("layer", "asked", "refuted", "of_asked", "killed_so_far", "p50_s", "p95_s", "right_place", "false_alarms")

#: What acceptance asks for.
KILLED, PLACED, MEDIAN_SECONDS, LEAST_RECORDED, LEAST_MUTANTS = 0.98, 0.95, 5.0, 25, 150

#: Most survivors that are spelled out among the notes; all are in the data.
SPELLED = 60

SOUND = "sound"


@dataclass(frozen=True)
class Told:
    """A number of faults and what became of them."""

    faults: int
    equivalent: int
    regrouped: int
    killed: int
    placed: int

    @property
    def judged(self) -> int:
        """Those that are faults at all."""
        return self.faults - self.equivalent - self.regrouped

    @property
    def rate(self) -> float:
        """Killed, of those that are faults."""
        return self.killed / self.judged if self.judged else float("nan")

    @property
    def strict(self) -> float:
        """Killed, of those that differ in a bit."""
        return self.killed / (self.faults - self.equivalent) if self.faults > self.equivalent else float("nan")

    @property
    def right(self) -> float:
        """Placed right, of the killed."""
        return self.placed / self.killed if self.killed else float("nan")

    @classmethod
    def of(cls, records: Iterable[Record]) -> Told:
        """Counted; a broken record counts as a fault that was not killed."""
        every = list(records)
        killed = [record for record in every if record.outcome == "killed"]
        same, near = (sum(record.outcome == name for record in every) for name in ("equivalent", "regrouped"))
        return cls(len(every), same, near, len(killed), sum(record.localised for record in killed))


def quantiles(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    """Median and 95th percentile; None of nothing."""
    if not seconds:
        return None, None
    p50, p95 = np.quantile(np.asarray(seconds), [0.5, 0.95])
    return float(p50), float(p95)


def conclude(recorded: Sequence[Record], mutants: Sequence[Record], clean: Sequence[Record], whole: bool) -> Result:
    """Table, picture, claims. `whole`: nothing was left out by an option but mutants beyond the sample."""
    faults = [*recorded, *mutants]
    groups = grouped(recorded, mutants)
    reports, made = Told.of(recorded), Told.of(mutants)
    every = Told.of(faults)
    p50, p95 = quantiles([record.seconds for record in faults if record.outcome == "killed"])
    alarms = [answer for record in clean for answer in record.answers if answer.refuted]
    late = [record for record in recorded if record.outcome == "killed" and not in_time(record)]
    enough = reports.faults >= LEAST_RECORDED and made.faults >= LEAST_MUTANTS
    claims = {
        f"at least {LEAST_RECORDED} reports and {LEAST_MUTANTS} mutants ({reports.faults}, {made.faults})": enough,
    }
    if recorded:
        claims |= {
            f"every reported fault is killed ({reports.killed} of {reports.faults})": reports.killed == reports.faults,
            f"each by the layer that must see it, or by a cheaper one (all but {len(late)})": not late
            and reports.killed > 0,
        }
    if mutants:
        claims[
            f"at least {KILLED:.0%} of the mutants that are another function are killed ({made.killed} of "
            f"{made.judged}, {made.rate:.1%}; of those that differ in any bit {made.strict:.1%})"
        ] = made.rate >= KILLED
    if faults:
        claims |= {
            f"at least {PLACED:.0%} of the killed are placed right, operator and step ({every.placed} of "
            f"{every.killed}, {every.right:.1%})": every.right >= PLACED,
            f"the median fault takes under {MEDIAN_SECONDS:g} s ({p50 or 0:.1f} s)": p50 is not None
            and p50 < MEDIAN_SECONDS,
        }
    if clean:
        claims[
            f"no alarm about the engine as it is ({len(alarms)} in {sum(len(r.answers) for r in clean)} answers)"
        ] = not alarms and all(answer.status == "confirmed" for record in clean for answer in record.answers)
    notes = [
        *text_of(
            ("kind", "faults", "equivalent", "regrouped", "killed", "rate", "right_place", "p50_s", "p95_s"),
            [kind_row(name, some) for name, some in groups.items()],
        ),
        "",
        f"seconds from the planted text to the refutation: p50 {p50 or 0:.1f}, p95 {p95 or 0:.1f}",
        *survivors(faults),
        *equivalents(faults),
        *misplaced(faults),
        *(f"late: {record.name} had to be seen by {record.layer}" for record in late),
        *(f"false alarm: {answer.layer}: {answer.line}" for answer in alarms),
        "",
        "public reports without a counterpart in this engine:",
        *(f"  {source}: {what} ({why})" for source, what, why in ABSENT),
        *([] if whole else ["an option left faults out: the claims are about those that were asked"]),
    ]
    return Result(
        columns=COLUMNS,
        rows=tuple(layer_rows(faults, clean)),
        picture=drawn({name: Told.of(some) for name, some in groups.items()}, [r.seconds for r in faults]),
        notes=tuple(notes),
        claims=claims,
        data={
            "faults": [as_data(record) for record in faults],
            "clean": [as_data(record) for record in clean],
            "outcomes": outcome_table(faults, clean),
            "layers": layer_table(faults, clean),
            "absent": [list(each) for each in ABSENT],
        },
    )


def grouped(recorded: Sequence[Record], mutants: Sequence[Record]) -> dict[str, list[Record]]:
    """By group of the reports, then by kind of the mutants, in order of appearance."""
    found: dict[str, list[Record]] = {}
    for record in recorded:
        found.setdefault(record.kind, []).append(record)
    for record in mutants:
        found.setdefault(f"mutants: {record.kind}", []).append(record)
    return found


def kind_row(name: str, records: Sequence[Record]) -> tuple[object, ...]:
    """One row of the table of kinds."""
    told = Told.of(records)
    p50, p95 = quantiles([record.seconds for record in records if record.outcome == "killed"])
    shares = [None if np.isnan(value) else round(value, 3) for value in (told.rate, told.right)]
    return (name, told.faults, told.equivalent, told.regrouped, told.killed, *shares, p50, p95)


def layer_rows(faults: Sequence[Record], clean: Sequence[Record]) -> list[tuple[object, ...]]:
    """One row a layer that was asked, in order."""
    rows, so_far = [], 0
    judged = max(1, Told.of(faults).judged)
    for layer in LAYERS:
        answers = [answer for record in faults for answer in record.answers if answer.layer == layer.name]
        first = [r for r in faults if r.refuting is not None and r.refuting.layer == layer.name]
        alarms = [a for record in clean for a in record.answers if a.layer == layer.name]
        if not answers and not alarms:
            continue
        so_far += len(first)
        p50, p95 = quantiles([answer.seconds for answer in answers])
        share = len(first) / len(answers) if answers else None
        right = sum(record.localised for record in first) / len(first) if first else None
        wrong = f"{sum(answer.refuted for answer in alarms)} of {len(alarms)}"
        rows.append((layer.name, len(answers), len(first), share, so_far / judged, p50, p95, right, wrong))
    return rows


def in_time(record: Record) -> bool:
    """Whether a reported fault was seen by the layer that must see it, or by one before it."""
    order = [layer.name for layer in LAYERS]
    must = {"sharded_model": "sharded model"}.get(record.layer, record.layer)
    latest = "sharding, layer split" if must == "sharding" else must  # two launch configurations of one layer
    refuting = record.refuting
    return refuting is not None and order.index(refuting.layer) <= order.index(latest)


def survivors(faults: Sequence[Record]) -> list[str]:
    """Every fault that no layer refuted, with what is known of why."""
    left = [record for record in faults if record.outcome in ("survived", "broken")]
    lines = ["", f"survivors: {len(left)}"] if left else ["", "survivors: none"]
    return lines + [f"  {record.name}: {record.change} ({why(record)})" for record in left[:SPELLED]]


def why(record: Record) -> str:
    """What is known of why a fault was not killed."""
    if record.outcome == "broken":
        return next(a.line[:160] for a in record.answers if a.status == "invalid")
    found = record.compared
    if found is None:
        return "no layer that was asked refutes it"
    if found.worst is None:
        return f"not seen: {found.words()}"
    if found.worst > 1.0:
        return f"missed by chance or for want of a case: {found.words()}"
    return f"within the tolerance: {found.words()}"


def equivalents(faults: Sequence[Record]) -> list[str]:
    """Every mutant that is the same program, and every one that is the same function."""
    lines = []
    for outcome, words in (
        ("equivalent", "equivalent, to the last bit"),
        ("regrouped", "the same function, regrouped"),
    ):
        same = [record for record in faults if record.outcome == outcome and record.compared is not None]
        lines += ["", f"{words}: {len(same)}"]
        lines += [f"  {r.name}: {r.change} ({r.compared.words()})" for r in same[:SPELLED] if r.compared is not None]
    return lines


def misplaced(faults: Sequence[Record]) -> list[str]:
    """Killed faults whose refutation names another place."""
    wrong = [(record, record.refuting) for record in faults if record.outcome == "killed" and not record.localised]
    lines = ["", f"killed, and placed elsewhere: {len(wrong)}"]
    return lines + [
        f"  {r.name}: {a.layer} says {a.operator or a.file or 'nothing'} {a.step}, "
        f"planted in {'/'.join(r.operators) or r.path} {'/'.join(r.steps)}"
        for r, a in wrong[:SPELLED]
        if a is not None
    ]


def cause_of(record: Record) -> str:
    """What has to be told apart: where the fault is."""
    if record.kind == "none":
        return "none"
    return f"{record.operators[0] if record.operators else record.path.rpartition('/')[2]}/{record.kind}"


def outcome_table(faults: Sequence[Record], clean: Sequence[Record]) -> dict[str, Any]:
    """Place and kind of a fault against what each layer said about the place; empty when nothing was asked."""
    seen = [
        Observed(cause_of(record), answer.layer, answer.outcome, answer.seconds)
        for record in (*clean, *faults)
        if record.outcome not in ("equivalent", "regrouped")
        for answer in record.answers
    ]
    return _table(seen, "operator/kind")


def layer_table(faults: Sequence[Record], clean: Sequence[Record]) -> dict[str, Any]:
    """For a ladder: flaws named after the layer that found them first, against statuses; empty when nothing was."""
    seen = []
    for record in (*clean, *faults):
        refuting = record.refuting
        if (record.outcome == "killed" and refuting is not None) or record.kind == "none":
            cause = SOUND if refuting is None else refuting.layer.split(",")[0]
            seen += [Observed(cause, a.layer.split(",")[0], a.status, a.seconds) for a in record.answers]
    return _table(seen, "layers")


def _table(seen: Sequence[Observed], causes: str) -> dict[str, Any]:
    about = {"experiment": "operator_faults", "causes": causes}
    return OutcomeTable.of(seen, about=about).to_json() if seen else {}


def as_data(record: Record) -> dict[str, object]:
    """One record as JSON values."""
    refuting = record.refuting
    return {
        "name": record.name,
        "kind": record.kind,
        "source": record.source,
        "at": f"{record.path}:{record.line}",
        "change": record.change,
        "outcome": record.outcome,
        "killed_by": refuting.layer if refuting else None,
        "line": refuting.line if refuting else None,
        "planted_at": [list(record.operators), list(record.steps)],
        "said": [refuting.operator, refuting.step, refuting.file] if refuting else None,
        "localised": record.localised,
        "seconds": record.seconds,
        "asked": [[answer.layer, answer.status, answer.seconds] for answer in record.answers],
        "compared": record.compared.words() if record.compared else None,
    }
