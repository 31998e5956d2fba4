"""The gate: may a commit be merged? The probes of a run, asked about two commits of the user's repository.

Correctness and deterministic counters are hard; throughput fails a commit only when its whole interval lies below
what may be lost. Exit code 0 pass, 1 regression, 2 usage or infrastructure, 3 inconclusive.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from feedback.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra_agent.gate.budgets import Budgets
    from infra_agent.gate.checks import Check, Report
    from infra_agent.repository import Repository


def run_gate(
    base: str,
    head: str,
    budgets: Path,
    repo: Path = Path(),
    junit: Path | None = None,
    markdown: Path | None = None,
    as_json: bool = False,
) -> int:
    """Judge `head` against `base` and tell it in every form asked for; returns the exit code.

    Where `GITHUB_STEP_SUMMARY` names a file, the Markdown summary is appended to it. `UserError` for what is wrong
    with the call.
    """
    from infra_agent.gate import outputs
    from infra_agent.gate.budgets import Budgets
    from infra_agent.paths import output_file

    asked = Budgets.load(budgets)
    places = {path: output_file(path) for path in (junit, markdown) if path is not None}
    say = sys.stderr if as_json else sys.stdout
    report = judge(base, head, asked, budgets, repo, lambda check: print(outputs.line(check), file=say, flush=True))
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    print(outputs.outcome_line(report), file=say, flush=True)
    if junit is not None:
        _write(places[junit], outputs.junit(report))
    if markdown is not None:
        _write(places[markdown], outputs.markdown(report))
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with open(step_summary, "a", encoding="utf-8") as file:
            file.write(outputs.markdown(report))
    return report.exit_code


def judge(
    base: str, head: str, budgets: Budgets, budgets_file: Path, repo: Path, tell: Callable[[Check], None]
) -> Report:
    """Measure both commits; the checks are told as they come. Evidence stays in the user's home under `gates/`."""
    from feedback.evidence import EvidenceStore
    from feedback.load.collect import Misreport
    from feedback.oracle import OracleFailure
    from feedback.probe import Context
    from feedback.workers.failures import WorkerFailure
    from feedback.workers.pool import WorkerPool
    from infra_agent import paths
    from infra_agent.gate.checks import Answer, Check, Report
    from infra_agent.gate.measure import Measuring, checked_out
    from infra_agent.repository import Repository

    began = time.monotonic()
    repository = Repository.around(repo)
    first, second = (_commit(repository, name) for name in (base, head))
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    evidence = paths.home() / "gates" / f"{stamp}-{second[:12]}"
    done: list[Check] = []

    def collect(check: Check) -> None:
        done.append(check)
        tell(check)

    with checked_out(repository, first, second, budgets) as pair, WorkerPool(budgets.adapter) as pool:
        try:
            Measuring(pair, budgets, Context(pool, EvidenceStore(evidence)), budgets_file).run(collect)
        except (OracleFailure, WorkerFailure, Misreport) as error:
            collect(Check("infrastructure", Answer.BROKEN, str(error)))
    return Report(first, second, tuple(done), time.monotonic() - began, str(evidence))


def _commit(repository: Repository, name: str) -> str:
    found = repository.resolve(name)
    if found is None:
        raise UserError(f"{name!r} is no commit of the repository {repository.git_dir.parent}")
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
