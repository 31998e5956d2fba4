"""Applying one code skeleton to a piece of source text it has never seen: what it changes, and what it declines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedback.target import OperatorInfo
from skeletons.library import Library
from skeletons.view import Decline, Site, TargetView


@dataclass(frozen=True)
class Transfer:
    """`files`: all sources, edited where a site was found.

    `again`: sites found in the edited sources (none when it is idempotent).
    """

    files: Mapping[str, str]
    launch: Mapping[str, Any]
    sites: tuple[Site, ...]
    declined: tuple[Decline, ...]
    again: tuple[Site, ...]


def transfer(
    library: Library,
    skeleton: str,
    files: Mapping[str, str],
    operators: Sequence[OperatorInfo] = (),
    facts: Mapping[str, Any] | None = None,
) -> Transfer:
    """Find and rewrite all sites of a code skeleton in some files, without looking at conditions or shares; where its
    holes can be filled in several ways, in the first.
    """
    transform = library.transform(skeleton)
    view = TargetView(dict(files), tuple(operators), {}, facts or {})
    found = transform.find(view)
    sites = tuple(item for item in found if isinstance(item, Site))
    sites = tuple(site for site in sites if site.variant == sites[0].variant)
    declined = tuple(item for item in found if isinstance(item, Decline))
    if not sites:
        return Transfer(dict(files), {}, (), declined, ())
    change = transform.rewrite(view, sites)
    edited = {**files, **change.files}
    kept = {path: text for path, text in edited.items() if text is not None}
    again = transform.find(TargetView(kept, tuple(operators), {}, facts or {}))
    return Transfer(kept, change.launch, sites, declined, tuple(item for item in again if isinstance(item, Site)))
