"""In which order cuts are worth trying: those first that what has changed can reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from feedback.operators.selection import reached_first
from feedback.sharding.cuts import Cut


def reachable_first(cuts: Sequence[Cut], changed: Sequence[str], root: Path) -> tuple[list[Cut], int]:
    """(cuts, with those first that the changed files can reach; how many these are).

    What reaches a cut is what the texts of its operator's folder import, and what its combining code builds. A text may
    reach others in ways that this does not see: those come later, and are not left out.
    """
    infos = list({cut.info.name: cut.info for cut in cuts}.values())
    names = list(_named(cuts, root))
    order, count = reached_first([info.name for info in infos], changed, infos, root)
    reached = set(order[:count])
    reached |= {name for name in _folders(changed) if name in names}
    hit = [cut for cut in cuts if cut.info.name in reached or _named([cut], root) & reached]
    return [*hit, *(cut for cut in cuts if cut not in hit)], len(hit)


def _folders(changed: Sequence[str]) -> set[str]:
    """Names of the folders that changed files stand in: an operator that is never cut has a folder too."""
    return {PurePosixPath(path).parent.name for path in changed}


def _named(cuts: Sequence[Cut], root: Path) -> set[str]:
    """Words in quotation marks in the combining code: operators that it builds are among them."""
    words: set[str] = set()
    for file in {cut.sharding.file for cut in cuts if cut.sharding.file}:
        path = root / file
        if path.is_file():
            words |= set(re.findall(r"\"([a-z_0-9]+)\"", path.read_text(encoding="utf-8", errors="replace")))
    return words
