"""Do the code skeletons transform modules they never saw, and decline what only looks right?

Every code skeleton meets a renamed and restructured variant written for this experiment, a module out of transformers
(of Triton kernels: out of flash-linear-attention), and a counterexample. What it transforms is run beside the original
on three seeds, in a process of its own: outputs must agree within rounding (exactly where tokens come out), the
transformed functions must have run, and applying the skeleton again must find nothing more. A counterexample must be
declined with the reason that makes it one. Last, no skeleton's folder may name a path of the bundled target.

Options: `only` (comma-separated skeletons), `kinds` (of `variant`, `library`, `counterexample`; all).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.skeleton_transfer.paths_named import marks, named, target_files, texts_below
from experiments.skeleton_transfer.trials import TRIALS, Trial
from experiments.skeleton_transfer.verify import Outcome, attempt
from feedback.errors import UserError
from infra_agent.experiments import Context, Result
from infra_agent.report.svg import GREEN, GREY, RED, Canvas
from infra_agent.targetfiles import root_of
from skeletons.library import SHIPPED, Library

ADAPTER = "target_engine.adapter"
COLUMNS = ("skeleton", "module", "outcome", "places", "max_error", "functions_run", "right", "reason")
KINDS = ("variant", "library", "counterexample")


def run(context: Context) -> Result:
    """Try all, one after another."""
    library = Library.load(user=context.out / "no-library-of-the-user")
    wanted = [name for name in context.option("only", "").split(",") if name]
    kinds = [kind for kind in KINDS if kind in context.option("kinds", ",".join(KINDS)).split(",")]
    if not kinds:
        raise UserError(f"kinds: name some of {', '.join(KINDS)}")
    outcomes = []
    for number, trial in enumerate(TRIALS):
        if trial.skeleton not in (wanted or library.skeletons) or trial.kind not in kinds:
            continue
        outcome = attempt(library, trial, context.out / "trials" / f"{number:02d}-{trial.skeleton}-{trial.kind}")
        context.say(f"{trial.skeleton} on {trial.title}: {outcome.outcome}{_more(outcome)}")
        outcomes.append(outcome)
    root = root_of(ADAPTER)
    package = ADAPTER.split(".")[0]
    found = named(texts_below(SHIPPED), marks(package, target_files(root, package)))
    return told(outcomes, found, code_skeletons(library), bool(wanted), kinds)


def code_skeletons(library: Library) -> list[str]:
    """Names of the skeletons that transform code."""
    return [skeleton.name for skeleton in library if skeleton.kind == "code"]


def told(
    outcomes: Sequence[Outcome],
    paths: dict[str, list[str]],
    skeletons: Sequence[str],
    partial: bool,
    kinds: Sequence[str] = KINDS,
) -> Result:
    """Table, picture and claims. Pure."""
    done = {(outcome.trial.skeleton, outcome.trial.kind): outcome.ok for outcome in outcomes}
    considered = sorted({outcome.trial.skeleton for outcome in outcomes}) if partial else list(skeletons)

    def all_of(kind: str) -> bool:
        return bool(considered) and all(done.get((name, kind), False) for name in considered)

    promises = {
        "variant": "every code skeleton transforms a renamed and restructured variant, equal within rounding",
        "library": "every code skeleton transforms a module out of an installed library, equal within rounding",
        "counterexample": "every code skeleton declines its counterexample, with the reason",
    }
    claims = {promises[kind]: all_of(kind) for kind in kinds}
    claims["no skeleton's folder names a path of the target"] = not paths
    notes = [f"{file} names {', '.join(hits)}" for file, hits in paths.items()]
    notes.append(
        "transformers has no module with a block table of its own: its eager paged attention stands behind a class "
        "that gathers, which is what the template reads"
    )
    return Result(
        columns=COLUMNS,
        rows=tuple(row(outcome) for outcome in outcomes),
        picture=picture(done, considered),
        notes=tuple(notes),
        claims=claims,
        data={"ran": {_key(o.trial): {"ran": o.ran, "changed": o.changed, "values": o.values} for o in outcomes}},
    )


def row(outcome: Outcome) -> tuple[object, ...]:
    """One row of the table."""
    ran = f"{len(outcome.ran)} of {len(outcome.changed)}" if outcome.changed else None
    right = "yes" if outcome.ok else "NO"
    names = (outcome.trial.skeleton, outcome.trial.title.removeprefix("transformers."))
    return (*names, outcome.outcome, outcome.sites, outcome.error, ran, right, outcome.note)


def picture(done: dict[tuple[str, str], bool], skeletons: Sequence[str]) -> Canvas:
    """A grid: skeletons by kinds of module."""
    canvas = Canvas(720, 60 + 28 * len(skeletons), "Code skeletons on modules they never saw")
    for column, kind in enumerate(KINDS):
        canvas.text(320 + 140 * column, 30, kind, anchor="middle")
    for line, name in enumerate(skeletons):
        y = 44 + 28 * line
        canvas.text(240, y + 15, name, anchor="end")
        for column, kind in enumerate(KINDS):
            right = done.get((name, kind))
            colour = GREY if right is None else GREEN if right else RED
            canvas.rect(260 + 140 * column, y, 120, 20, colour)
            canvas.text(
                320 + 140 * column, y + 15, "-" if right is None else "right" if right else "wrong", anchor="middle"
            )
    return canvas


def _more(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f", off by {outcome.error:.2g}"
    return f" ({outcome.note})" if outcome.note else ""


def _key(trial: Trial) -> str:
    return f"{trial.skeleton} {Path(trial.source).name}"
