"""Changing what a constructor stores: an attribute becomes a local value, or gets another value under another name."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from skeletons.codemods.classes import ClassView
from skeletons.codemods.edits import Edits, only
from skeletons.codemods.search import fresh_in
from skeletons.codemods.source import bindings, parameters


def unused_attribute(view: ClassView, *wanted: str) -> str:
    """The first of the wanted names that the class does not use yet; numbered when it uses them all."""
    taken = {*view.stores, *view.loads, *view.methods}
    numbered = [f"{wanted[0]}_{number}" for number in range(2, 10)]
    return next(name for name in (*wanted, *numbered) if name not in taken)


def localise(view: ClassView, attribute: str, group: Sequence[str], edits: Edits) -> str:
    """Turn the constructor's `self.x = value` into a local value; returns the expression that stands for it.

    `group`: attributes that are all being localised. The attribute must be a constant (`ClassView.constant`).
    """
    constructor = view.constructor
    store = view.stores[attribute][0]
    assert constructor is not None
    assert store.line is not None
    given = {p.name.value for p in parameters(constructor)} - set(bindings(constructor.body))
    statement = only(store.line)
    if isinstance(store.value, cst.Name) and store.value.value in given and _all_ours(statement, group, given):
        edits.remove(store.line)
        name = store.value.value
    else:
        name = fresh_in(constructor, attribute.strip("_"))
        edits.replace(store.target, cst.Name(name))
    for load in view.loads[attribute]:
        if load.method == "__init__":
            edits.replace(load.node, cst.Name(name))
    return name


def _all_ours(statement: cst.BaseSmallStatement | None, group: Sequence[str], given: set[str]) -> bool:
    """Whether a statement assigns attributes of the group from unchanged parameters and does nothing else."""
    if isinstance(statement, cst.AnnAssign):
        return True
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    if isinstance(target, cst.Attribute):
        return True
    if not isinstance(target, cst.Tuple) or not isinstance(statement.value, cst.Tuple):
        return False
    ours = [isinstance(e.value, cst.Attribute) and e.value.attr.value in group for e in target.elements]
    return all(ours) and all(isinstance(e.value, cst.Name) and e.value.value in given for e in statement.value.elements)
