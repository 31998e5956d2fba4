"""How much does one answer of a tool tell about what is wrong, and which tool should be asked next?

A 32 x 32 x 32-tiled matrix product is emulated block by block with seven faults and with none; six tools of assumed
durations look at it on three shapes (in whole tiles, in none, with a long K). Every fault is planted, the answers are
counted, and from the counts follow: what each tool tells, in bits and bits per second; a diagnosis as a trace; how
seven policies fare on every fault; what the rank of the error and an identity for an input add. The lecture that this
rebuilds stands beside it, figure by figure (`lecture`); what it leaves open about the policies stands in `policies`.

Options: `plantings` of each fault on each shape (20), `seeds` of kernels with each fault (10); when to stop:
`confidence` (0.95) and `calls` (8). `table=FILE`: instead of the laboratory, a table of outcomes that was measured
elsewhere (`measured`; format: `feedback.information.outcomes`), each of its causes diagnosed `draws` (3) times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.feedback_information import measured
from experiments.feedback_information.kernel import SHAPES, TILE, Fault
from experiments.feedback_information.laboratory import Kernel, Planted, plant
from experiments.feedback_information.lecture import AS_COUNTED, TRACED, Figure, bits_of, figures
from experiments.feedback_information.picture import Told, drawn
from experiments.feedback_information.policies import (
    BESIDE,
    DEAR_P4,
    DEAR_P5,
    P1,
    P3,
    P4,
    P5,
    P7,
    SEVEN,
    WITH_RANK,
    Policy,
    score,
)
from experiments.feedback_information.tables import score_rows, text_of
from experiments.feedback_information.tools import COMPILE_SECONDS, PASS, PROBES, RANKED, TOOLS
from experiments.feedback_information.trace import Trace, follow
from feedback.errors import UserError
from feedback.information.belief import Belief
from feedback.information.choice import Worth, alike, ranked
from feedback.information.diagnosis import Stopping
from feedback.information.outcomes import OutcomeTable
from feedback.information.scores import Score
from infra_agent.experiments import Context, Result

COLUMNS = ("policy", "found", "wrong", "calls", "seconds", "bits", "pair_found", "may_ask")

#: Two faults that look alike on random inputs, and need different repairs.
PAIR = (Fault.K_SHORT, Fault.TRANSPOSED)

#: Policies whose numbers of calls differ by at most this share fare alike.
ALIKE = 0.1

#: Faults in what lies beyond whole tiles.
TAILS = (Fault.K_TAIL, Fault.GRID, Fault.STORE)


@dataclass(frozen=True)
class Found:
    """Everything that was measured."""

    planted: Planted
    scores: Mapping[str, Score]
    trace: Trace
    figures: tuple[Figure, ...]
    stopping: Stopping


def run(context: Context) -> Result:
    """The laboratory, or a table measured elsewhere."""
    stopping = Stopping(_number(context, "confidence", 0.95, 0.5, 1.0), int(_number(context, "calls", 8, 1, 1000)))
    file = context.option("table", "")
    if file:
        table = OutcomeTable.read(Path(file))
        draws = int(_number(context, "draws", 3, 1, 1000))
        context.say(f"{len(table.causes)} causes by {len(table.probes)} probes, {draws} diagnoses of each")
        return measured.told(table, measured.played(table, context.seed, draws, stopping))
    plantings, seeds = (int(_number(context, *of, 1, 10000)) for of in (("plantings", 20), ("seeds", 10)))
    planted = plant(plantings, context.seed, context.say)
    kernels = [Kernel(fault, context.seed * seeds + number) for fault in Fault for number in range(seeds)]
    scores = {}
    for policy in (*SEVEN, *BESIDE):
        scores[policy.name] = score(policy, planted.table, kernels, stopping)
        context.say(f"{policy.name}, {policy.about}: found {scores[policy.name].found:.0%}")
    trace = follow(P5, planted.table, TRACED, context.seed, stopping)
    return told(Found(planted, scores, trace, figures(planted, scores, trace, context.seed), stopping))


def _number(context: Context, name: str, default: float, low: float, high: float) -> float:
    given = context.option(name, str(default))
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(f"--option {name}={given}: a number from {low:g} to {high:g} is needed")
    return value


def told(found: Found) -> Result:
    """Table, picture, claims. Pure."""
    table = found.planted.table
    worths = ranked(Belief.uniform(table.causes), table.likelihoods())
    known = {w.probe: w for w in worths}
    six = [w for w in worths if PROBES[w.probe].tool is not RANKED]
    notes = [
        "",
        "What the tools answer, and how often of all plantings where not always:",
        *text_of(("fault", *(f"{shape.name} {shape.words()}" for shape in SHAPES)), traces(table)),
        "",
        f"Information from equal chances of {len(table.causes)} faults:",
        *text_of(("probe", "seconds", "bits", "as counted", "bit/s"), information(found.planted, worths)),
        "",
        f"Diagnosis of {TRACED.value} by {P5.name}:",
        *found.trace.lines,
        "",
        "The lecture beside it:",
        *text_of(
            ("figure", "lecture", "ours", "why"),
            [(f.what, f.lecture, f.ours, "" if abs(f.ours - f.lecture) < 1e-9 else f.why) for f in found.figures],
        ),
        "",
        f"Assumed seconds: {', '.join(f'{t.name} {t.seconds:g}' for t in TOOLS)}, compile {COMPILE_SECONDS:g}.",
        f"A diagnosis stops at {found.stopping.confidence:.0%} or after {found.stopping.calls} calls.",
    ]  # fmt: skip
    policies = [*SEVEN, *BESIDE]
    return Result(
        columns=COLUMNS,
        rows=tuple(row(policy, found.scores[policy.name]) for policy in policies),
        picture=drawn(
            [Told(w.probe, w.bits, w.seconds, PROBES[w.probe].tool.name == "test") for w in six],
            [found.scores[policy.name] for policy in policies],
            Belief.uniform(table.causes).entropy,
        ),
        notes=tuple(notes),
        claims=claims(found, known),
        data=data(found, worths),
    )


def row(policy: Policy, scored: Score) -> tuple[object, ...]:
    """One row of the table."""
    pair, of = scored.found_of(*(fault.value for fault in PAIR))
    return (*score_rows([scored])[0], f"{pair} of {of}", policy.about)


def traces(table: OutcomeTable) -> list[tuple[str, ...]]:
    """For each fault and shape what the detailed test answers most often, and what the other tools have to add."""
    rows: list[tuple[str, ...]] = []
    for fault in table.causes:
        cells = []
        for shape in SHAPES:
            usual, share = _usual(table, fault, f"detailed/{shape.name}")
            more = [
                outcome
                for tool, silent in (("memcheck", "clean"), ("racecheck", "clean"))
                for outcome in [_usual(table, fault, f"{tool}/{shape.name}")[0]]
                if outcome != silent
            ]
            cells.append("; ".join([usual if share == 1 else f"{usual} {share:.0%}", *more]))
        rows.append((fault, *cells))
    return rows


def _usual(table: OutcomeTable, fault: str, probe: str) -> tuple[str, float]:
    counts = table.counts[fault, probe]
    outcome = max(counts, key=lambda name: (counts[name], name))
    return outcome, counts[outcome] / table.planted(fault, probe)


def information(planted: Planted, worths: Sequence[Worth]) -> list[tuple[object, ...]]:
    """Rows of the second table: what a probe tells, smoothed and as counted."""
    return [(w.probe, w.seconds, w.bits, bits_of(planted, w.probe, AS_COUNTED), w.rate) for w in worths]


def claims(found: Found, known: Mapping[str, Worth]) -> dict[str, bool]:
    """What the experiment set out to show."""
    table, scores = found.planted.table, found.scores
    tests = [known[f"test/{shape.name}"].bits for shape in SHAPES]
    fine = known["detailed/edge"].bits
    unseen = all(set(table.counts[fault.value, "detailed/tidy"]) == {PASS} for fault in TAILS)
    pair = {name: scores[name].found_of(*(fault.value for fault in PAIR)) for name in scores}
    both = [[e.diagnosis.asked for e in scores[name].episodes] for name in (P4.name, P5.name)]
    same = sum(one == other for one, other in zip(*both, strict=True))
    short, transposed = (found.planted.ranks.get((fault.value, "tidy"), ()) for fault in PAIR)
    apart = [scores[policy.name] for policy in (DEAR_P4, DEAR_P5)]
    alone = [(a.value, b.value) for a, b in [PAIR]]
    return {
        f"a pass/fail test tells at most 1 bit ({max(tests):.2f})": max(tests) <= 1,
        f"the detailed test on the odd shape tells more than twice as much as pass/fail on any ({fine:.2f} bits)": fine
        > 2 * max(tests),
        "in whole tiles the three faults of the tail leave no trace": unseen,
        f"1: pass/fail in whole tiles finds nothing in {found.stopping.calls} calls, the detailed test most"
        f" ({scores[P3.name].found:.0%}), all tools more, in fewer calls": scores[P1.name].found == 0
        and 0.5 < scores[P3.name].found < scores[P5.name].found
        and scores[P5.name].calls < scores[P3.name].calls < scores[P1.name].calls,
        f"2: without a constructed input the pair is never told apart ({pair[P7.name][0]} of {pair[P7.name][1]}), with"
        f" it nearly always ({pair[P5.name][0]})": pair[P7.name][0] == 0
        and alike(P7.likelihoods(table)) == alone
        and not alike(P5.likelihoods(table))
        and pair[P5.name][0] >= 0.9 * pair[P5.name][1],
        f"3: most bits and most bits per second fare alike, since what tells most is cheap ({same} of {len(both[0])}"
        " diagnoses ask the same tools)": scores[P4.name].found == scores[P5.name].found
        and abs(scores[P4.name].calls - scores[P5.name].calls) <= ALIKE * scores[P5.name].calls,
        f"3: where it is dear they part ({apart[0].seconds:.0f} and {apart[1].seconds:.0f} s)": apart[1].seconds
        < 0.5 * apart[0].seconds
        and apart[1].found >= 0.95 * apart[0].found,
        f"the rank of the error tells the pair apart ({_span(short)} and {_span(transposed)})": max(short, default=999)
        <= TILE
        < 3 * TILE
        < min(transposed, default=0)
        and pair[WITH_RANK.name][0] >= 0.9 * pair[WITH_RANK.name][1],
        "the trace ends with a kernel that passes": found.trace.repaired,
    }  # fmt: skip


def _span(ranks: Sequence[int]) -> str:
    return "-" if not ranks else str(ranks[0]) if min(ranks) == max(ranks) else f"{min(ranks)} to {max(ranks)}"


def data(found: Found, worths: Sequence[Worth]) -> dict[str, object]:
    """Everything else, as JSON values."""
    return {
        "outcomes": found.planted.table.to_json(),
        "information": [{"probe": w.probe, "bits": w.bits, "seconds": w.seconds} for w in worths],
        "ranks": {f"{fault} {shape}": list(ranks) for (fault, shape), ranks in found.planted.ranks.items()},
        "trace": list(found.trace.lines),
        "found": {
            name: {fault.value: list(scored.found_of(fault.value)) for fault in Fault}
            for name, scored in found.scores.items()
        },
        "lecture": [{"figure": f.what, "lecture": f.lecture, "ours": f.ours, "why": f.why} for f in found.figures],
        "stopping": {"confidence": found.stopping.confidence, "calls": found.stopping.calls},
    }
