"""Say the precision of float32 products in Triton kernels, where they are rounded to tf32 because nothing is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skeletons.codemods.edits import Edits
from skeletons.codemods.search import Unit, edit, search
from skeletons.codemods.triton_products import Product, products, with_precision
from skeletons.view import Change, Decline, Site, TargetView

MARKERS = (".dot(", "import dot")

#: Cheapest first.
PRECISIONS = ("tf32x3", "ieee")

ASSUMES = "the operands are float32: for narrower ones the precision means nothing"


def find(view: TargetView) -> list[Site | Decline]:
    """Products that round to tf32, once for each precision that they could have."""
    return search(view, _find, MARKERS)


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """Write the precision of each."""
    return edit(view, sites, _edit)


def _find(unit: Unit) -> Iterator[Site | Decline]:
    for item in products(unit):
        if isinstance(item, Decline):
            yield item
            continue
        for precision in PRECISIONS:
            yield Site(
                unit.path,
                unit.source.line(item.node),
                f"{item.place} as {precision}",
                f"{item.place} rounds its operands to tf32",
                roles=unit.roles,
                assumes=(ASSUMES,),
                changes_numerics=True,
                payload=(item.place, precision),
                variant=precision,
            )


def _edit(unit: Unit, sites: Sequence[Site], edits: Edits) -> None:
    found = {item.place: item.node for item in products(unit) if isinstance(item, Product)}
    for place, precision in (site.payload for site in sites):
        if place not in found:
            raise ValueError(f"{unit.path}: {place} is not there any more: find the sites again")
        edits.replace(found[place], lambda node, precision=precision: with_precision(node, precision))
