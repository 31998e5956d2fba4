"""Which skeletons apply to a state of a target, what each would do, and what it can be expected to bring.

`opportunities` is pure: the same library, view and facts give the same list, whatever the order of the library. Every
skeleton ends in at least one opportunity or one refusal with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from feedback.target import Parameter
from skeletons.amdahl import bound, predicted_gain
from skeletons.library import Library
from skeletons.skeleton import Condition, LaunchMove, Repair, Skeleton
from skeletons.view import Change, Decline, Site, TargetView, digest

#: Below this share of the engine's busy time nothing is worth a verification.
LEAST_SHARE = 0.002


@dataclass(frozen=True)
class Declined:
    """A skeleton, or one place for it, that was looked at and refused."""

    skeleton: str
    reason: str
    where: str = ""


@dataclass(frozen=True)
class Opportunity:
    """One move that a skeleton offers.

    `gain_mean`, `gain_sd`: predicted log of (throughput after / before), bounded by Amdahl's law (`gain_bound`) from
    `share`, the part of the busy time that the move acts on. `reasons`: the facts that speak for it. `operators`:
    those whose files change. `key`: the same content has the same key. `parts`: the same move at some of its sites
    only, worth trying when the whole was refused. `repair`: what is expected where results are mended, not speed.
    """

    skeleton: str
    version: int
    kind: str
    cause: str
    title: str
    share: float
    gain_mean: float
    gain_sd: float
    changes_numerics: bool
    key: str
    reasons: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    launch: Mapping[str, Any] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    assumes: tuple[str, ...] = ()
    parts: tuple[Opportunity, ...] = ()
    repair: Repair | None = None
    _origin: tuple[Library, TargetView] | None = field(default=None, repr=False, compare=False)

    @property
    def gain_bound(self) -> float:
        """The largest log gain possible for its share."""
        return bound(self.share)

    @cached_property
    def change(self) -> Change:
        """New texts and start parameters. Computed when first asked for; the same every time."""
        if not self.sites:
            return Change(launch=self.launch)
        assert self._origin is not None
        library, view = self._origin
        return library.transform(self.skeleton).rewrite(view, self.sites)

    def line(self) -> str:
        """One line for a person: what, where, and what it is expected to bring."""
        low, high = (math.exp(self.gain_mean + side * self.gain_sd) for side in (-1, 1))
        return f"{self.title}: {low:.2f}x to {high:.2f}x, acting on {self.share:.0%} of the time"


def opportunities(library: Library, view: TargetView) -> tuple[list[Opportunity], list[Declined]]:
    """All moves that the library offers for a state of the target, by skeleton name, and everything it refuses."""
    offered: list[Opportunity] = []
    declined: list[Declined] = []
    for skeleton in library:
        moves, refusals = _consider(library, view, skeleton)
        offered += moves
        declined += refusals
    return offered, declined


def _consider(library: Library, view: TargetView, skeleton: Skeleton) -> tuple[list[Opportunity], list[Declined]]:
    outside = skeleton.scope.outside(library.versions, library.platform) or skeleton.expired(library.today)
    if outside:
        return [], [Declined(skeleton.name, outside)]
    if skeleton.launch is not None:
        return _launch(view, skeleton, skeleton.launch)
    held, broken = _conditions(skeleton.conditions, view)
    if broken:
        return [], [Declined(skeleton.name, broken)]
    return _code(library, view, skeleton, held)


def _conditions(conditions: Sequence[Condition], view: TargetView) -> tuple[tuple[str, ...], str | None]:
    """(lines of the conditions that hold, the line of the first that does not)."""
    checks = [condition.check(view.facts) for condition in conditions]
    return tuple(c.text for c in checks if c.holds), next((c.text for c in checks if not c.holds), None)


def _launch(view: TargetView, skeleton: Skeleton, move: LaunchMove) -> tuple[list[Opportunity], list[Declined]]:
    space = {parameter.name: parameter for parameter in view.launch_space}
    parameter = next((space[name] for name in move.parameter if name in space), None)
    if parameter is None:
        return [], [Declined(skeleton.name, f"the target has no start parameter {' or '.join(move.parameter)}")]
    current = view.config.get(parameter.name, view.facts.get(f"launch.{parameter.name}", parameter.default))
    held, broken = _conditions([c.bind(parameter.name) for c in skeleton.conditions], view)
    if broken:
        return [], [Declined(skeleton.name, broken)]
    share = skeleton.share.of(view.facts)
    if share is None or share < LEAST_SHARE:
        return [], [Declined(skeleton.name, _too_little(share))]
    values = _values(move, parameter, current, view.facts)
    if not values:
        return [], [
            Declined(skeleton.name, f"the launch space has no better value of {parameter.name} than {current!r}")
        ]
    return [_launch_opportunity(skeleton, parameter, current, value, n, share, held) for value, n in values], []


def _too_little(share: float | None) -> str:
    if share is None:
        return "which share of the time it acts on was not observed"
    return f"it acts on {share:.1%} of the time"


def _launch_opportunity(
    skeleton: Skeleton,
    parameter: Parameter,
    current: Any,
    value: Any,
    doublings: float,
    share: float,
    held: tuple[str, ...],
) -> Opportunity:
    mean, sd = skeleton.belief()
    if skeleton.speedup.per == "doubling":
        mean, sd = mean * doublings, sd * max(doublings, 0.25)
    gain, spread = predicted_gain(share, mean, sd)
    return Opportunity(
        skeleton=skeleton.name,
        version=skeleton.version,
        kind="launch",
        cause=skeleton.cause,
        title=f"{skeleton.title}: {parameter.name} {current!r} -> {value!r}",
        share=share,
        gain_mean=gain,
        gain_sd=spread,
        changes_numerics=skeleton.changes_numerics or parameter.changes_numerics,
        key=digest([skeleton.name, skeleton.version, {parameter.name: value}]),
        reasons=held,
        launch={parameter.name: value},
    )


def _values(move: LaunchMove, parameter: Parameter, current: Any, facts: Mapping[str, Any]) -> list[tuple[Any, float]]:
    """(value, doublings that can have an effect) for each value worth trying."""
    if move.direction == "to":
        return _fixed_value(move, parameter, current, facts)
    numbers = sorted(v for v in parameter.values if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0)
    if not isinstance(current, (int, float)) or current <= 0:
        return []
    if move.direction == "down":
        return [(v, math.log2(current / v)) for v in reversed(numbers) if v < current]
    limits = [facts.get(name) for name in move.limit]
    limit = sum(float(x) for x in limits if x is not None) if any(x is not None for x in limits) else math.inf
    found: list[tuple[Any, float]] = []
    for value in (v for v in numbers if v > current):
        useful = min(float(value), limit)
        if useful > current and not (found and found[-1][0] >= limit):  # beyond the limit nothing more is gained
            found.append((value, math.log2(useful / current)))
    return found


def _fixed_value(
    move: LaunchMove, parameter: Parameter, current: Any, facts: Mapping[str, Any]
) -> list[tuple[Any, float]]:
    value = move.value
    if move.fact is not None:
        wanted = facts.get(move.fact)
        numbers = [v for v in parameter.values if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0]
        if not isinstance(wanted, (int, float)) or not numbers:
            return []
        value = min(numbers, key=lambda v: (abs(v - wanted), v))
    if value not in parameter.values or value == current:
        return []
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in (value, current))
    return [(value, abs(math.log2(value / current)) if numeric else 1.0)]


def _code(
    library: Library, view: TargetView, skeleton: Skeleton, held: tuple[str, ...]
) -> tuple[list[Opportunity], list[Declined]]:
    try:
        found = library.transform(skeleton.name).find(view)
    except Exception as error:  # a skeleton of the user's own must not end a run
        return [], [Declined(skeleton.name, f"its search failed: {type(error).__name__}: {error}")]
    sites = tuple(item for item in found if isinstance(item, Site))
    declined = [Declined(skeleton.name, d.reason, d.label) for d in found if isinstance(d, Decline)]
    if skeleton.roles:
        sites = tuple(site for site in sites if set(site.roles) & set(skeleton.roles))
    if not sites:
        return [], declined or [Declined(skeleton.name, "no place in the sources looks like this")]
    offered: list[Opportunity] = []
    for variant in dict.fromkeys(site.variant for site in sites):
        chosen = tuple(site for site in sites if site.variant == variant)
        whole = _code_opportunity(library, view, skeleton, chosen, held)
        if isinstance(whole, Declined):
            declined.append(whole)
        else:
            offered.append(replace(whole, parts=_parts(library, view, skeleton, chosen, held)))
    return offered, declined


def _parts(
    library: Library, view: TargetView, skeleton: Skeleton, sites: Sequence[Site], held: tuple[str, ...]
) -> tuple[Opportunity, ...]:
    """The move in parts: by operator or file; a repair place by place, since only what is needed is to be changed."""
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        groups.setdefault((site.path, site.symbol) if skeleton.repairs else site.roles or (site.path,), []).append(site)
    if len(groups) < 2:
        return ()
    made = [_code_opportunity(library, view, skeleton, tuple(group), held) for group in groups.values()]
    return tuple(part for part in made if isinstance(part, Opportunity))


def _code_opportunity(
    library: Library, view: TargetView, skeleton: Skeleton, sites: tuple[Site, ...], held: tuple[str, ...]
) -> Opportunity | Declined:
    share = _share(view, skeleton, sites)
    if share is None or share < LEAST_SHARE:
        return Declined(skeleton.name, _too_little(share), sites[0].label)
    gain, spread = predicted_gain(share, *skeleton.belief())
    paths = sorted({site.path for site in sites})
    touched = [op for op in (view.operator_of(path) for path in paths) if op is not None]
    identity = [(site.path, site.symbol, site.detail, site.payload) for site in sites]
    places = paths[0] if len(paths) == 1 else f"{len(sites)} places in {len(paths)} files"
    variant = sites[0].variant
    return Opportunity(
        skeleton=skeleton.name,
        version=skeleton.version,
        kind="code",
        cause=skeleton.cause,
        title=f"{skeleton.title}{': ' if variant else ''}{variant} ({places})",
        share=share,
        gain_mean=gain,
        gain_sd=spread,
        changes_numerics=skeleton.changes_numerics or any(site.changes_numerics for site in sites),
        key=digest([skeleton.name, skeleton.version, identity, {path: digest(view.sources[path]) for path in paths}]),
        reasons=(*held, *(site.label for site in sites)),
        roles=tuple(sorted({role for site in sites for role in site.roles})),
        operators=tuple(op.name for op in touched),
        sites=sites,
        assumes=tuple(dict.fromkeys(text for site in sites for text in site.assumes)),
        repair=skeleton.repair(variant),
        _origin=(library, view),
    )


def _share(view: TargetView, skeleton: Skeleton, sites: Sequence[Site]) -> float | None:
    """The share that the sites act on: what the skeleton names, or what the sites name, or their operators' shares."""
    if skeleton.share.facts:
        return skeleton.share.of(view.facts)
    names: dict[str, None] = {}
    for site in sites:
        for name in site.share_facts or [f"share.op.{role}" for role in site.roles]:
            names[name] = None
    if not any(name in view.facts for name in names):
        return skeleton.share.otherwise
    return skeleton.share.of(view.facts, tuple(names))
