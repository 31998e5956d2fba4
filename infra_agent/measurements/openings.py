"""From skeletons to moves: what the library offers on a state of the target, within the goal's scope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from feedback.errors import UserError
from feedback.probe import Tree
from feedback.target import OperatorInfo, Role, Unsupported
from feedback.verdict import digest_of
from infra_agent import paths
from infra_agent.hypothesis import Move
from infra_agent.measurements import CandidateFailed, Openings, Remembered
from infra_agent.measurements.setup import Ground
from infra_agent.proposers.causes import Facts

if TYPE_CHECKING:
    from skeletons.matching import Declined, Opportunity
    from skeletons.view import Change, TargetView


#: What of the environment goes with a measurement that another machine may read.
ENVIRONMENT = ("python", "cpu", "cores")


class Library(Protocol):
    """What can be asked of a skeleton library."""

    def opportunities(self, view: TargetView) -> tuple[Sequence[Opportunity], Sequence[Declined]]:
        """What applies to a state of the target, and what does not and why."""
        ...

    def looked_for(self) -> tuple[str, ...]:
        """Causes that its code skeletons search the sources for."""
        ...

    def remember(self, move: Move, outcome: Remembered, workload: str) -> None:
        """Note what came of a skeleton's move, for later runs."""
        ...


class UserLibrary:
    """The shipped skeletons and the user's own.

    What this run adds to it is for later runs: within the run the proposer learns by itself, and a resumed run must see
    what it saw before it was cut off.
    """

    def __init__(self, run: str) -> None:
        from skeletons.library import Library as Skeletons

        self._run = run
        self._all = Skeletons.load(user=paths.library_dir())
        earlier = {
            name: skeleton.model_copy(update={"evidence": tuple(e for e in skeleton.evidence if e.run != run)})
            for name, skeleton in self._all.skeletons.items()
        }
        self.skeletons = replace(self._all, skeletons=earlier)

    def opportunities(self, view: TargetView) -> tuple[Sequence[Opportunity], Sequence[Declined]]:
        from skeletons.matching import opportunities

        return opportunities(self.skeletons, view)

    def looked_for(self) -> tuple[str, ...]:
        return tuple(sorted({each.cause for each in self.skeletons if each.kind == "code"}))

    def remember(self, move: Move, outcome: Remembered, workload: str) -> None:
        import datetime

        from feedback.environment import environment
        from skeletons.skeleton import Evidence

        known = environment()
        evidence = Evidence(
            kind=outcome.kind,
            supports=outcome.supports,
            effect=outcome.gain.point,
            interval=(outcome.gain.low, outcome.gain.high),
            share=move.share if 0 < move.share <= 1 and not move.mends else None,
            cannot=outcome.applies,
            environment={
                **{name: str(known[name]) for name in ENVIRONMENT if known.get(name) is not None},
                **known.get("packages", {}),
            },
            workload=workload,
            date=datetime.date.today(),
            run=self._run,
            note=move.title,
        )
        self._all = self._all.record_evidence(move.skeletons[0], evidence)


def offered(
    library: Library, ground: Ground, tree: Tree, facts: Facts, sharded: bool = False
) -> tuple[Openings, dict[str, Opportunity]]:
    """The moves on a state, and the opportunity behind each by its key. A move at several places comes as a whole and
    in parts: when the whole is refused, a part may still be right. `sharded`: whether the state runs over ranks.
    """
    view = view_of(ground, tree, facts)
    found, declined = library.opportunities(view)
    moves: dict[str, Move] = {}
    behind: dict[str, Opportunity] = {}
    refused = [f"{each.skeleton}: {each.reason}" for each in declined]
    for opportunity in (each for whole in found for each in (whole, *whole.parts)):
        outside = _outside(ground, opportunity)
        move = _move(opportunity, layers_for(view, opportunity, sharded))
        if outside is not None:
            refused.append(f"{opportunity.skeleton}: {outside} is outside the goal's scope")
        elif move.key not in moves:
            moves[move.key] = move
            behind[move.key] = opportunity
    ordered = tuple(moves[key] for key in sorted(moves))
    return Openings(moves=ordered, declined=tuple(refused), looked_for=library.looked_for()), behind


def change_at(opportunity: Opportunity) -> Change:
    """The text of an opportunity. A transformation that fails is a candidate that cannot be made."""
    try:
        return opportunity.change
    except Exception as error:
        raise CandidateFailed(f"{opportunity.skeleton} cannot be applied: {type(error).__name__}: {error}") from error


def view_of(ground: Ground, tree: Tree, facts: Facts) -> TargetView:
    """A state as text and numbers; its operators are those that it says it runs, in a worker of its own."""
    from feedback.workers.failures import WorkerFailure
    from skeletons.view import TargetView

    protected = {entry.path for entry in ground.entries if entry.role is Role.PROTECTED}
    sources = {path: text for path, text in ground.workspace.sources(tree.commit).items() if path not in protected}
    try:
        with ground.pool.open(tree, role="base") as worker:
            operators = tuple(OperatorInfo.model_validate(o) for o in worker.call("operators", tree.config))
    except Unsupported:
        operators = ()
    except WorkerFailure as error:
        raise UserError(f"the state {tree.commit[:12]} does not say which operators it runs: {error.line}") from error
    return TargetView(sources, operators, tree.config, dict(facts), ground.description.launch_space)


def combined(first: Change, second: Change) -> Change:
    """Two changes as one, the second made on top of the first."""
    from skeletons.view import Change

    return Change(files={**first.files, **second.files}, launch={**first.launch, **second.launch})


def change_of(told: Mapping[str, Any]) -> Change:
    """A change as the ledger holds it."""
    from skeletons.view import Change

    return Change(files=told["files"], launch=told["launch"])


def layers_for(view: TargetView, opportunity: Opportunity, sharded: bool) -> tuple[str, ...]:
    """Feedback layers that a move has to pass because of where it applies: kernels, and the cuts over ranks."""
    from feedback.kernels.trees import names_kernels

    kernels = any(names_kernels(view.sources.get(site.path, "")) for site in opportunity.sites)
    return (*(("kernels",) if kernels else ()), *(("sharding", "sharded_model", "ranks") if sharded else ()))


def _move(opportunity: Opportunity, layers: tuple[str, ...]) -> Move:
    repair = opportunity.repair
    gain, spread = opportunity.gain_mean, opportunity.gain_sd
    if repair is not None:
        gain, spread = repair.bits * math.log(2), repair.sd * math.log(2)
    return Move(
        key=_key(opportunity),
        skeletons=(opportunity.skeleton,),
        kind="code" if opportunity.kind == "code" else "launch",
        cause=opportunity.cause,
        title=opportunity.title,
        share=min(1.0, max(0.0, opportunity.share)),
        gain=gain,
        spread=spread,
        operators=tuple(opportunity.operators),
        layers=layers,
        mends=repair is not None,
        slowdown=0.0 if repair is None else repair.slowdown,
        places=() if repair is None else tuple(sorted(_key(part) for part in opportunity.parts)),
        where="; ".join(f"{site.path}:{site.line} {site.detail}" for site in opportunity.sites),
        changes_numerics=opportunity.changes_numerics,
        launch=dict(opportunity.launch),
        reasons=tuple(opportunity.reasons),
    )


def _key(opportunity: Opportunity) -> str:
    """What the move does, whatever else was changed before: its skeleton, and the places or the parameters."""
    if opportunity.launch:
        told = ",".join(f"{name}={value}" for name, value in sorted(opportunity.launch.items()))
        return f"{opportunity.skeleton}:{told}"
    places = sorted((site.path, site.symbol) for site in opportunity.sites)
    return f"{opportunity.skeleton}:{digest_of(places)[:8]}"


def _outside(ground: Ground, opportunity: Opportunity) -> str | None:
    """The first file or launch parameter that the goal does not allow. Files that a move adds are for `static` to
    judge.
    """
    for path in sorted({site.path for site in opportunity.sites}):
        if not ground.goal.may_edit(path):
            return path
    for parameter, value in sorted(opportunity.launch.items()):
        if not ground.goal.may_launch(parameter, value):
            return f"{parameter} = {value}"
    return None
