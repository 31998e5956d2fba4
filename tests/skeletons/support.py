"""What the tests of code skeletons share: the shipped library, running source text, an engine's plain operators."""

from __future__ import annotations

import ast
import datetime
import itertools
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedback.target import Case, OperatorInfo, Tensor, Tolerance
from skeletons.library import Library
from skeletons.transfer import Transfer, transfer

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date(2026, 10, 1)
_numbers = itertools.count()


def library(user: Path | None = None) -> Library:
    """The shipped library; nothing of the user's own unless given."""
    return Library.load(user=user or Path("/nonexistent"), today=TODAY)


def apply(skeleton: str, text: str, **extra: Any) -> Transfer:
    """Apply a skeleton to one file.

    What must hold of every edit is checked here: it compiles, nothing else changed, no site is left.
    """
    result = transfer(library(), skeleton, {"module.py": text}, **extra)
    if result.sites:
        new = result.files["module.py"]
        compile(new, "module.py", "exec")
        assert result.again == (), [site.label for site in result.again]
        touched = {site.symbol.split(".")[0] for site in result.sites}
        assert untouched(text, touched) == untouched(new, touched), "text outside the sites changed"
    return result


def untouched(text: str, names: set[str]) -> list[str]:
    """Source text of the top-level definitions that are not in `names`, helpers (leading underscore) left out."""
    tree = ast.parse(text)
    return [
        ast.get_source_segment(text, node) or ""
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and node.name not in names
        and not node.name.startswith("_")
    ]


def run(text: str, names: Mapping[str, Any] | None = None) -> types.ModuleType:
    """Execute source text as a module of its own, with extra global names."""
    module = types.ModuleType(f"_sample_{next(_numbers)}")
    sys.modules[module.__name__] = module
    module.__dict__.update(names or {})
    exec(compile(text, module.__name__, "exec"), module.__dict__)
    return module


def both(skeleton: str, text: str, names: Mapping[str, Any] | None = None, **extra: Any):
    """(module before, module after) of one file."""
    result = apply(skeleton, text, **extra)
    assert result.sites, [decline.label for decline in result.declined]
    return run(text, names), run(result.files["module.py"], names)


def reasons(skeleton: str, text: str, **extra: Any) -> str:
    """All refusals for a file, which must have no site."""
    result = apply(skeleton, text, **extra)
    assert result.sites == (), [site.label for site in result.sites]
    return "\n".join(decline.label for decline in result.declined)


def plain_operators() -> dict[str, str]:
    """The plain implementations of the bundled engine, as text."""
    return {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.glob("target_engine/ops/*/torch.py"))}


def plain_operator(role: str) -> tuple[str, str]:
    """Path and text of the bundled engine's plain operator of a role."""
    found = [p.parent for p in ROOT.glob("target_engine/ops/*/spec.py") if f'role="{role}"' in p.read_text()]
    (folder,) = found
    path = folder / "torch.py"
    return str(path.relative_to(ROOT)), path.read_text()


Declared = Sequence[tuple[str, tuple[int | str, ...], str, str]]


def operator(
    name: str, role: str, tensors: Declared, dims: Sequence[dict[str, int]], path: str, **extra: Any
) -> OperatorInfo:
    """An operator with one implementation, `plain`, in `path`."""
    return OperatorInfo(
        name=name,
        role=role,
        doc="",
        tensors=tuple(Tensor(name=n, shape=s, dtype=d, kind=k) for n, s, d, k in tensors),  # type: ignore[arg-type]
        cases=tuple(Case(name=str(i), dims=d) for i, d in enumerate(dims)),
        tolerance={"float32": Tolerance(atol=1e-5, rtol=1e-5, reason="test")},
        implementations=extra.pop("implementations", ("plain",)),
        selected="plain",
        files={"plain": path},
        **extra,
    )
