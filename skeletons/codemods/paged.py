"""Templates of paged attention: what an operator's tensors are, by ranks, types and axes; and the file made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from feedback.target import OperatorInfo, Tensor
from skeletons.codemods.classes import ClassView
from skeletons.codemods.implementations import Unfit, callable_of, filled, free_name, selected_text, signature
from skeletons.codemods.source import Unparsable
from skeletons.view import Change, Decline, Site, TargetView


@dataclass(frozen=True)
class Paged:
    """Names of the tensors (`starts` only where there are runs of queries), and the axes of the cache."""

    query: str
    keys: str
    values: str
    tables: str
    lengths: str
    starts: str
    token_axis: int
    head_axis: int
    flat: bool  # the result is [N, H * D] instead of [N, H, D]


def inputs_of(operator: OperatorInfo) -> list[Tensor]:
    """The operator's arguments. Raises `Unfit` when it has constants or writes into its arguments."""
    inputs = [t for t in operator.tensors if t.kind in ("runtime", "inout")]
    if any(t.kind == "inout" for t in inputs):
        raise Unfit("the operator writes into its arguments")
    if any(t.kind == "constant" for t in operator.tensors):
        raise Unfit("the operator has constants, which the kernel would not use")
    return inputs


def paged(operator: OperatorInfo, inputs: Sequence[Tensor], runs: bool) -> Paged:
    """Which tensor is what. `runs`: queries come in runs, whose starts are one more vector. Raises `Unfit`."""

    def of(rank: int, integer: bool) -> list[Tensor]:
        return [t for t in inputs if len(t.shape) == rank and t.dtype.startswith("int") == integer]

    query, caches, tables, vectors = of(3, False), of(4, False), of(2, True), of(1, True)
    wanted = [1, 2, 1, 2 if runs else 1]
    if [len(query), len(caches), len(tables), len(vectors)] != wanted or len(inputs) != sum(wanted):
        more = ", starts of runs" if runs else ""
        raise Unfit(
            f"its tensors are not one query [N, H, D], two caches of four axes, a block table{more} and lengths"
        )
    if any(t.dtype != "int32" for t in (*tables, *vectors)):
        raise Unfit("block table and lengths are not int32")
    keys, values = caches
    if keys.shape != values.shape:
        raise Unfit("keys and values have different layouts")
    if "v" in keys.name.lower() and "v" not in values.name.lower():
        keys, values = values, keys
    if keys.shape[3] != query[0].shape[2]:
        raise Unfit("the last axis of the cache is not the head size")
    lengths = [t for t in vectors if t.shape[0] == tables[0].shape[0]]
    starts = [t for t in vectors if t.shape[0] != tables[0].shape[0]]
    if len(lengths) != 1 or len(starts) != int(runs):
        raise Unfit("which vector holds the lengths of the sequences cannot be told from its axis")
    heads = [axis for axis in (1, 2) if _divides(operator, keys.shape[axis], query[0].shape[1])]
    if len(heads) != 1:
        raise Unfit("which axis of the cache counts heads cannot be told from the operator's cases")
    return Paged(
        query=query[0].name,
        keys=keys.name,
        values=values.name,
        tables=tables[0].name,
        lengths=lengths[0].name,
        starts=starts[0].name if starts else "",
        token_axis=3 - heads[0],
        head_axis=heads[0],
        flat=_flat(operator, query[0]),
    )


def _divides(operator: OperatorInfo, axis: int | str, heads: int | str) -> bool:
    """Whether the axis divides the number of query heads in every case, as a number of KV heads must."""

    def size(name: int | str, dims: dict[str, int]) -> int:
        return name if isinstance(name, int) else dims.get(name, 0)

    pairs = [(size(heads, case.dims), size(axis, case.dims)) for case in operator.cases]
    return all(divisor > 0 and number % divisor == 0 for number, divisor in pairs)


def _flat(operator: OperatorInfo, query: Tensor) -> bool:
    """Whether the output is flat [N, H * D]; raises for anything that is neither that nor the query's shape."""
    outputs = [t for t in operator.tensors if t.kind == "output"]
    if len(outputs) == 1 and outputs[0].shape == query.shape:
        return False
    if len(outputs) == 1 and len(outputs[0].shape) == 2:
        return True
    raise Unfit("its output is not one tensor in the shape of the query")


def kept_scale(view: ClassView) -> str:
    """Where an implementation keeps the factor of its scores, from `self.plain`; None: 1 / sqrt(head size)."""
    named = sorted(name for name in view.stores if "scal" in name.lower())
    return f"float(self.plain.{named[0]})" if len(named) == 1 else "None"


@dataclass(frozen=True)
class PagedTemplate:
    """A template for the operators of one role: `kernel.c` and `implementation.txt` in `folder`.

    `runs`: queries come in runs of new tokens instead of one a sequence.
    """

    role: str
    folder: Path
    title: str
    detail: str
    assumes: str
    runs: bool = False

    def find(self, view: TargetView) -> list[Site | Decline]:
        """Operators with the role whose declaration and code fit."""
        found: list[Site | Decline] = []
        for operator in sorted(view.operators, key=lambda op: op.name):
            if operator.role != self.role:
                continue
            path = view.selected_file(operator) or ""
            try:
                self._generate(view, operator)
                owner = callable_of(path, view.sources[path], len(inputs_of(operator)))[0]
            except (Unfit, Unparsable) as reason:
                found.append(Decline(str(reason), path, 1, operator.name))
                continue
            line, named = owner.source.line(owner.node), (operator.name,)
            found.append(Site(path, line, owner.name, self.detail, (self.role,), (), (self.assumes,), payload=named))
        return found

    def rewrite(self, view: TargetView, sites: Sequence[Site]) -> Change:
        """The new implementations and their selection."""
        wanted = {site.payload[0] for site in sites}
        files: dict[str, str | None] = {}
        launch: dict[str, str] = {}
        for operator in (op for op in view.operators if op.name in wanted):
            name = free_name(operator, "compiled")
            folder = PurePosixPath(view.selected_file(operator) or "").parent
            files[str(folder / f"{name}.py")] = self._generate(view, operator)
            launch[f"operators.{operator.name}"] = name
        return Change(files=files, launch=launch)

    def _generate(self, view: TargetView, operator: OperatorInfo) -> str:
        path = view.selected_file(operator)
        text = selected_text(operator, path, dict(view.sources))
        assert path is not None
        inputs = inputs_of(operator)
        owner, method, arguments = callable_of(path, text, len(inputs))
        found = paged(operator, inputs, self.runs)
        argument_of = dict(zip((t.name for t in inputs), arguments, strict=True))
        holes = {part.upper(): argument_of.get(str(name), str(name)) for part, name in asdict(found).items()}
        holes |= {
            "TITLE": self.title,
            "MODULE": PurePosixPath(path).stem,
            "CLASS": owner.name,
            "SIGNATURE": signature(method, tuple(arguments)),
            "CALL": "" if method == "__call__" else f".{method}",
            "ARGUMENTS": ", ".join(arguments),
            "SCALE": kept_scale(owner),
            "RESULT": "computed.flatten(1)" if found.flat else "computed",
            "SOURCE": (self.folder / "kernel.c").read_text(encoding="utf-8"),
        }
        return filled(self.folder / "implementation.txt", holes, self.role.replace("_", "-"))
