"""Runs through faults: plants each in a copy of the engine, asks layer after layer until one refutes, writes it down.

A record is on disk before the next fault begins, whole or not at all, so that a run which is killed goes on where it
was. What a record depends on (the planted text, the engine, the layers and their configurations, the seed) is its key:
another engine, and another judge, has other records.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.operator_faults.equivalence import Compared, compare
from experiments.operator_faults.faults import Fault, digest_of
from experiments.operator_faults.layers import LAYERS, Answer, Layer, adequate, ask, localised
from feedback.evidence import EvidenceStore
from feedback.probe import Context, Question, Tree
from feedback.verdict import Status
from feedback.verdict import digest_of as digest_of_value
from feedback.workers.pool import Limits, WorkerPool

FILE = "faults.jsonl"
ADAPTER = "target_engine.adapter"
CALL_SECONDS = 60.0

#: Kernels that are interpreted of the engine as it is: all of them take minutes.
KERNELS = ("kda_recurrent", "kda_state_merge")

#: Requests that `smoke` picks from.
WORDS = ("the quick brown fox ", "engines compute tokens ", "in blocks and then ")


@dataclass(frozen=True)
class Record:
    """What came of one fault. `outcome`: killed, survived, equivalent or regrouped (as `equivalence` has them), or
    broken (a layer gave no answer); without a fault `sound`, unless a layer refutes it.
    """

    key: str
    name: str
    kind: str
    source: str
    path: str
    line: int
    change: str
    layer: str
    operators: tuple[str, ...]
    steps: tuple[str, ...]
    outcome: str
    answers: tuple[Answer, ...]
    localised: bool = False
    compared: Compared | None = None
    about: str = ""

    @property
    def seconds(self) -> float:
        """Until a layer refuted it, or all had been asked."""
        return sum(answer.seconds for answer in self.answers)

    @property
    def refuting(self) -> Answer | None:
        """The first answer that turned it down."""
        return next((answer for answer in self.answers if answer.refuted), None)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Record:
        """From its JSON value."""
        fields = dict(value)
        fields["answers"] = tuple(Answer(**answer) for answer in fields["answers"])
        fields["compared"] = fields["compared"] and Compared(**fields["compared"])
        for name in ("operators", "steps"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def read(folder: Path) -> dict[str, Record]:
    """The records of a folder by key. A last line that was cut off is no record."""
    file = folder / FILE
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            record = Record.parse(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue
        found[record.key] = record
    return found


def append(folder: Path, record: Record) -> None:
    """One more record, on disk when this returns."""
    file = folder / FILE
    torn = file.is_file() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
    with file.open("a", encoding="utf-8") as out:
        out.write(("\n" if torn else "") + json.dumps(asdict(record), ensure_ascii=False) + "\n")
        out.flush()
        os.fsync(out.fileno())


@dataclass
class Bench:
    """The engine as it is, workers, and a place to plant faults."""

    folder: Path
    clean: Path
    pool: WorkerPool
    model: str
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        package = self.clean / ADAPTER.split(".")[0]
        self.sources = {p.relative_to(self.clean).as_posix(): p.read_text() for p in sorted(package.rglob("*.py"))}
        self.workload = self.folder / "requests.jsonl"
        rows: list[dict[str, Any]] = [{"workload": "requests", "version": 1}]
        rows += [
            {"id": f"r{i}", "prompt": WORDS[i % 3] * (3 + 5 * (i % 4)), "max_tokens": 8, "ignore_eos": True}
            for i in range(6)
        ]
        self.workload.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.context = Context(self.pool, EvidenceStore(self.folder / "evidence"))
        self.digest, self.judges = digest_of(self.sources), digest_of(_judges())

    def key(self, fault: Fault, seed: int) -> str:
        """What a record of this fault depends on."""
        layers = [[layer.name, layer.config] for layer in LAYERS]
        return digest_of_value([fault.name, fault.digest, self.digest, self.judges, self.model, seed, layers])

    @contextmanager
    def planted(self, fault: Fault) -> Generator[Path]:
        """A copy of the engine with the fault in it, for as long as it is needed."""
        root = self.folder / "planted"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.clean, root)
        for path, text in fault.files.items():
            (root / path).write_text(text, encoding="utf-8")
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def question(self, fault: Fault, root: Path, layer: Layer, seed: int) -> Question:
        """A layer's question about the planted tree."""
        config = layer.config | {"model": self.model}
        trusted = {name: value for name, value in config.items() if name not in ("tp", "cp", "layer_split")}
        return Question(
            hypothesis=fault.name,
            base=Tree(self.clean, self.digest, config),
            candidate=Tree(root, fault.digest if fault.files else self.digest, config),
            trusted=Tree(self.clean, self.digest, trusted | {"max_batch": 1}),
            adapter=ADAPTER,
            kind="code",
            changed=tuple(fault.files),
            workload=self.workload,
            seed=seed,
            operators=KERNELS if layer.probe == "kernels" and not fault.files else (),
        )

    def judge(self, fault: Fault, seed: int, all_layers: bool = False) -> Record:
        """The fault through its layers; a survivor is then compared with the engine as it is."""
        answers: list[Answer] = []
        compared, right, broken = None, False, False
        with self.planted(fault) as root:
            for layer in adequate(fault):
                answer = ask(layer, self.question(fault, root, layer, seed), self.context)
                answers.append(answer)
                broken = broken or answer.status == Status.INVALID.value
                if answer.refuted and not right and len([a for a in answers if a.refuted]) == 1:
                    right = localised(fault, answer)
                if answer.refuted and not all_layers:
                    break
            killed = any(answer.refuted for answer in answers)
            if fault.files and not killed and not broken and fault.operators:
                compared = compare(self.pool, self.clean, root, fault, self.model, seed)
        self._drop_evidence(answers, keep=not killed or not right)
        left = "survived" if fault.files else "sound"
        if compared is not None and (not compared.differing or compared.regrouped):
            left = "regrouped" if compared.differing else "equivalent"
        outcome = "killed" if killed else "broken" if broken else left
        return Record(
            key=self.key(fault, seed), name=fault.name, kind=fault.kind, source=fault.source, path=fault.path,
            line=fault.line, change=fault.change, layer=fault.layer, operators=fault.operators, steps=fault.steps,
            outcome=outcome, answers=tuple(answers), localised=right, compared=compared,
        )  # fmt: skip

    def _drop_evidence(self, answers: Sequence[Answer], keep: bool) -> None:
        """What was found and placed as it should be need not fill the disk."""
        for answer in answers:
            if answer.evidence and not keep:
                shutil.rmtree(self.context.evidence.path(answer.evidence), ignore_errors=True)


def _judges() -> dict[str, str]:
    """The texts of the layers' own folders, and of this experiment's probe."""
    here = Path(__file__).parent
    folders = [here.parents[1] / "feedback" / layer.probe for layer in LAYERS]
    files = [here / "schedules.py", here / "scenarios.py", *(p for folder in folders for p in folder.glob("*.py"))]
    return {str(path.relative_to(here.parents[1])): path.read_text(encoding="utf-8") for path in files}


def copied(root: Path, folder: Path) -> Path:
    """A copy of the engine's package, to plant faults in copies of."""
    top = ADAPTER.split(".")[0]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / top, folder / top, ignore=shutil.ignore_patterns("__pycache__", "build"))
    return folder


def run(
    bench: Bench, faults: Sequence[Fault], seed: int, known: Mapping[str, Record], say: Callable[[str], None],
    all_layers: bool = False,
) -> list[Record]:  # fmt: skip
    """Every fault's record, those that are known already as they are."""
    found = []
    for number, fault in enumerate(faults, start=1):
        record = known.get(bench.key(fault, seed))
        if record is None or record.outcome == "broken":
            record = bench.judge(fault, seed, all_layers)
            append(bench.folder, record)
            refuting = record.refuting
            by = f" by {refuting.layer}: {refuting.line[:110]}" if refuting else ""
            placed = "" if refuting is None or record.localised else " (another place)"
            say(f"{number} of {len(faults)} {fault.name}: {record.outcome}{by}{placed}, {record.seconds:.1f} s")
        found.append(record)
    return found


def nothing(seed: int) -> Fault:
    """No fault at all, for false alarms."""
    return Fault(f"clean {seed}", "none", "none", {}, (), (), "", "", 0, "")


@contextmanager
def opened(folder: Path, root: Path, model: str) -> Generator[Bench]:
    """A bench in a folder, with warm workers."""
    clean = copied(root, folder / "clean")
    with WorkerPool(ADAPTER, Limits(call_seconds=CALL_SECONDS)) as pool:
        pool.warm_up()
        yield Bench(folder, clean, pool, model)
