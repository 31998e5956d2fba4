"""An operator with the role paged_decode_attention gets a second implementation: C, one pass over each sequence's own
blocks.

The plain form gathers every block of every sequence into a padded tensor, which writes and reads the context several
times. The generated file stands beside the selected one, has the same class and call, and is selected by the launch
configuration; the selected one stays as it is and computes wherever the kernel cannot. What the tensors are is read
from the operator's declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template

from feedback.target import OperatorInfo, Tensor
from skeletons.codemods.classes import ClassView
from skeletons.codemods.implementations import Unfit, callable_of, free_name, selected_text, signature
from skeletons.codemods.source import Unparsable
from skeletons.view import Change, Decline, Site, TargetView

ROLE = "paged_decode_attention"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Plan:
    """Everything that fills the template's holes for one operator."""

    operator: OperatorInfo
    path: str
    name: str
    view: ClassView
    method: str
    arguments: tuple[str, ...]
    parts: dict[str, str]  # query, keys, values, tables, lengths -> argument
    token_axis: int
    head_axis: int
    flat: bool  # the result is [B, H * D]


def find(view: TargetView) -> list[Site | Decline]:
    """Operators with this role whose declaration and code fit the template."""
    found: list[Site | Decline] = []
    for operator in sorted(view.operators, key=lambda op: op.name):
        if operator.role != ROLE:
            continue
        path = view.selected_file(operator) or ""
        try:
            plan = _plan(view, operator)
        except (Unfit, Unparsable) as reason:
            found.append(Decline(str(reason), path, 1, operator.name))
            continue
        line = plan.view.source.line(plan.view.node)
        detail = "attention over paged blocks is computed by gathering them; a native kernel reads them in place"
        assumes = ("scores are scaled as the selected implementation does, with no mask but the context length",)
        found.append(Site(plan.path, line, plan.view.name, detail, (ROLE,), assumes=assumes, payload=(operator.name,)))
    return found


def rewrite(view: TargetView, sites: Sequence[Site]) -> Change:
    """The new implementation's file, and its selection."""
    wanted = {site.payload[0] for site in sites}
    files: dict[str, str | None] = {}
    launch: dict[str, str] = {}
    for operator in view.operators:
        if operator.name in wanted:
            plan = _plan(view, operator)
            folder = PurePosixPath(plan.path).parent
            files[str(folder / f"{plan.name}.py")] = _generate(plan)
            launch[f"operators.{operator.name}"] = plan.name
    return Change(files=files, launch=launch)


def _plan(view: TargetView, operator: OperatorInfo) -> Plan:
    path = view.selected_file(operator)
    text = selected_text(operator, path, dict(view.sources))
    assert path is not None
    inputs = [t for t in operator.tensors if t.kind in ("runtime", "inout")]
    if any(t.kind == "inout" for t in inputs):
        raise Unfit("the operator writes into its arguments")
    if any(t.kind == "constant" for t in operator.tensors):
        raise Unfit("the operator has constants, which the kernel would not use")
    owner, method, arguments = callable_of(path, text, len(inputs))
    argument_of = dict(zip((t.name for t in inputs), arguments, strict=True))
    parts, token_axis, head_axis = _parts(operator, inputs)
    flat = _result(operator, next(t for t in inputs if t.name == parts["query"]))
    named = {part: argument_of[name] for part, name in parts.items()}
    name = free_name(operator, "compiled")
    return Plan(operator, path, name, owner, method, tuple(arguments), named, token_axis, head_axis, flat)


def _parts(operator: OperatorInfo, inputs: Sequence[Tensor]) -> tuple[dict[str, str], int, int]:
    """Which tensor is what, by rank and type, and the axes of the cache."""

    def by_shape(rank: int, integer: bool) -> list[Tensor]:
        return [t for t in inputs if len(t.shape) == rank and t.dtype.startswith("int") == integer]

    query, caches = by_shape(3, False), by_shape(4, False)
    tables, lengths = by_shape(2, True), by_shape(1, True)
    if [len(query), len(caches), len(tables), len(lengths)] != [1, 2, 1, 1] or len(inputs) != 5:
        raise Unfit("its tensors are not one query [B, H, D], two caches of four axes, a block table and lengths")
    if any(t.dtype != "int32" for t in (*tables, *lengths)):
        raise Unfit("block table and lengths are not int32")
    keys, values = caches
    if keys.shape != values.shape:
        raise Unfit("keys and values have different layouts")
    if "v" in keys.name.lower() and "v" not in values.name.lower():
        keys, values = values, keys
    if keys.shape[3] != query[0].shape[2]:
        raise Unfit("the last axis of the cache is not the head size")
    heads = [axis for axis in (1, 2) if _divides(operator, keys.shape[axis], query[0].shape[1])]
    if len(heads) != 1:
        raise Unfit("which axis of the cache counts heads cannot be told from the operator's cases")
    names = {"query": query[0], "keys": keys, "values": values, "tables": tables[0], "lengths": lengths[0]}
    return {part: tensor.name for part, tensor in names.items()}, 3 - heads[0], heads[0]


def _divides(operator: OperatorInfo, axis: int | str, heads: int | str) -> bool:
    """Whether the axis divides the number of query heads in every case, as a number of KV heads must."""

    def size(name: int | str, dims: dict[str, int]) -> int:
        return name if isinstance(name, int) else dims.get(name, 0)

    pairs = [(size(heads, case.dims), size(axis, case.dims)) for case in operator.cases]
    return all(divisor > 0 and number % divisor == 0 for number, divisor in pairs)


def _result(operator: OperatorInfo, query: Tensor) -> bool:
    """Whether the output is flat [B, H * D]; raises for anything that is neither that nor the query's shape."""
    outputs = [t for t in operator.tensors if t.kind == "output"]
    if len(outputs) == 1 and outputs[0].shape == query.shape:
        return False
    if len(outputs) == 1 and len(outputs[0].shape) == 2:
        return True
    raise Unfit("its output is not one tensor in the shape of the query")


def _scale(view: ClassView) -> str:
    """Where the selected implementation keeps the factor of the scores; None: the usual 1 / sqrt(head size)."""
    named = sorted(name for name in view.stores if "scal" in name.lower())
    return f"float(self.plain.{named[0]})" if len(named) == 1 else "None"


def _generate(plan: Plan) -> str:
    arguments = ", ".join(plan.arguments)
    holes = {part.upper(): argument for part, argument in plan.parts.items()}
    holes |= {
        "DOC": "Paged decode attention",
        "MODULE": PurePosixPath(plan.path).stem,
        "CLASS": plan.view.name,
        "SIGNATURE": signature(plan.method, plan.arguments),
        "CALL": "" if plan.method == "__call__" else f".{plan.method}",
        "ARGUMENTS": arguments,
        "SCALE": _scale(plan.view),
        "TOKEN_AXIS": str(plan.token_axis),
        "HEAD_AXIS": str(plan.head_axis),
        "RESULT": "computed.flatten(1)" if plan.flat else "computed",
        "SOURCE": (FOLDER / "kernel.c").read_text(encoding="utf-8"),
    }
    return Template((FOLDER / "implementation.txt").read_text(encoding="utf-8")).substitute(holes)
