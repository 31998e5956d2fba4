"""The parent's side of a trial: transform the text here, run both modules in a process of their own, read the answer.

Nothing here imports torch or the modules.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.skeleton_transfer.trials import CHECKS, HERE, MODULES, Trial
from skeletons.library import Library
from skeletons.transfer import Transfer, transfer
from skeletons.view import Site

PROGRAM = HERE / "program.py"
SEEDS = (0, 1, 2)
SECONDS = 300.0


class Failed(Exception):
    """The process that was to compare gave no answer; one line."""


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `outcome` is `transformed`, `declined`, or what went wrong; `ok` whether that was right."""

    trial: Trial
    outcome: str
    ok: bool
    sites: int = 0
    error: float | None = None
    values: int = 0
    ran: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    note: str = ""


def source_of(trial: Trial) -> str:
    """The text that is to be transformed; that of an installed module is read in a process that can import it."""
    if trial.kind != "library":
        return (MODULES / trial.source).read_text(encoding="utf-8")
    text = _program("source", trial.source)
    return text + (MODULES / trial.tail).read_text(encoding="utf-8") if trial.tail else text


def attempt(library: Library, trial: Trial, folder: Path) -> Outcome:
    """One trial, in a folder of its own."""
    text = source_of(trial)
    found = transfer(library, trial.skeleton, trial.files(text), trial.operators)
    reasons = "; ".join(decline.reason for decline in found.declined)
    if trial.kind == "counterexample":
        declined = not found.sites and trial.reason in reasons
        outcome = "declined" if not found.sites and reasons else "NOT DECLINED" if found.sites else "NO REASON"
        return Outcome(trial, outcome, declined, len(found.sites), note=reasons)
    if not found.sites:
        return Outcome(trial, "NOT TRANSFORMED", False, note=reasons or "no place was found")
    again = left_over(library, trial, found)
    if again:
        return Outcome(trial, "NOT FINISHED", False, len(found.sites), note=again[0].label)
    try:
        answer = json.loads(_program("compare", str(_request(trial, text, found, folder))))
    except Failed as error:
        return Outcome(trial, "BROKEN", False, len(found.sites), note=str(error))
    return judged(trial, len(found.sites), answer)


def left_over(library: Library, trial: Trial, found: Transfer) -> tuple[Site, ...]:
    """Places that are still found in the result, with the operators' selection as the change sets it."""
    if not found.launch:
        return found.again
    operators = []
    for operator in trial.operators:
        chosen = found.launch.get(f"operators.{operator.name}", operator.selected)
        files = {**operator.files, chosen: trial.path.replace("plain", chosen)}
        known = tuple(dict.fromkeys((*operator.implementations, chosen)))
        operators.append(operator.model_copy(update={"selected": chosen, "implementations": known, "files": files}))
    return transfer(library, trial.skeleton, found.files, operators).sites


def judged(trial: Trial, sites: int, answer: dict) -> Outcome:
    """What the comparison means: equal within the limit, and the transformed code did run. Pure."""
    ran, changed = tuple(answer["ran"]), tuple(answer["changed"])
    known = {"sites": sites, "error": answer["error"], "values": answer["values"], "ran": ran, "changed": changed}
    if answer["problem"]:
        return Outcome(trial, "WRONG", False, note=answer["problem"], **known)
    if not answer["error"] <= trial.limit:
        return Outcome(trial, "WRONG", False, note=f"off by {answer['error']:.2g} of the largest value", **known)
    if not ran or not answer["values"]:
        return Outcome(trial, "NOT RUN", False, note="the check ran none of the changed functions", **known)
    return Outcome(trial, "transformed", True, **known)


def _request(trial: Trial, text: str, found: Transfer, folder: Path) -> Path:
    """Write both modules and the request that names them."""
    installed = trial.kind == "library" and not trial.tail
    if installed:
        file = folder / trial.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found.files[trial.path], encoding="utf-8")
        path, old, before = trial.path, text, {"name": trial.source}
        after = {"name": f"{trial.source}_transformed", "file": str(file)}
    else:
        chosen = next(iter(found.launch.values()), "plain")
        path, old = trial.path.replace("plain", chosen), text if chosen == "plain" else ""
        before = _placed(folder, "before", trial.path, trial.files(text))
        after = _placed(folder, "after", path, found.files)
    request = folder / "request.json"
    told = {
        "check": str(CHECKS / f"{trial.skeleton}.py"),
        "function": trial.kind,
        "seeds": list(SEEDS),
        "before": before,
        "after": after,
        "changed": changed_lines(old, found.files[path]),
    }
    request.write_text(json.dumps(told), encoding="utf-8")
    return request


def _placed(folder: Path, when: str, wanted: str, files: Mapping[str, str]) -> dict[str, str]:
    """The files in a package that is called after `when`; how to import the wanted one of them."""
    for path, text in files.items():
        file = folder / _renamed(path, when)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    path = _renamed(wanted, when)
    name = path.removesuffix(".py").replace("/", ".")
    return {"name": name, "file": str(folder / path), "root": str(folder)}


def _renamed(path: str, when: str) -> str:
    return f"{when}_{path}"


def changed_lines(old: str, new: str) -> list[int]:
    """Numbers of the lines of `new` that are not in `old`."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    blocks = [(start, end) for tag, _, _, start, end in matcher.get_opcodes() if tag in ("replace", "insert")]
    return [number + 1 for start, end in blocks for number in range(start, end)]


def _program(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, str(PROGRAM), *arguments]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False, cwd=HERE
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {SECONDS:.0f} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise Failed(lines[-1][:300])
    return done.stdout
