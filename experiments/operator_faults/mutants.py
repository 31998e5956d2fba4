"""Mutants of the operators' code: every place where a mutation fits, each changed file once, in an order of a seed.

Changed are the plain implementations, the code that combines ranks, and what these share. A change that leaves the
compiled code as it was, or makes the code of another mutant, is no mutant of its own. Pure: texts in, faults out.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from types import CodeType

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from experiments.operator_faults.expressions import text_of
from experiments.operator_faults.faults import OPS, Fault, Sources
from experiments.operator_faults.kinds import KINDS, MUTATIONS, Change, Kind
from experiments.operator_faults.steps import Place, place_of

#: Files that are mutated.
MUTATED = (f"{OPS}/*/torch.py", f"{OPS}/*/parallel.py", f"{OPS}/delta_chunks.py", "target_engine/parallel/tokens.py")

#: Longer texts of a change are cut, characters.
_LENGTH = 70


def mutants(sources: Sources) -> list[Fault]:
    """All mutants, file after file, in the order of their places."""
    found: list[Fault] = []
    places: dict[tuple[str, int], Place] = {}
    for path in sorted(path for path in sources if any(fnmatch(path, pattern) for pattern in MUTATED)):
        seen = {bytecode(sources[path])}
        for line, column, kind, change, text in changes(sources[path]):
            compiled = bytecode(text)
            if compiled in seen:
                continue
            seen.add(compiled)
            place = places.get((path, line)) or place_of(path, line, sources)
            places[path, line] = place
            short = path.removeprefix(f"{OPS}/").removeprefix("target_engine/").removesuffix(".py")
            name = f"{short}:{line}:{column} {kind} {hashlib.sha256(text.encode()).hexdigest()[:6]}"
            found.append(
                Fault(name, kind, "mutant", {path: text}, place.operators, place.steps, "", path, line, change)
            )
    return found


def sampled(found: Sequence[Fault], count: int | None, seed: int, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """`count` mutants of these kinds (None: all), the kinds in turn, drawn by the seed.

    The first so many of a larger sample are the smaller one.
    """
    rng = random.Random(seed)
    piles = [[fault for fault in found if fault.kind == kind] for kind in KINDS if kind in kinds]
    for pile in piles:
        rng.shuffle(pile)
    drawn = []
    while any(piles) and (count is None or len(drawn) < count):
        for pile in piles:
            if pile and (count is None or len(drawn) < count):
                drawn.append(pile.pop())
    return drawn


def changes(text: str) -> Iterator[tuple[int, int, Kind, str, str]]:
    """(line, column, kind, `old -> new`, new text) of every change of a module that still parses."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    places = wrapper.resolve(PositionProvider)
    finder = _Finder()
    wrapper.visit(finder)
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    for node, change in finder.found:
        place = places[node]
        begin, end = (starts[at.line - 1] + at.column for at in (place.start, place.end))
        # Brackets around a node are none of its place: they stay.
        inner = change.new.with_changes(lpar=[], rpar=[]) if getattr(node, "lpar", ()) else change.new
        old, new = text[begin:end], text_of(inner)
        mutated = text[:begin] + new + text[end:]
        try:
            compile(mutated, "mutant", "exec")
        except SyntaxError:
            continue
        yield place.start.line, place.start.column, change.kind, f"{_short(old)} -> {_short(new)}", mutated


class _Finder(cst.CSTVisitor):
    """Collects what may be changed: expressions in the bodies of functions."""

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, Change]] = []
        self._depth = 0
        self._slices: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._depth += 1
        self._slices = _slices_in(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1

    def visit_Parameters(self, node: cst.Parameters) -> bool:
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._depth and not (isinstance(node, cst.Index) and text_of(node.value) in self._slices):
            for mutation in MUTATIONS:
                self.found += [(node, change) for change in mutation(node)]
        return super().on_visit(node)


def _slices_in(function: cst.FunctionDef) -> set[str]:
    """Names of a function that hold slices, of which there is no next one: parameters said to be, and what runs over
    slices.
    """
    names = {
        parameter.name.value
        for parameter in function.params.params
        if parameter.annotation is not None and text_of(parameter.annotation.annotation) == "slice"
    }
    body = text_of(function.body)
    return names | {name for name in ("part", "piece") if "slice(" in body or ".rounds()" in body or name in names}


def bytecode(text: str) -> bytes:
    """A digest of what a module compiles to, without places in its text."""
    return hashlib.sha256(repr(_plain(compile(text, "mutant", "exec", optimize=0))).encode()).digest()


def _plain(value: object) -> object:
    if not isinstance(value, CodeType):
        return type(value).__name__, value
    constants = tuple(_plain(each) for each in value.co_consts)
    return value.co_code, constants, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LENGTH else plain[: _LENGTH - 3] + "..."
