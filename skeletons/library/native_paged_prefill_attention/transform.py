"""An operator with the role paged_prefill_attention gets a second implementation: C, in place, all sequences in one
call.

The plain form goes over the sequences one after the other, and for each gathers its blocks, repeats them over the
query heads and makes a mask. The generated file stands beside the selected one and is selected by the launch
configuration; the selected one stays as it is and computes wherever the kernel cannot. What the tensors are is read
from the operator's declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skeletons.codemods.paged import PagedTemplate
from skeletons.view import Change, Decline, Site, TargetView

TEMPLATE = PagedTemplate(
    role="paged_prefill_attention",
    folder=Path(__file__).parent,
    title="Paged prefill attention",
    detail="each sequence's blocks are gathered for new tokens to attend to; a native kernel reads them in place",
    assumes="scores are scaled as the selected implementation does, with no mask but the causal one",
    runs=True,
)


def find(view: TargetView) -> list[Site | Decline]:
    """Operators with this role whose declaration and code fit the template."""
    return TEMPLATE.find(view)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """The new implementation's file, and its selection."""
    return TEMPLATE.rewrite(view, sites)
