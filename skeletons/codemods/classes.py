"""What an instance of a class holds: which attributes are set once in the constructor and never written again."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import libcst as cst

from skeletons.codemods.blocks import is_inplace_name
from skeletons.codemods.edits import only
from skeletons.codemods.source import Source, parameters, walk

LINEAR = "torch.nn.Linear"
_PARAMETERS = ("torch.nn.Parameter", "torch.nn.Buffer", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")


@dataclass(frozen=True)
class Use:
    """One `<object>.<attribute>` in a file; `bases` are those of the class it stands in."""

    line: int
    on_self: bool
    bases: tuple[str, ...]


@lru_cache(maxsize=1024)
def attribute_uses(text: str) -> Mapping[str, tuple[Use, ...]]:
    """All attribute accesses of a file by attribute name; empty for a file that is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[Use]] = defaultdict(list)

    def visit(node: ast.AST, bases: tuple[str, ...]) -> None:
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).split(".")[-1] for base in node.bases)
        if isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            found[node.attr].append(Use(node.lineno, on_self, bases))
        for child in ast.iter_child_nodes(node):
            visit(child, bases)

    visit(tree, ())
    return {name: tuple(uses) for name, uses in found.items()}


@dataclass(frozen=True)
class Store:
    """One assignment to `self.<attribute>`; `value` is None where a statement gives it none of its own."""

    method: str
    line: cst.BaseStatement | None
    value: cst.BaseExpression | None
    target: cst.Attribute
    annotation: str = ""
    shared: bool = False  # the statement assigns other things too


@dataclass(frozen=True)
class Load:
    """One read of `self.<attribute>`."""

    method: str
    node: cst.Attribute


class ClassView:
    """The attributes of a class's instances, as its own methods use them."""

    def __init__(self, source: Source, node: cst.ClassDef) -> None:
        self.source, self.node, self.name = source, node, node.name.value
        self.methods = {f.name.value: f for f in node.body.body if isinstance(f, cst.FunctionDef)}
        self.constructor = self.methods.get("__init__")
        self.stores: dict[str, list[Store]] = defaultdict(list)
        self.loads: dict[str, list[Load]] = defaultdict(list)
        self.mutations: dict[str, list[str]] = defaultdict(list)
        self.dynamic: str | None = None
        for name, method in self.methods.items():
            self._read(name, method)

    def self_name(self, method: cst.FunctionDef) -> str | None:
        """What the method calls its instance; None for static and class methods."""
        decorators = {self.source.code(d.decorator) for d in method.decorators}
        if decorators & {"staticmethod", "classmethod"}:
            return None
        listed = parameters(method)
        return listed[0].name.value if listed else None

    def attribute(self, node: cst.CSTNode, method: cst.FunctionDef) -> str | None:
        """`x` where the node is `self.x` in the method."""
        if (
            isinstance(node, cst.Attribute)
            and isinstance(node.value, cst.Name)
            and node.value.value == self.self_name(method)
        ):
            return node.attr.value
        return None

    def _read(self, name: str, method: cst.FunctionDef) -> None:
        self_name = self.self_name(method)
        if self_name is None:
            return
        for node in walk(method.body):
            attribute = self.attribute(node, method)
            if attribute is not None:
                assert isinstance(node, cst.Attribute)
                self._classify(name, attribute, node)
            elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
                first = node.args[0].value if node.args else None
                if (
                    node.func.value in ("setattr", "vars", "delattr")
                    and isinstance(first, cst.Name)
                    and first.value == self_name
                ):
                    self.dynamic = f"{name} sets attributes by name ({node.func.value})"
            if attribute == "__dict__":
                self.dynamic = f"{name} uses __dict__"

    def _classify(self, method: str, attribute: str, node: cst.Attribute) -> None:
        parents, parent = self.source.parents, self.source.parents[node]
        line = next((n for n in self.source.ancestors(node) if isinstance(n, cst.BaseStatement)), None)
        if isinstance(parent, cst.AssignTarget):
            assign = parents[parent]
            assert isinstance(assign, cst.Assign)
            self.stores[attribute].append(Store(method, line, assign.value, node, shared=len(assign.targets) > 1))
        elif isinstance(parent, cst.AnnAssign) and parent.target is node:
            if parent.value is not None:
                text = self.source.code(parent.annotation.annotation)
                self.stores[attribute].append(Store(method, line, parent.value, node, annotation=text))
        elif isinstance(parent, cst.Element) and (assigned := self._unpacked(parent, node)) is not None:
            self.stores[attribute].append(Store(method, line, assigned[0], node, shared=True))
        elif isinstance(parent, cst.AugAssign) and parent.target is node:
            self.mutations[attribute].append(f"{method} changes it in place")
        elif (
            isinstance(parent, (cst.Del, cst.For, cst.CompFor, cst.AsName, cst.NamedExpr))
            and getattr(parent, "value", None) is not node
        ):
            if not (isinstance(parent, (cst.For, cst.CompFor)) and parent.iter is node):
                self.mutations[attribute].append(f"{method} binds or deletes it")
            else:
                self.loads[attribute].append(Load(method, node))
        else:
            written = self._written_through(node)
            if written:
                self.mutations[attribute].append(f"{method} {written}")
            self.loads[attribute].append(Load(method, node))

    def _unpacked(self, element: cst.Element, node: cst.Attribute) -> tuple[cst.BaseExpression | None] | None:
        """(value,) for a target of a tuple assignment; the value is None when it has none of its own."""
        pattern = self.source.parents[element]
        target = self.source.parents.get(pattern)
        if not isinstance(target, cst.AssignTarget) or not isinstance(pattern, (cst.Tuple, cst.List)):
            return None
        assign = self.source.parents[target]
        assert isinstance(assign, cst.Assign)
        if isinstance(assign.value, (cst.Tuple, cst.List)) and len(assign.value.elements) == len(pattern.elements):
            value = assign.value.elements[list(pattern.elements).index(element)]
            return (value.value if isinstance(value, cst.Element) else None,)
        return (None,)

    def _written_through(self, node: cst.Attribute) -> str | None:
        """How the object behind `self.x` is written to: a subscript or attribute store, an in-place method, `out=`."""
        child: cst.CSTNode = node
        for parent in self.source.ancestors(node):
            if isinstance(parent, cst.Attribute) and parent.value is child:
                if is_inplace_name(parent.attr.value) and isinstance(self.source.parents[parent], cst.Call):
                    return f"changes it in place by {parent.attr.value}"
            elif child in (getattr(parent, "value", None), getattr(parent, "func", None)) and isinstance(
                parent, (cst.Subscript, cst.Call)
            ):
                pass
            elif isinstance(parent, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign)) and parent.target is child:
                return "writes into it"
            elif isinstance(parent, cst.Arg):
                keyword = parent.keyword.value if parent.keyword else ""
                return "passes it as out" if keyword == "out" else None
            else:
                return None
            child = parent
        return None

    @cached_property
    def is_module(self) -> bool:
        """Whether instances are `torch.nn.Module`s, whose weights are loaded after construction."""
        return self._derives({self.name})

    def _derives(self, seen: set[str]) -> bool:
        for base in self.node.bases:
            dotted = self.source.dotted(base.value) or self.source.code(base.value)
            if dotted.split(".")[-1] in ("Module", "PreTrainedModel", "GradientCheckpointingLayer"):
                return True
            parent = next((c for c in classes(self.source) if c.name == dotted and c.name not in seen), None)
            if parent is not None and parent._derives(seen | {parent.name}):
                return True
        return any(self.kind(name) in ("linear", "parameter") for name in self.stores)

    def kind(self, attribute: str) -> str:
        """`linear` (an nn.Linear), `parameter` (nn.Parameter, nn.Buffer), `object` (of another class), else `plain`."""
        for store in self.stores.get(attribute, ()):
            made = store.value.func if isinstance(store.value, cst.Call) else None
            dotted = self.source.dotted(made) if made is not None else None
            if dotted == LINEAR or (store.annotation and self._annotated(store) == LINEAR):
                return "linear"
            if dotted in _PARAMETERS:
                return "parameter"
            name = (dotted or (self.source.code(made) if made is not None else "")).split(".")[-1]
            if name[:1].isupper():
                return "object"
        return "plain"

    def _annotated(self, store: Store) -> str | None:
        annotation = self.source.parents[store.target]
        if isinstance(annotation, cst.AnnAssign):
            return self.source.dotted(annotation.annotation.annotation)
        return None

    def constant(self, attribute: str) -> Store | str:
        """The one assignment of an attribute that is set once, always, in the constructor; else why it is not that."""
        name = f"self.{attribute}"
        stores = self.stores.get(attribute, [])
        if self.dynamic:
            return f"{name} may change: {self.dynamic}"
        if not stores:
            return f"{name} is not assigned in {self.name}"
        elsewhere = [s.method for s in stores if s.method != "__init__"]
        if elsewhere:
            return f"{name} is reassigned in {elsewhere[0]}"
        if len(stores) > 1:
            return f"{name} is assigned more than once"
        if self.mutations.get(attribute):
            return f"{name} is not constant: {self.mutations[attribute][0]}"
        store = stores[0]
        assert self.constructor is not None
        if store.line not in self.constructor.body.body or only(store.line) is None:  # type: ignore[arg-type,comparison-overlap]
            return f"{name} is assigned under a condition"
        return store

    def outside_use(self, attribute: str, others: Mapping[str, str], own_path: str) -> str | None:
        """Where something other than the class's own methods uses an attribute of this name, or None.

        Wider than needed: types are unknown.
        """
        for path, text in others.items():
            if attribute not in text or not path.endswith(".py"):
                continue
            if path == own_path:
                hits = [n for n in walk(self.source.module) if self._foreign(n, attribute)]
                if hits:
                    return f"{path}:{self.source.line(hits[0])}"
                if re.search(rf"""getattr\([^)]*["']{attribute}["']""", text):
                    return f"{path} (by name)"
                continue
            for use in attribute_uses(text).get(attribute, ()):
                if not use.on_self or self.name in use.bases:
                    return f"{path}:{use.line}"
        return None

    def _foreign(self, node: cst.CSTNode, attribute: str) -> bool:
        """A use of `.attribute` in this file that is not a method of this class reaching into its own instance."""
        if not isinstance(node, cst.Attribute) or node.attr.value != attribute:
            return False
        owner = next((n for n in self.source.ancestors(node) if isinstance(n, cst.ClassDef)), None)
        on_self = isinstance(node.value, cst.Name) and node.value.value == "self"
        if owner is self.node:
            return not on_self
        if on_self and owner is not None:
            return any(self.source.code(base.value) == self.name for base in owner.bases)
        return True


def classes(source: Source) -> list[ClassView]:
    """Classes at the top level of the file, in order."""
    found = source.__dict__.get("_classes")
    if found is None:
        found = source.__dict__["_classes"] = []
        found += [ClassView(source, n) for n in source.module.body if isinstance(n, cst.ClassDef)]
    return found
