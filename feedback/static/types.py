"""Type errors that a candidate adds, found by pyrefly where it is installed (0.2 s for a few files)."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from feedback.static.flaws import Flaw

#: Kinds of error that fail whenever the line is reached; the others depend on how well the code is annotated.
CERTAIN = frozenset(
    {"unknown-name", "missing-module-attribute", "missing-argument", "bad-argument-count", "unexpected-keyword"}
)

TIMEOUT_SECONDS = 20.0


class NoChecker(Exception):
    """Types could not be checked; the text says why."""


def checker() -> str | None:
    """Path of the pyrefly executable that belongs to this interpreter, or any on the path; None without one."""
    beside = Path(sys.executable).with_name("pyrefly")
    return str(beside) if beside.is_file() else shutil.which("pyrefly")


def type_flaws(files: Sequence[str], root: Path, base: Path, trees: Mapping[str, ast.Module]) -> list[Flaw]:
    """Errors in `files` (relative) under `root` that the same files under `base` do not have.

    Raises `NoChecker`. `trees` are the syntax trees of the candidate's files, used to tell its own classes from
    others'.
    """
    command = checker()
    if command is None:
        raise NoChecker("types not checked: pyrefly is not installed")
    errors = _errors(command, root, files)
    if not errors:
        return []
    known = [path for path in files if (base / path).is_file()]
    before = Counter(_key(e) for e in _errors(command, base, known)) if known else Counter()
    flaws = []
    for error in errors:
        if before[_key(error)] > 0:
            before[_key(error)] -= 1
            continue
        text = error["concise_description"].replace("\n", " ")
        path = error["path"]
        hard = error["name"] in CERTAIN or (error["name"] == "missing-attribute" and _own_class(text, trees.get(path)))
        flaws.append(Flaw(path, error["line"], "types", text, hard=hard))
    return sorted(flaws)


def _errors(command: str, root: Path, files: Sequence[str]) -> list[dict]:
    # A configuration of our own: the nearest one above the tree would be the candidate's.
    with tempfile.TemporaryDirectory(prefix="types-") as folder:
        config = Path(folder) / "pyrefly.toml"
        config.write_text('preset = "default"\n')
        options = ["-c", str(config), "--search-path", str(root), "--threads", "1", "--output-format", "json"]
        options += ["--python-interpreter-path", sys.executable]
        try:
            done = subprocess.run(
                [command, "check", *files, *options],
                cwd=root,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoChecker(f"types not checked: {error}") from error
    try:
        return [e for e in json.loads(done.stdout)["errors"] if e["severity"] == "error"]
    except (ValueError, KeyError) as error:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise NoChecker(f"types not checked: pyrefly: {last}") from error


def _key(error: dict) -> tuple[str, str, str]:
    return error["path"], error["name"], error["concise_description"]


def _own_class(text: str, tree: ast.Module | None) -> bool:
    """Whether a missing attribute is one of a class that the same file defines, without dynamic attributes."""
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ClassDef) and f"`{node.name}`" in text:
            dynamic = {"__getattr__", "__getattribute__"}
            return not any(isinstance(n, ast.FunctionDef) and n.name in dynamic for n in node.body)
    return False
