"""The measuring side of a gate: two commits on disk, the probes asked about them, their counters, their throughput."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from feedback.errors import UserError
from feedback.probe import Context, Question, Tree
from infra_agent import tomltext
from infra_agent.gate.budgets import Budgets
from infra_agent.gate.checks import Answer, Check, of_counters, of_verdict, unsteady
from infra_agent.repository import Repository
from infra_agent.start import nested

if TYPE_CHECKING:
    from feedback.oracle import Oracle
    from feedback.target import Request

#: Reading weights takes longest; a workload that takes longer than this a call hangs.
START_SECONDS = 120.0


@dataclass(frozen=True)
class Pair:
    """The two commits checked out, and what counts as right: the base's own reference, or the head's where it may
    change it.
    """

    base: Tree
    head: Tree
    trusted: Tree
    changed: tuple[str, ...]


@contextmanager
def checked_out(repository: Repository, base: str, head: str, budgets: Budgets) -> Generator[Pair]:
    """Both commits in folders of their own, removed afterwards. Nothing of the repository is touched but its objects
    read.
    """
    with TemporaryDirectory(prefix="infra-agent-gate-") as folder:
        roots = {}
        for name, commit in (("base", base), ("head", head)):
            place = Path(folder) / name
            for path, entry in repository.contents(commit).items():
                file = place / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(entry.data)
                file.chmod(0o755 if entry.executable else 0o644)
            roots[name] = place / budgets.root
            if not roots[name].is_dir():
                raise UserError(
                    f"root {budgets.root!r} of the budgets file is no folder in the {name} commit {commit[:12]}"
                )
        trusted = "head" if budgets.protected == "allow" else "base"
        reference = budgets.reference or budgets.profile
        yield Pair(
            base=Tree(roots["base"], base, _config(roots["base"], budgets.profile, budgets, base)),
            head=Tree(roots["head"], head, _config(roots["head"], budgets.profile, budgets, head)),
            trusted=Tree(roots[trusted], f"trusted-{trusted}", _config(roots[trusted], reference, budgets, trusted)),
            changed=_changed(repository, base, head, budgets.root),
        )


def _config(root: Path, profile: str, budgets: Budgets, commit: str) -> dict[str, Any]:
    file = root / profile
    if not file.is_file():
        raise UserError(f"the profile {profile} of the budgets file is not in the commit {commit[:12]}")
    text = tomltext.read(file)
    return tomltext.parse(tomltext.edit(text, nested(budgets.launch)) if budgets.launch else text, profile)


def _changed(repository: Repository, base: str, head: str, root: str) -> tuple[str, ...]:
    """Paths that differ, relative to the root; those outside of it do not run."""
    inside = "" if root in (".", "") else root.rstrip("/") + "/"
    return tuple(sorted(p.removeprefix(inside) for p in repository.changed(base, head) if p.startswith(inside)))


class Measuring:
    """One gate's session: its workers, its evidence, its oracle."""

    def __init__(self, pair: Pair, budgets: Budgets, context: Context, budgets_file: Path) -> None:
        from feedback.oracle import Oracle

        self._pair, self._budgets, self._context = pair, budgets, context
        self._oracle: Oracle = Oracle.of(context.workers, pair.trusted)
        self._workload = self._find_workload(budgets_file)

    def run(self, tell: Callable[[Check], None]) -> None:
        """Correctness, then counters, then timing; what is dear is skipped once a regression is certain."""
        wrong = False
        for layer in self._budgets.correctness:
            check = self._correctness(layer)
            wrong |= check.answer is Answer.FAIL
            tell(check)
        if self._budgets.counters:
            for check in [_skipped("counters")] if wrong else self._counters():
                wrong |= check.answer is Answer.FAIL
                tell(check)
        if self._budgets.timing is not None:
            tell(_skipped("throughput") if wrong else self._timing())

    def _find_workload(self, budgets_file: Path) -> Path:
        named = self._budgets.workload
        beside = budgets_file.absolute().parent / named
        if "/" in named or named.endswith(".jsonl"):
            if not beside.is_file():
                raise UserError(f"{budgets_file}: there is no workload file {beside}")
            return beside
        known = {ref.name: ref.path for ref in self._oracle.description().workloads}
        if named not in known:
            raise UserError(f"{budgets_file}: the target has no workload {named!r}; it has {', '.join(sorted(known))}")
        return self._pair.trusted.root / known[named]

    def _question(self, name: str) -> Question:
        return Question(
            hypothesis=f"gate-{name}",
            base=self._pair.base,
            candidate=self._pair.head,
            trusted=self._pair.trusted,
            adapter=self._budgets.adapter,
            kind="code",
            changed=self._pair.changed,
            workload=self._workload,
            seed=self._budgets.seed,
            limits=dict(self._budgets.limits),
        )

    def _correctness(self, layer: str) -> Check:
        from feedback.probe import discover

        probes = discover()
        if layer not in probes:
            raise UserError(f"there is no probe {layer!r} for correctness; there are {', '.join(sorted(probes))}")
        return of_verdict(layer, probes[layer].run(self._question(layer), self._context))

    def _timing(self) -> Check:
        from feedback.load.probe import LoadProbe, LoadSettings

        timing = self._budgets.timing
        assert timing is not None
        settings = LoadSettings(margin=1 - timing.may_lose, max_passes=timing.passes)
        return of_verdict(
            "throughput", LoadProbe(settings).run(self._question("throughput"), self._context), timing=True
        )

    def _counters(self) -> list[Check]:
        from feedback.load.collect import Misreport
        from feedback.load.workload import Workload, prepare
        from feedback.target import Unsupported
        from feedback.workers.failures import WorkerFailure

        began = time.monotonic()
        requests = prepare(Workload.read(self._workload), self._oracle.tokenize, None)
        try:
            base = self._run(self._pair.base, requests)
        except (WorkerFailure, Misreport, Unsupported) as error:
            return [Check("counters", Answer.BROKEN, f"the base gave no counters: {error}", time.monotonic() - began)]
        try:
            head = self._run(self._pair.head, requests)
        except Unsupported as error:
            return [Check("counters", Answer.INCONCLUSIVE, f"not possible: {error}", time.monotonic() - began)]
        except WorkerFailure as error:
            return [Check("counters", Answer.FAIL, error.line, time.monotonic() - began)]
        except Misreport as error:
            what = f"its reports cannot be true: {error}"
            return [Check("counters", Answer.FAIL, what, time.monotonic() - began)]
        checks = of_counters(self._budgets.counters, base, head, time.monotonic() - began)
        if any(check.answer is Answer.FAIL for check in checks):
            checks = unsteady(checks, self._run(self._pair.base, requests))
        return checks

    def _run(self, tree: Tree, requests: tuple[Request, ...]) -> dict[str, float]:
        """The engine's counters after the whole workload, all requests submitted at once."""
        from feedback.generation import generate

        with self._context.workers.open(tree, role="candidate") as worker:
            session = worker.start(tree.config, timeout=START_SECONDS)
            generate(session, requests, timeout=START_SECONDS)
            return session.metrics()


def _skipped(name: str) -> Check:
    return Check(name, Answer.SKIPPED, "not measured: the head is wrong already")
