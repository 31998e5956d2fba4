"""Operators on the rows of an activation get a second implementation: C, one pass over the row.

Written in tensor calls, a normalisation or a rotary embedding is five to ten passes, each with a
dispatch and a tensor of its own; with few rows that is nearly all they cost. For each operator whose role the
template knows and whose declaration and code it fits, a file is generated beside the selected one, and all of them
share one module with the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import libcst as cst

from feedback.target import OperatorInfo, Tensor
from skeletons.codemods.classes import ClassView
from skeletons.codemods.implementations import Unfit, callable_of, filled, free_name, selected_text, signature
from skeletons.codemods.source import Unparsable, parameters, walk
from skeletons.view import Change, Decline, Site, TargetView

FOLDER = Path(__file__).parent
SHARED = "row_kernels"
_COS, _SIN = r"(^|_)cos", r"(^|_)sin"


@dataclass(frozen=True)
class Plan:
    """Everything that fills the template's holes for one operator."""

    operator: OperatorInfo
    path: str
    name: str
    view: ClassView
    method: str
    arguments: tuple[str, ...]
    holes: Mapping[str, str]

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(self.path).parent


def find(view: TargetView) -> list[Site | Decline]:
    """Operators with a known role whose declaration and code fit."""
    dtype = view.facts.get("launch.dtype") or view.config.get("dtype")
    found: list[Site | Decline] = []
    for operator in sorted(view.operators, key=lambda op: op.name):
        if operator.role not in _FITS:
            continue
        path = view.selected_file(operator) or ""
        try:
            plan = _plan(view, operator)
        except (Unfit, Unparsable) as reason:
            found.append(Decline(str(reason), path, 1, operator.name))
            continue
        line = plan.view.source.line(plan.view.node)
        detail = "an operator on rows is several passes; a native kernel makes one"
        assumes = ("the operator computes what its role says, with the constants of the selected implementation",)
        narrow, named = dtype != "float32", (operator.name,)
        site = Site(path, line, plan.view.name, detail, (operator.role,), (), assumes, narrow, named)
        found.append(site)
    return found


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """The new implementations, the module they share, and their selection."""
    wanted = {site.payload[0] for site in sites}
    files: dict[str, str | None] = {}
    launch: dict[str, str] = {}
    for operator in view.operators:
        if operator.name not in wanted:
            continue
        plan = _plan(view, operator)
        shared = plan.folder.parent / f"{SHARED}.py"
        source = (FOLDER / "kernels.c").read_text(encoding="utf-8")
        files[str(shared)] = filled(FOLDER / "shared.txt", {"SOURCE": source}, "row-kernels")
        files[str(plan.folder / f"{plan.name}.py")] = _generate(plan)
        launch[f"operators.{operator.name}"] = plan.name
    return Change(files=files, launch=launch)


def _plan(view: TargetView, operator: OperatorInfo) -> Plan:
    path = view.selected_file(operator)
    text = selected_text(operator, path, dict(view.sources))
    assert path is not None
    folder = PurePosixPath(path).parent
    for package in (folder, folder.parent):
        if str(package / "__init__.py") not in view.sources and len(package.parts) > 0:
            raise Unfit(f"{package} is no package, which the shared module of the kernels needs")
    shared = str(folder.parent / f"{SHARED}.py")
    if len(folder.parts) < 2 or ("def kernels(" not in view.sources.get(shared, "def kernels(")):
        raise Unfit("there is no place for the module that the kernels share")
    inputs = [t for t in operator.tensors if t.kind in ("runtime", "inout")]
    if any(t.kind == "inout" for t in inputs):
        raise Unfit("the operator writes into its arguments")
    owner, method, arguments = callable_of(path, text, len(inputs))
    named = dict(zip((t.name for t in inputs), arguments, strict=True))
    holes = _FITS[operator.role](operator, owner, named)
    return Plan(operator, path, free_name(operator, "compiled"), owner, method, tuple(arguments), holes)


def _shapes(operator: OperatorInfo, *kinds: str) -> list[Tensor]:
    return [t for t in operator.tensors if t.kind in kinds]


def _ranks(operator: OperatorInfo, *kinds: str) -> list[int]:
    return [len(t.shape) for t in _shapes(operator, *kinds)]


def _norm(operator: OperatorInfo, owner: ClassView, named: Mapping[str, str]) -> dict[str, str]:
    """x [N, K] with one constant weight [K], which the class keeps, and an eps."""
    if _ranks(operator, "runtime") != [2] or _ranks(operator, "constant") != [1] or _ranks(operator, "output") != [2]:
        raise Unfit("its tensors are not x [N, K], one weight [K] and a result [N, K]")
    given = [p.name.value for p in parameters(owner.constructor)][1:] if owner.constructor is not None else []
    constant = _shapes(operator, "constant")[0].name
    argument = constant if constant in given or len(given) != 2 else given[1]
    weights = [name for name, stores in owner.stores.items() if any(_is_name(s.value, argument) for s in stores)]
    epsilons = [name for name in owner.stores if "eps" in name.lower()]
    if len(weights) != 1 or len(epsilons) != 1:
        raise Unfit("where the selected implementation keeps its weight and its eps cannot be told")
    for node in walk(owner.node):
        added = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)
        if added and weights[0] in owner.source.code(node) and isinstance(node, cst.BinaryOperation):
            raise Unfit("the selected implementation adds something to its weight")
    return {"X": next(iter(named.values())), "WEIGHT": weights[0], "EPS": epsilons[0]}


def _is_name(node: cst.BaseExpression | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _rotary(operator: OperatorInfo, owner: ClassView, named: Mapping[str, str]) -> dict[str, str]:
    """q and k [N, heads, D] with tables cos and sin [N, D], rotated by halves."""
    runtime, outputs = _shapes(operator, "runtime"), _shapes(operator, "output")
    wide = [t for t in runtime if len(t.shape) == 3]
    tables = [[t for t in runtime if len(t.shape) == 2 and re.search(key, t.name.lower())] for key in (_COS, _SIN)]
    if len(runtime) != 4 or [len(wide), *map(len, tables)] != [2, 1, 1]:
        raise Unfit("its tensors are not two [N, heads, D] and the tables cos and sin [N, D]")
    if [t.shape for t in outputs] != [t.shape for t in wide] or len(operator.tensors) != 6:
        raise Unfit("its results are not the two rotated tensors")
    text = owner.source.text
    halves = re.search(r"chunk\(\s*2|//\s*2\b", text) is not None and "cat(" in text
    if not halves or "::2" in text:
        raise Unfit("the selected implementation does not rotate the halves of a head")
    return {
        "Q": named[wide[0].name],
        "K": named[wide[1].name],
        "COS": named[tables[0][0].name],
        "SIN": named[tables[1][0].name],
    }


_FITS: dict[str, Callable[[OperatorInfo, ClassView, Mapping[str, str]], dict[str, str]]] = {
    "rms_norm": _norm,
    "rotary_embedding": _rotary,
}


def _generate(plan: Plan) -> str:
    result = "tuple[Tensor, Tensor]" if plan.operator.role == "rotary_embedding" else "Tensor"
    holes = {
        **plan.holes,
        "SHARED": SHARED,
        "MODULE": PurePosixPath(plan.path).stem,
        "CLASS": plan.view.name,
        "CALL": "" if plan.method == "__call__" else f".{plan.method}",
        "ARGUMENTS": ", ".join(plan.arguments),
        "SIGNATURE": signature(plan.method, plan.arguments, result),
    }
    return filled(FOLDER / f"{plan.operator.role}.txt", holes)
