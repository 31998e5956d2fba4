"""Asks whether a candidate's text and launch configuration are sound, before anything of it runs."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from feedback.judging import Bench, Finding, judge
from feedback.probe import Context, Question
from feedback.static.flaws import Flaw
from feedback.static.imports import unresolved_imports
from feedback.static.launch import launch_flaws
from feedback.static.names import parse, undefined_names
from feedback.static.scope import changed_files, scope_flaws
from feedback.static.tampering import tampering_flaws
from feedback.static.types import NoChecker, type_flaws
from feedback.target import FileEntry, Role, Unsupported
from feedback.verdict import Confidence, Predicate, Status, Verdict, digest_of

#: The order in which hard findings are told: what makes the others moot comes first.
ORDER = ("scope", "syntax", "launch", "imports", "names", "tampering", "types")


class StaticProbe:
    """Edit scope, syntax, names, imports, types, launch configuration, signs of tampering.

    Runs nothing of the candidate.
    """

    layer: str = "static"
    cost_prior: float = 0.6

    def predicate(self, question: Question) -> Predicate:
        return Predicate(
            layer=self.layer,
            statement="stays in its edit scope, parses, resolves its names and imports, adds no type error that must "
            "fail, has a valid launch configuration, shows no evaluator tampering",
            parameters={
                "kind": question.kind,
                "changed": sorted(question.changed),
                "scope": sorted(question.scope),
                "config": digest_of(question.candidate.config),
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(self.predicate(question), question, context, _examine)


PROBE = StaticProbe()


def _examine(bench: Bench) -> Finding:
    question, root = bench.question, bench.question.candidate.root
    gaps: list[str] = []
    profile = FileEntry(path=bench.oracle.description().profile_path, role=Role.PROFILE)
    entries = (*bench.oracle.entries(), profile)
    changed = changed_files(question.base.root, root, entries, question.changed)
    flaws = scope_flaws(changed, root, entries, question.scope, question.kind)
    outside = {flaw.path for flaw in flaws}
    present = [path for path in changed if path not in outside and (root / path).is_file()]
    flaws += _texts(present, root, question.base.root, gaps)
    try:
        flaws += launch_flaws(question.candidate.config, root, bench.oracle)
    except Unsupported as error:
        gaps.append(f"launch configuration not checked: {error}")
    hard = sorted((f for f in flaws if f.hard), key=lambda f: (ORDER.index(f.check), f))
    soft = [f for f in flaws if not f.hard]
    data = {"changed": list(changed), "flaws": [vars(f) for f in flaws]}
    if hard:
        more = f" (and {len(hard) - 1} more)" if len(hard) > 1 else ""
        guess = all(flaw.inferred for flaw in hard)
        return Finding(
            Status.REFUTED,
            f"{hard[0].check}: {hard[0].text}{more}",
            Confidence.HEURISTIC if guess else Confidence.PROOF,
            at=tuple(flaw.location() for flaw in hard[:8]),
            gaps=tuple(gaps),
            data=data,
        )
    noted = "; ".join(f"{f.path}:{f.line} {f.text}" for f in soft[:3])
    observed = (
        f"{len(changed)} changed files are in scope and sound" if changed else "no file differs; configuration is valid"
    )
    return Finding(
        Status.CONFIRMED,
        observed + (f"; worth a look: {noted}" if noted else ""),
        Confidence.HEURISTIC if any(f.inferred for f in soft) else Confidence.PROOF,
        at=tuple(flaw.location() for flaw in soft[:8]),
        gaps=(*gaps, "what the code does when it runs"),
        next="smoke",
        metrics={"changed_files": float(len(changed)), "soft_findings": float(len(soft))},
        data=data,
    )


def _texts(paths: Sequence[str], root: Path, base: Path, gaps: list[str]) -> list[Flaw]:
    """Flaws of the changed files' texts; what is not looked into is added to `gaps`."""
    flaws: list[Flaw] = []
    trees: dict[str, ast.Module] = {}
    for path in paths:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            flaws.append(Flaw(path, None, "syntax", f"not UTF-8 text at byte {error.start}"))
            continue
        match Path(path).suffix:
            case ".py":
                tree = parse(path, text)
                if isinstance(tree, Flaw):
                    flaws.append(tree)
                    continue
                trees[path] = tree
                flaws += undefined_names(path, text, tree)
                flaws += unresolved_imports(path, tree, root)
                flaws += tampering_flaws(path, tree, _tree_of(base / path))
            case ".toml":
                flaws += _data_flaws(path, text, tomllib.loads)
            case ".json":
                flaws += _data_flaws(path, text, json.loads)
            case suffix:
                gaps.append(f"{path} not looked into ({suffix or 'no suffix'})")
    if trees and not any(flaw.check == "syntax" for flaw in flaws):
        try:
            known = {(flaw.path, flaw.line) for flaw in flaws if flaw.hard}
            flaws += [f for f in type_flaws(sorted(trees), root, base, trees) if (f.path, f.line) not in known]
        except NoChecker as error:
            gaps.append(str(error))
    return flaws


def _data_flaws(path: str, text: str, load) -> list[Flaw]:
    try:
        load(text)
    except ValueError as error:  # both decoders' errors say line and column
        return [Flaw(path, getattr(error, "lineno", None), "syntax", str(error).splitlines()[0])]
    return []


def _tree_of(file: Path) -> ast.Module | None:
    try:
        found = parse(str(file), file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return found if isinstance(found, ast.Module) else None
