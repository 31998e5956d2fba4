"""An operator with the role paged_decode_attention gets a second implementation: C, one pass over each sequence's own
blocks.

The plain form gathers every block of every sequence into a padded tensor, which writes and reads the context several
times. The generated file stands beside the selected one, has the same class and call, and is selected by the launch
configuration; the selected one stays as it is and computes wherever the kernel cannot. What the tensors are is read
from the operator's declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skeletons.codemods.paged import PagedTemplate
from skeletons.view import Change, Decline, Site, TargetView

TEMPLATE = PagedTemplate(
    role="paged_decode_attention",
    folder=Path(__file__).parent,
    title="Paged decode attention",
    detail="attention over paged blocks is computed by gathering them; a native kernel reads them in place",
    assumes="scores are scaled as the selected implementation does, with no mask but the context length",
)


def find(view: TargetView) -> list[Site | Decline]:
    """Operators with this role whose declaration and code fit the template."""
    return TEMPLATE.find(view)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """The new implementation's file, and its selection."""
    return TEMPLATE.rewrite(view, sites)
