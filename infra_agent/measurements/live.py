"""Measurements by the real thing: workers, probes, the workspace, the skeleton library."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedback.errors import UserError
from feedback.evidence import EvidenceStore
from feedback.load.arms import LiveArms, peak_bytes
from feedback.load.conclusion import arm_figures
from feedback.load.passes import BaseFailed, FloorSettings, TooDisturbed, UsedPass, measure_noise_floor
from feedback.load.probe import LoadProbe, LoadSettings
from feedback.load.workload import Workload, prepare
from feedback.oracle import Oracle, OracleFailure
from feedback.probe import Context, Probe, Question, Tree, discover
from feedback.statistics import NoiseFloor
from feedback.target import Unsupported
from feedback.verdict import Status, Verdict, digest_of
from infra_agent import regression
from infra_agent.goal import Goal
from infra_agent.hypothesis import Move
from infra_agent.measurements import PAR, SEQUENTIAL, CandidateFailed, Openings, Remembered, Subject, Traffic
from infra_agent.measurements.openings import Library, UserLibrary, change_at, change_of, combined, offered
from infra_agent.measurements.quiet import wait_for_quiet
from infra_agent.measurements.served import Served
from infra_agent.measurements.setup import PRODUCTION, REFERENCE, Ground, prepared
from infra_agent.paths import RunPaths
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.deviations import facts_of
from infra_agent.records import BaselineRecord, CandidateRecord, MoveRecord, ProfileRecord, RegressionRecord
from infra_agent.steps import MARGIN
from infra_agent.without import CannotTakeOut, without
from infra_agent.workspace import NEEDS, EmptyChange

if TYPE_CHECKING:
    from skeletons.matching import Opportunity
    from skeletons.view import Change

#: Layers that are not rungs of the ladder: they observe.
OBSERVING = frozenset({"profile"})

#: Passes that one asking of `load` may spend before it says that it cannot tell.
PASSES = 2

#: Shares come from a profile of another run than the one that is timed; so much more is believed before a gain is
#: held impossible.
SHARE_SLACK = 0.1

#: What a change that mends results may cost in service.
MAY_LOSE = 0.1

#: Passes for that: an interval has to be told from a margin of a tenth, not from one of a fiftieth.
SERVED_PASSES = 6

#: What measuring the noise floor may take, as a share of the search's budget.
FLOOR_SHARE = 0.2

#: Trailers of every kept commit; the others stand there where there is something to say.
ALWAYS = ("Move", "Hypothesis", "Predicted", "Measured", "Skeletons", "Verdicts")

#: Seconds to wait for a quiet machine before the noise floor is tried again.
BASELINE_PATIENCE = (60.0, 120.0)

#: The same before a pass: it is tried anyway, and says itself when it was disturbed.
PASS_PATIENCE = 30.0


class LiveMeasurements:
    """Asks the world. One per process and run; the workers live as long as `opened` does."""

    def __init__(self, ground: Ground, library: Library) -> None:
        self._ground, self._library = ground, library
        self._probes: dict[str, Probe] = discover()
        self._context = Context(ground.pool, EvidenceStore(ground.run.evidence))
        self._oracle = Oracle.of(ground.pool, ground.trusted)
        self._arms = LiveArms.of(ground.pool)
        self._offered: dict[str, dict[str, Opportunity]] = {}
        self._serving: dict[str, Served] = {}

    @property
    def guesses(self) -> Mapping[str, float]:
        return {name: probe.cost_prior for name, probe in self._probes.items() if name not in OBSERVING}

    @property
    def noise(self) -> NoiseFloor | None:
        """The session's noise floor, once it was measured; one that another world of this session measured on the same
        start may be set.
        """
        return self._context.noise

    @noise.setter
    def noise(self, floor: NoiseFloor) -> None:
        self._context.noise = floor

    # -- observing -----------------------------------------------------------------------------------------------------

    def baseline(self, commit: str) -> BaselineRecord:
        """The A/A noise floor on the start; figures from its passes. `UserError` when the start does not run."""
        tree = self._tree(commit)
        workload = Workload.read(self._workload("main"))
        with self._context.evidence.new("baseline", "start") as evidence:
            floor, used = self._floor(tree, workload)
            self._context.noise = floor
            figures = arm_figures([run for item in used for run in (item.run.base, item.run.candidate)])
            memory = peak_bytes(self._arms.base(tree, prepare(workload, self._oracle.tokenize, 0)).arm.pid)
            noise = {"noise_floor": floor.spread, "noise_floor_n": float(floor.n)}
            metrics = {**figures, "peak_memory_bytes": memory, **noise}
            evidence.write_json("noise_floor", asdict(floor))
            evidence.write_json("metrics", metrics)
        config = tree.config
        return BaselineRecord(label="start", commit=commit, metrics=metrics, config=config, evidence=evidence.id)

    def _floor(self, tree: Tree, workload: Workload) -> tuple[NoiseFloor, tuple[UsedPass, ...]]:
        """A/A passes, tried again when others disturbed them. Bounds relative to the start need the whole workload."""
        goal = self._ground.goal
        relative = any(bound.relative for bound in goal.bounds)
        affordable = FLOOR_SHARE * goal.budget.wall_seconds
        settings = FloorSettings(pairs=2, rows=None) if relative else FloorSettings(seconds=affordable)
        for patience in BASELINE_PATIENCE:
            try:
                return measure_noise_floor(self._arms, tree, workload, self._oracle.tokenize, settings, goal.seed)
            except (BaseFailed, OracleFailure) as error:
                raise UserError(f"the start cannot be measured: {error}") from error
            except TooDisturbed as error:
                if not wait_for_quiet(patience):
                    raise UserError(f"the start cannot be measured: {error}") from error
        raise UserError("the start cannot be measured: other processes disturbed every pass; run it on a quiet machine")

    def profile(self, commit: str) -> ProfileRecord:
        """Facts from the profile probe; from machine and launch configuration alone where the target has no spans."""
        from feedback.profile.facts import launch_facts
        from feedback.profile.machine import machine_facts

        tree = self._tree(commit)
        verdict = self._probes["profile"].run(self._question("profile", tree, tree, "main"), self._context)
        if verdict.status is Status.REFUTED and commit == self._ground.workspace.base:
            raise UserError(f"the start cannot be profiled: {verdict.line()}")
        facts: dict[str, Any] = {**machine_facts(), **launch_facts(tree.config, self._ground.description, ())}
        facts |= self._finding(verdict).get("facts", {})
        return ProfileRecord(commit=commit, facts=facts, evidence=verdict.evidence)

    def deviation(self, commit: str, verdict: Verdict) -> ProfileRecord:
        from feedback.profile.facts import launch_facts
        from feedback.profile.machine import machine_facts

        tree = self._tree(commit)
        facts: dict[str, Any] = {**machine_facts(), **launch_facts(tree.config, self._ground.description, ())}
        facts |= facts_of(self._finding(verdict))
        return ProfileRecord(commit=commit, facts=facts, evidence=verdict.evidence)

    def _finding(self, verdict: Verdict) -> dict[str, Any]:
        """What a probe left in its evidence folder."""
        import json

        if verdict.evidence is None:
            return {}
        return json.loads((self._context.evidence.path(verdict.evidence) / "finding.json").read_text())

    def openings(self, commit: str, facts: Facts) -> Openings:
        tree = self._tree(commit)
        found, self._offered[commit] = offered(self._library, self._ground, tree, facts, self._sharded(tree))
        return found

    def _sharded(self, tree: Tree) -> bool:
        """Whether a state runs over several ranks."""
        try:
            return any(row.sharding for row in self._oracle.plan(tree.config).rows)
        except (Unsupported, OracleFailure):
            return False

    # -- candidates ----------------------------------------------------------------------------------------------------

    def change(self, commit: str, move: Move, facts: Facts) -> dict[str, Any]:
        keys = list(move.parts or (move.key,))
        change = self._change(commit, keys[0], facts)
        for key in keys[1:]:
            # What the second part looks like depends on the first: it is made on the tree that has it.
            between = self._commit(commit, change, f"Between: {move.title}")
            change = combined(change, self._change(between, key, facts))
        return {"files": dict(change.files), "launch": dict(change.launch)}

    def _change(self, commit: str, key: str, facts: Facts) -> Change:
        if commit not in self._offered:
            self.openings(commit, facts)
        if key not in self._offered[commit]:
            raise CandidateFailed(f"{key} is not offered on {commit[:12]}")
        return change_at(self._offered[commit][key])

    def candidate(self, name: str, base: str, move: Move, change: Mapping[str, Any]) -> CandidateRecord:
        commit = self._commit(base, change_of(change), f"{name}: {move.title}")
        changed = self._ground.workspace.changed(base, commit)
        return CandidateRecord(move=name, commit=commit, base=base, changed=changed)

    def _commit(self, base: str, change: Change, message: str) -> str:
        try:
            return self._ground.workspace.commit(base, change, message).commit
        except (EmptyChange, ValueError) as error:
            raise CandidateFailed(str(error)) from error

    def keep(self, candidate: CandidateRecord, move: MoveRecord) -> str:
        measured = move.measured
        trailers = {
            "Move": move.id,
            "Hypothesis": move.hypothesis,
            "Predicted": f"{move.predicted.mean:.3f} [{move.predicted.low:.3f}, {move.predicted.high:.3f}]",
            "Measured": "" if measured is None else f"{measured.point:.3f} [{measured.low:.3f}, {measured.high:.3f}]",
            "Skeletons": ", ".join(move.skeletons),
            "Verdicts": " ".join(move.verdicts),
            "Regression-Test": move.regression or "",
            "Cannot-Be-Used": "; ".join(move.applies),
            NEEDS: ", ".join(move.needs),
        }
        trailers = {name: text for name, text in trailers.items() if text or name in ALWAYS}
        return self._ground.workspace.keep(candidate.commit, move.title, trailers)

    def without(self, tip: str, commits: tuple[str, ...], label: str) -> str:
        try:
            return without(self._ground.workspace, tip, commits, f"Without {label}")
        except (CannotTakeOut, ValueError) as error:
            raise CandidateFailed(str(error)) from error

    def remember(self, move: Move, outcome: Remembered) -> None:
        self._library.remember(move, outcome, Path(self._workload("main")).stem)

    def applicability(self, verdict: Verdict) -> tuple[str, ...]:
        found = self._finding(verdict).get("applicability", ())
        return tuple(dict.fromkeys(str(fact["fact"]) for fact in found))

    def test_text(self, commit: str, facts: Facts, observed: str) -> tuple[str, str]:
        return regression.written(facts, self._tree(commit).config, self._ground.description.profile_path, observed)

    def regression(self, base: str, candidate: str, path: str, text: str, facts: Facts) -> RegressionRecord:
        try:
            alone = self._commit(base, change_of({"files": {path: text}, "launch": {}}), f"The test {path} alone")
        except CandidateFailed:  # the base has it already
            alone = base
        return regression.tried(path, self._tree(alone).root, self._tree(candidate).root, regression.place(facts))

    # -- judging -------------------------------------------------------------------------------------------------------

    def ask(self, layer: str, subject: Subject) -> Verdict:
        base, candidate = self._tree(subject.base), self._tree(subject.candidate)
        question = self._question(subject.hypothesis, base, candidate, "main", subject)
        if layer != "load":
            return self._probes[layer].run(question, self._context)
        wait_for_quiet(PASS_PATIENCE)
        share = subject.move.share
        touched = None if subject.move.kind != "code" or share >= 1 else min(1.0, share + SHARE_SLACK)
        settings = LoadSettings(margin=1 + MARGIN, max_passes=PASSES, fresh_base=subject.n > 1, touched_share=touched)
        return LoadProbe(settings).run(question, self._context)

    def served(self, layer: str, base: str, candidate: str, changes_numerics: bool, n: int = 1) -> Verdict:
        how = self._served_on(base)
        before, after = (how.of(self._tree(state), self._oracle) for state in (base, candidate))
        question = replace(self._question(f"served-{n}", before, after, "main"), changes_numerics=changes_numerics)
        if layer != "load":
            return self._probes[layer].run(question, self._context)
        wait_for_quiet(PASS_PATIENCE)
        return LoadProbe(LoadSettings(margin=1 - MAY_LOSE, max_passes=SERVED_PASSES)).run(question, self._context)

    def not_served(self, base: str) -> tuple[str, ...]:
        return self._served_on(base).gaps

    def _served_on(self, base: str) -> Served:
        if base not in self._serving:
            self._serving[base] = Served.on(self._tree(base), self._ground.pool, self._oracle)
        return self._serving[base]

    def compare(self, base: str, candidate: str, traffic: Traffic, label: str, n: int = 1) -> Verdict:
        wait_for_quiet(PASS_PATIENCE)
        question = self._question(f"{label}-{n}", self._tree(base), self._tree(candidate), traffic)
        return LoadProbe(LoadSettings(margin=1.0, max_passes=1, fresh_base=True)).run(question, self._context)

    def _question(
        self, name: str, base: Tree, candidate: Tree, traffic: Traffic, subject: Subject | None = None
    ) -> Question:
        goal = self._ground.goal
        move = subject.move if subject else None
        return Question(
            hypothesis=name,
            base=base,
            candidate=candidate,
            trusted=self._ground.trusted,
            adapter=goal.adapter,
            kind=move.kind if move else "bundle",
            changed=subject.changed if subject else (),
            workload=self._workload(traffic),
            seed=int(digest_of([goal.seed, name, subject.n if subject else 0, traffic])[:7], 16),
            operators=move.operators if move else (),
            changes_numerics=subject.changes_numerics if subject else True,
            limits=dict(subject.limits) if subject else {},
            scope=goal.scope.editable,
            explain=subject.explain if subject else True,
        )

    def _workload(self, traffic: Traffic) -> Path:
        objective = self._ground.goal.objective
        if traffic == "held_out":
            assert objective.held_out is not None
            return self._ground.workload(objective.held_out)
        main = self._ground.workload(objective.workload)
        return main if traffic == "main" else self._short(main)

    def _short(self, main: Path) -> Path:
        """The main workload with outputs half as long: what one request at a time can serve in reasonable time."""
        path = self._ground.run.root / "short.jsonl"
        if not path.is_file():
            workload = Workload.read(main)
            rows = tuple(row.model_copy(update={"max_tokens": max(1, row.max_tokens // 2)}) for row in workload.rows)
            path.write_text(workload.model_copy(update={"name": f"{workload.name}-short", "rows": rows}).to_text())
        return path

    def _tree(self, state: str) -> Tree:
        """A state on disk with its launch configuration; `PAR` and `SEQUENTIAL` are the trusted target's own
        profiles.
        """
        ground = self._ground
        shipped = {PAR: PRODUCTION, SEQUENTIAL: REFERENCE}.get(state)
        if shipped is None:
            return Tree(ground.workspace.worktree(state), state, ground.workspace.config(state))
        config = ground.profile(shipped)
        if config is None:
            raise UserError(f"the target ships no profile {shipped!r}")
        return Tree(ground.trusted.root, state, config)


@contextmanager
def opened(goal: Goal, run: RunPaths, library: Library | None = None) -> Generator[tuple[LiveMeasurements, Ground]]:
    """The world of a run, its workers ended afterwards and all checkouts but the best removed. `library` stands for the
    shipped skeletons and the user's own.
    """
    with prepared(goal, run) as ground:
        yield LiveMeasurements(ground, library or UserLibrary(run.id)), ground
        ground.workspace.prune([ground.workspace.kept_tip])
