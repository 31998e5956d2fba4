"""What a run stands on, made once and found again on resume: the trusted copy of the target, the workspace, the
configurations to measure against.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from feedback.errors import UserError
from feedback.probe import Tree
from infra_agent import __version__, tomltext
from infra_agent.goal import Goal
from infra_agent.metrics import DEVIATIONS
from infra_agent.paths import RunPaths
from infra_agent.records import RunRecord
from infra_agent.start import Start, nested
from infra_agent.targetfiles import copy_target, file_digests, read_target, root_of
from infra_agent.workspace import Workspace

if TYPE_CHECKING:
    from feedback.target import Description, FileEntry
    from feedback.workers.pool import WorkerPool

#: What a load pass can compare: with a fixed number of tokens the three are the same ratio.
COMPARABLE = ("output_throughput", "request_throughput", "total_token_throughput")

#: Launch parameters that the oracle takes over from the start: which model it is, and how long a sequence may be.
SHARED = ("model", "max_model_len")

#: Shipped profiles by what they stand for; a target that has none of a name simply has no such reference.
REFERENCE, PRODUCTION = "sequential", "production"


@dataclass
class Ground:
    """A run's fixed points. `trusted` is the tree that the oracle runs, with the plainest configuration the target
    ships.
    """

    goal: Goal
    run: RunPaths
    pool: WorkerPool
    description: Description
    entries: tuple[FileEntry, ...]
    workspace: Workspace
    start: Start
    found: Path
    trusted: Tree

    def profile(self, name: str) -> dict[str, Any] | None:
        """A launch profile that the target ships, with the goal's model; None when there is no such profile."""
        path = PurePosixPath(self.description.profile_path).with_name(f"{name}.toml")
        return _profile(self.found / path, self.goal)

    def workload(self, named: str) -> Path:
        """A workload's file, by name in the target or as the path that the goal resolved."""
        if "/" in named:
            return Path(named)
        known = {ref.name: ref.path for ref in self.description.workloads}
        if named not in known:
            raise UserError(f"the target has no workload {named!r}; it has {', '.join(sorted(known)) or 'none'}")
        return self.trusted.root / known[named]

    def record(self) -> RunRecord:
        """The run's first row."""
        objective = self.goal.objective
        return RunRecord(
            run=self.run.id,
            goal=self.goal.name,
            goal_digest=self.goal.digest,
            goal_text=self.goal.to_toml(),
            start=self.start.name,
            start_digest=self.start.digest,
            adapter=self.goal.adapter,
            metric=objective.metric,
            direction=self.goal.direction,
            workload=objective.workload,
            held_out=objective.held_out,
            seed=self.goal.seed,
            base_commit=self.workspace.base,
            files=file_digests(read_target(self.found, self.entries)),
            argv=tuple(sys.argv),
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            version=__version__,
        )


def comparable(goal: Goal) -> None:
    """`UserError` when the goal's objective is a figure that no pass can compare and no probe can bring to zero."""
    if goal.objective.metric not in (*COMPARABLE, *DEVIATIONS):
        known = ", ".join((*COMPARABLE, *DEVIATIONS))
        raise UserError(
            f"{goal.objective.metric} can be bounded but not yet be the objective of a run; choose one of {known}"
        )

    if goal.objective.metric in DEVIATIONS and goal.constraints:
        raise UserError(
            f"a run for {goal.objective.metric} checks accuracy and service by itself: leave out [constraints]"
        )


@contextmanager
def prepared(goal: Goal, run: RunPaths) -> Generator[Ground]:
    """Make or find everything that a run stands on. `UserError` for what keeps it from beginning: before anything is
    measured.
    """
    from feedback.target import Description, FileEntry
    from feedback.workers.failures import WorkerFailure
    from feedback.workers.pool import WorkerPool

    comparable(goal)
    installed = root_of(goal.adapter)
    start = Start.load(Path(goal.start))
    with WorkerPool(goal.adapter) as pool:
        try:
            root = run.trusted if run.trusted.is_dir() else installed
            with pool.open(Tree(root, "installed", {}), role="oracle") as worker:
                description = Description.model_validate(worker.call("describe"))
                entries = tuple(FileEntry.model_validate(entry) for entry in worker.call("files"))
                found = copy_target(root, entries, run.trusted)
                launch = {} if goal.model is None else {"model": goal.model}
                workspace = Workspace.create(run, found, entries, description.profile_path, start, launch)
                config = workspace.config(workspace.base)
                problems = worker.call("validate_config", config)
        except WorkerFailure as error:
            raise UserError(f"the target of {goal.adapter} does not run as it is installed: {error.line}") from error
        if problems:
            first = problems[0]
            raise UserError(f"the start {start.name} cannot be launched: {first['parameter']}: {first['message']}")
        plain = PurePosixPath(description.profile_path).with_name(f"{REFERENCE}.toml")
        shared = {name: config[name] for name in SHARED if name in config}
        reference = {**(_profile(found / plain, goal) or config), **shared}
        oracle = _without_profiles(found, run.root / "oracle", description.profile_path)
        ground = Ground(
            goal=goal,
            run=run,
            pool=pool,
            description=description,
            entries=entries,
            workspace=workspace,
            start=start,
            found=found,
            trusted=Tree(oracle, "trusted", reference),
        )
        for named in filter(None, (goal.objective.workload, goal.objective.held_out)):
            ground.workload(named)
        yield ground


def _without_profiles(found: Path, destination: Path, profile_path: str) -> Path:
    """The target as found but for its launch profiles; made whole or not at all, and once."""
    if not destination.is_dir():
        profiles = (found / profile_path).parent
        partial = destination.with_name(destination.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)

        def left_out(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if Path(folder) == profiles and name.endswith(".toml")]

        shutil.copytree(found, partial, ignore=left_out)
        partial.rename(destination)
    return destination


def _profile(path: Path, goal: Goal) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    config = tomltext.parse(tomltext.read(path), str(path))
    return config if goal.model is None else {**config, **nested({"model": goal.model})}
