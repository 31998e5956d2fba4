"""What a probe is, and how probes are found.

A probe is a class with a `layer`, a `predicate` and a `run`, in `feedback/<layer>/probe.py` as `PROBE`. Adding a layer
adds a folder and touches no list. The predicate is built from the question alone and is recorded before `run` is
called.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from feedback.verdict import Predicate, Verdict

if TYPE_CHECKING:
    from feedback.evidence import EvidenceStore
    from feedback.statistics import NoiseFloor
    from feedback.workers.pool import WorkerPool


@dataclass(frozen=True)
class Tree:
    """A state of the target on disk: `root` is what goes on the worker's module path.

    `config` its launch configuration.
    """

    root: Path
    commit: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What is asked about a candidate.

    `kind` is `launch`, `code` or `bundle`; `changed` the files that differ from `base` (relative, POSIX); `operators`
    those that the move is meant to touch (empty: not known, check all whose file or selection changed);
    `changes_numerics` whether token equality may be given up (a type change): then NLL and KL gate instead. `limits`
    are the goal's constraints by name. `explain`: whether a refutation is worth the time of finding out why.
    """

    hypothesis: str
    base: Tree
    candidate: Tree
    trusted: Tree
    adapter: str
    kind: str
    changed: tuple[str, ...]
    workload: Path
    seed: int
    operators: tuple[str, ...] = ()
    changes_numerics: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    explain: bool = True


@dataclass
class Context:
    """What a probe may use: workers, the evidence store, the session's noise floor (None until it was measured)."""

    workers: WorkerPool
    evidence: EvidenceStore
    noise: NoiseFloor | None = None


class Probe(Protocol):
    """One feedback layer. `cost_prior` is a first guess in seconds; measured costs replace it."""

    layer: str
    cost_prior: float

    def predicate(self, question: Question) -> Predicate:
        """The question this probe would answer, fixed before `run`. Pure."""
        ...

    def run(self, question: Question, context: Context) -> Verdict:
        """Ask it. Never raises for what the candidate did: that is a verdict."""
        ...


def discover() -> dict[str, Probe]:
    """All probes, by layer: every `feedback/<folder>/probe.py` that defines `PROBE`."""
    import feedback

    found: dict[str, Probe] = {}
    for module in pkgutil.iter_modules(feedback.__path__):
        if module.ispkg and (Path(feedback.__path__[0]) / module.name / "probe.py").is_file():
            probe = importlib.import_module(f"feedback.{module.name}.probe").PROBE
            found[probe.layer] = probe
    return found
