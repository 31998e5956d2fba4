"""Where a change of an operator's text must be found: which operators, and which recorded step is the first to differ.

Read from the text alone: who imports what is changed, and through which names the changed value reaches a
`record(step, ...)` of the code that combines ranks. Nothing is run for it, so that it can be compared with what a probe
says after running it. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from experiments.operator_faults.faults import OPS, Sources

OUTPUT = "output"


@dataclass(frozen=True)
class Place:
    """Operators and steps that may be named."""

    operators: tuple[str, ...]
    steps: tuple[str, ...]


def place_of(path: str, line: int, sources: Sources) -> Place:
    """The place of a change at a line of an operator's file, or of one that operators share."""
    folder, _, file = path.rpartition("/")
    operator = folder.removeprefix(f"{OPS}/")
    if file == "parallel.py":
        return Place((operator,), steps_from(sources[path], line=line))
    if file == "torch.py":
        return _implemented((operator,), sources)
    changed = _affected(ast.parse(sources[path]), line)
    module = path.removesuffix(".py").replace("/", ".")
    texts = {other: text for other, text in sources.items() if module in text}
    importers = {other: names for other, text in texts.items() if (names := _imported(text, module) & changed)}
    used = _implemented([other.split("/")[-2] for other in importers if other.endswith("torch.py")], sources)
    combining = [other for other in importers if other.endswith("parallel.py")]
    steps = [*used.steps, *(s for other in combining for s in steps_from(sources[other], called=importers[other]))]
    return Place(_once([*used.operators, *(other.split("/")[-2] for other in combining)]), _once(steps))


def _implemented(operators: Iterable[str], sources: Sources) -> Place:
    """These operators themselves, and the combining code that builds them."""
    names, steps = list(operators), [OUTPUT]
    for operator in tuple(names):
        for path in sorted(path for path in sources if path.startswith(OPS) and path.endswith("/parallel.py")):
            if f'build("{operator}"' in sources[path]:
                names.append(path.split("/")[-2])
                steps += steps_from(sources[path], built=operator)
    return Place(_once(names), _once(steps))


def _affected(tree: ast.Module, line: int) -> set[str]:
    """Names at the top of a module whose values may depend on a line of it."""
    defined = {
        name: node
        for node in tree.body
        for name in ([node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else _names(node, ast.Store))
    }
    found = {name for name, node in defined.items() if node.lineno <= line <= (node.end_lineno or node.lineno)}
    while more := {n for n, node in defined.items() if n not in found and found & set(_names(node, ast.Load))}:
        found |= more
    return found


def _imported(text: str, module: str) -> set[str]:
    """What a file imports from a module."""
    return {
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def steps_from(text: str, line: int = 0, called: Iterable[str] = (), built: str = "") -> tuple[str, ...]:
    """Steps that `run` of combining code may record first with a changed value: one that a line of it computes, that
    comes from the functions `called`, or from the implementation that is `built`.
    """
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    sources = set(called)
    for name, node in functions.items():
        if name != "run" and node.lineno <= line <= (node.end_lineno or node.lineno):
            sources.add(name)
    while more := {
        n for n, f in functions.items() if n not in sources | {"run"} and sources & set(_names(f, ast.Load))
    }:
        sources |= more
    flow = _Flow(line, sources, f'build("{built}"' if built else "")
    flow.follow(functions["run"].body, inside=False)
    return flow.steps()


@dataclass
class _Flow:
    """Follows a changed value through statements: `fresh` names were computed from it, `later` ones from those."""

    line: int
    functions: set[str]
    built: str
    fresh: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    records: list[tuple[str, bool, bool]] = field(default_factory=list)  # step, of a fresh name, under a condition

    def steps(self) -> tuple[str, ...]:
        direct = [place for place, (_, fresh, _) in enumerate(self.records) if fresh]
        first = self.records[: direct[-1] + 1] if direct else self.records[:1]
        if not first:
            return (OUTPUT,)
        return _once([*(step for step, _, _ in first), *([OUTPUT] if all(inside for _, _, inside in first) else [])])

    def follow(self, statements: Iterable[ast.stmt], inside: bool, within: bool = False) -> None:
        """In order; `inside` a condition, `within` a branch or loop that the changed value decides on."""
        for node in statements:
            head = node.test if isinstance(node, ast.If) else node.iter if isinstance(node, ast.For) else node
            seeded, touched = self._seeded(head), self._touched(head)
            if isinstance(node, ast.If | ast.For):
                if isinstance(node, ast.For) and (seeded or touched):
                    self._bind(set(_names(node.target, ast.Store)), seeded)
                self.follow(node.body, inside or isinstance(node, ast.If), within or seeded or touched)
                self.follow(node.orelse, inside, within or seeded or touched)
            else:
                self._statement(node, seeded, touched or within, inside)

    def _statement(self, node: ast.stmt, seeded: bool, touched: bool, inside: bool) -> None:
        call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if call is not None and isinstance(call.func, ast.Name) and call.func.id == "record":
            step = call.args[0]
            assert isinstance(step, ast.Constant)
            if seeded or touched:
                direct = seeded or bool(self.fresh & set(_names(call, ast.Load)))
                self.records.append((str(step.value), direct, inside))
        elif isinstance(node, ast.Return):
            if seeded or touched:
                self.records.append((OUTPUT, seeded or bool(self.fresh & set(_names(node, ast.Load))), inside))
        elif call is not None:  # what it is given may be changed in place
            if seeded or touched:
                self._bind(set(_names(call, ast.Load)), seeded)
        else:
            stored = set(_names(node, ast.Store)) | _written(node)
            if seeded or touched:
                self._bind(stored, seeded)
            elif isinstance(node, ast.Assign):
                whole = set(_names(node, ast.Store))
                self.fresh -= whole
                self.later -= whole

    def _bind(self, names: set[str], seeded: bool) -> None:
        (self.fresh if seeded else self.later).update(names)
        (self.later if seeded else self.fresh).difference_update(names)

    def _seeded(self, node: ast.AST) -> bool:
        low, high = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        here = bool(self.line) and low <= self.line <= high
        named = bool(self.functions & set(_names(node, ast.Load)))
        return here or named or bool(self.built and self.built in ast.unparse(node).replace("'", '"'))

    def _touched(self, node: ast.AST) -> bool:
        return bool((self.fresh | self.later) & set(_names(node, ast.Load)))


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context))


def _written(node: ast.stmt) -> set[str]:
    """Names that are written to through an index or an attribute."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    places = [t for target in targets for t in ast.walk(target) if isinstance(t, ast.Subscript | ast.Attribute)]
    return {place.value.id for place in places if isinstance(place.value, ast.Name)}


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
