"""Running a code skeleton over a target's live files: what it finds, what it declines, and the edited texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from skeletons.codemods.edits import Edits
from skeletons.codemods.source import Source, Unparsable, bindings, parameters, parse, reads_of
from skeletons.view import Change, Decline, Site, TargetView


@dataclass(frozen=True)
class Unit:
    """One live file of a view, parsed."""

    view: TargetView
    path: str
    source: Source

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of the operator whose selected implementation this is; empty elsewhere."""
        operator = self.view.operator_of(self.path)
        return (operator.role,) if operator else ()

    def site(self, node: cst.CSTNode, detail: str, **extra: Any) -> Site:
        """A site at a node of this file."""
        given: dict[str, Any] = {"roles": self.roles, **extra}
        return Site(self.path, self.source.line(node), self.source.symbol(node), detail, **given)

    def decline(self, node: cst.CSTNode, reason: str) -> Decline:
        """A refusal at a node of this file."""
        return Decline(reason, self.path, self.source.line(node), self.source.symbol(node))


Finder = Callable[[Unit], Iterable[Site | Decline]]
Editor = Callable[[Unit, Sequence[Site], Edits], None]


def units(view: TargetView, markers: Sequence[str]) -> Iterator[Unit | Decline]:
    """Live files whose text holds any of the markers (a cheap test before parsing)."""
    for path in view.live_files():
        text = view.sources[path]
        if not any(marker in text for marker in markers):
            continue
        try:
            yield Unit(view, path, parse(text))
        except Unparsable as error:
            yield Decline(f"not readable as Python: {error}", path)


def search(view: TargetView, finder: Finder, markers: Sequence[str]) -> list[Site | Decline]:
    """Sites and refusals in all live files, in the order of paths and lines."""
    found: list[Site | Decline] = []
    for unit in units(view, markers):
        if isinstance(unit, Decline):
            found.append(unit)
        else:
            found += sorted(finder(unit), key=lambda item: item.line)
    return found


def edit(view: TargetView, sites: Sequence[Site], editor: Editor) -> Change:
    """The files of the sites, edited. Raises `ValueError` for a site that the view does not have (any more)."""
    files: dict[str, str | None] = {}
    for path in sorted({site.path for site in sites}):
        if path not in view.sources:
            raise ValueError(f"{path} is not a source of this view: find the sites again")
        unit = Unit(view, path, parse(view.sources[path]))
        edits = Edits(unit.source)
        editor(unit, [site for site in sites if site.path == path], edits)
        files[path] = edits.text()
    return Change(files=files)


def fresh_in(function: cst.FunctionDef, wanted: str, taken: Iterable[str] = ()) -> str:
    """A name that the function neither binds nor reads: `wanted`, or with a number behind it."""
    used = (
        {p.name.value for p in parameters(function)}
        | set(bindings(function.body))
        | set(reads_of(function))
        | set(taken)
    )
    name, number = wanted, 2
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name
