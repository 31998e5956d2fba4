"""The trees that kernel workers run from: code under test beside the worker side of this layer, and nothing else."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from feedback.errors import UserError
from feedback.sandbox.policy import Interpreter

#: The worker side of this layer; each file imports the others by relative names.
WORKER_FILES = (
    *("rounding.py", "observed.py", "builder.py", "interpret.py", "compile.py", "disassembly.py", "devices.py"),
    *("expressions.py", "capability.py", "golden_cases.py", "golden_kernels.py", "bench.py"),
)

#: The package that holds it where no engine is run.
BENCH = "kernel_bench"

#: The same inside an engine's package.
INSIDE = "_kernel_bench"

#: As in `bench`, which the parent does not import.
LOOSE = "kernel_subject"

#: What a text with Triton kernels holds.
MARKS = ("triton.jit", "from triton import")

_ADAPTER = "from .bench import Bench\n\n\ndef create():\n    return Bench()\n"
_ENGINE_ADAPTER = (
    "from {adapter} import create as create_engine\n\nfrom .bench import Bench\n\n\n"
    "def create():\n    return Bench(create_engine())\n"
)


def holds_kernels(file: Path) -> bool:
    """Whether a file defines Triton kernels."""
    return file.is_file() and names_kernels(file.read_text(encoding="utf-8", errors="replace"))


def names_kernels(text: str) -> bool:
    """The same of a text."""
    return any(mark in text for mark in MARKS)


@dataclass(frozen=True)
class Source:
    """A Python file as a module: its dotted name, and the files that have to lie in the tree for it, by relative path.

    A module of an installed package needs none.
    """

    module: str
    files: dict[str, Path] = field(default_factory=dict)

    def original(self, root: Path, file: str) -> str:
        """The person's own path of a file that a worker names by its copy below `root`."""
        path = Path(file)
        return str(self.files.get(path.relative_to(root).as_posix(), path)) if path.is_relative_to(root) else file


def source_of(path: Path, interpreter: Interpreter | None = None) -> Source:
    """How a file is imported: as part of an installed package, of the package around it, or by itself.

    A file by itself brings along the files beside it that it imports, and those that they import.
    """
    known = interpreter or Interpreter.current()
    for folder in known.site_folders:
        if path.is_relative_to(folder):
            return Source(".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"))
    top = path.parent
    if (top / "__init__.py").is_file():
        while (top.parent / "__init__.py").is_file():
            top = top.parent
        module = ".".join(path.relative_to(top.parent).with_suffix("").parts)
        files = {file.relative_to(top.parent).as_posix(): file for file in sorted(top.rglob("*.py"))}
        return Source(module.removesuffix(".__init__"), files)
    return Source(f"{LOOSE}.{path.stem}", {f"{LOOSE}/{file.name}": file for file in _beside(path)})


def _beside(path: Path) -> list[Path]:
    """The file, and files of its folder that are imported from it, directly or through another."""
    found, waiting = [path], [path]
    while waiting:
        for name in _imported(waiting.pop()):
            file = path.with_name(f"{name}.py")
            if file.is_file() and file not in found:
                found.append(file)
                waiting.append(file)
    return found


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} is no Python: {error}") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def by_hand(root: Path, sources: Iterable[Source]) -> Path:
    """A tree under `root` for these files; the adapter is `BENCH`.adapter."""
    _worker_side(root / BENCH, _ADAPTER)
    for source in sources:
        for relative, file in source.files.items():
            place = root / relative
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    return root


def of_engine(root: Path, engine: Path, adapter: str) -> Path:
    """A copy of an engine's package under `root` with this layer inside; the adapter is `engine_adapter(adapter)`."""
    top = adapter.partition(".")[0]
    # Links stay links: what one points at is out of the worker's reach, here as in the engine's own tree.
    shutil.copytree(engine / top, root / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", INSIDE))
    _worker_side(root / top / INSIDE, _ENGINE_ADAPTER.format(adapter=adapter))
    return root


def engine_adapter(adapter: str) -> str:
    """The adapter module of a tree made by `of_engine`."""
    return f"{adapter.partition('.')[0]}.{INSIDE}.adapter"


def _worker_side(folder: Path, adapter: str) -> None:
    folder.mkdir(parents=True)
    here = Path(__file__).parent
    for name in WORKER_FILES:
        shutil.copyfile(here / name, folder / name)
    (folder / "__init__.py").write_text("")
    (folder / "adapter.py").write_text(adapter)
