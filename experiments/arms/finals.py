"""The arms' best states side by side in one session, in rebuilt instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.arms.searching import Searched
from experiments.worlds import ADAPTER
from feedback.evidence import EvidenceStore
from feedback.load.probe import LoadProbe, LoadSettings
from feedback.probe import Context, Question, Tree
from feedback.verdict import Verdict, canonical_json
from feedback.workers.pool import WorkerPool
from infra_agent.decision import pooled
from infra_agent.measurements.live import PASS_PATIENCE
from infra_agent.measurements.quiet import wait_for_quiet
from infra_agent.records import Ratio

Compare = Callable[[Tree, Tree, str], Verdict]


@dataclass(frozen=True)
class Finals:
    """`best` is the best launch-only search; `ratios` what each search's state is over that one's, by (arm, seed);
    `code` the same over all searches with code moves together.
    """

    best: Searched
    ratios: dict[tuple[str, int], Ratio | None]
    code: Ratio | None
    lines: tuple[str, ...]


def same_state(one: Searched, other: Searched) -> bool:
    """Whether two launch-only searches ended in the same state: their files are those of the start."""
    return canonical_json(one.state.config) == canonical_json(other.state.config)


def finals(found: Sequence[Searched], rebuilds: int, compare: Compare, say: Callable[[str], None]) -> Finals:
    """Choose the best launch-only state, by one pass of each against the first, then compare every code state with it.

    What chooses is not what is reported: the comparisons with the chosen state are passes of their own.
    """
    launch = [search for search in found if search.arm.launch_only]
    first, ratios, lines = launch[0], dict[tuple[str, int], Ratio | None](), list[str]()
    against: dict[tuple[str, int], float] = {(first.arm.name, first.seed): 1.0}
    for search in launch[1:]:
        twin = next((s for s in launch if (s.arm.name, s.seed) in against and same_state(s, search)), None)
        if twin is not None:
            against[search.arm.name, search.seed] = against[twin.arm.name, twin.seed]
            continue
        ratio = pooled([compare(first.state, search.state, f"choose-{search.arm.name}-{search.seed}")])
        against[search.arm.name, search.seed] = ratio.point if ratio else 0.0
        say(f"{search.arm.name}, seed {search.seed}: {against[search.arm.name, search.seed]:.3f}x the first")
    best = max(launch, key=lambda s: against[s.arm.name, s.seed])
    scale = against[best.arm.name, best.seed]
    for search in launch:
        point = against[search.arm.name, search.seed] / scale
        ratios[search.arm.name, search.seed] = Ratio(point=point, low=point, high=point) if point > 0 else None
    verdicts: list[Verdict] = []
    for search in (s for s in found if not s.arm.launch_only):
        own = [compare(best.state, search.state, f"final-{search.seed}-{n}") for n in range(rebuilds)]
        ratios[search.arm.name, search.seed] = pooled(own)
        verdicts += own
        lines += [verdict.line() for verdict in own]
        say(f"{search.arm.name}, seed {search.seed}: {own[-1].line()}")
    return Finals(best, ratios, pooled(verdicts), tuple(lines))


def side_by_side(pool: WorkerPool, folder: Path, like: Searched, seed: int) -> Compare:
    """A comparison of two states in fresh instances, one pass; the session's noise floor is measured with the first."""
    context = Context(pool, EvidenceStore(folder))

    def compare(base: Tree, candidate: Tree, name: str) -> Verdict:
        wait_for_quiet(PASS_PATIENCE)
        question = Question(
            hypothesis=name.replace(" ", "-"),
            base=base,
            candidate=candidate,
            trusted=like.trusted,
            adapter=ADAPTER,
            kind="bundle",
            changed=(),
            workload=like.workload,
            seed=seed,
            changes_numerics=True,
        )
        return LoadProbe(LoadSettings(margin=1.0, max_passes=1, fresh_base=True)).run(question, context)

    return compare
