"""What every probe does around its question: protected files, failures of either side, evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.guard import ABSENT, file_digest, protected_digests, tampering
from feedback.judging import Bench, Finding, judge
from feedback.oracle import Memory
from feedback.probe import discover
from feedback.target import FileEntry, Role, Unsupported
from feedback.verdict import Confidence, Predicate, Status, Verdict
from tests.feedback.bed import Bed, bed, write_workload
from tests.feedback.planted import OPS, appends

__all__ = ["bed"]

PREDICATE = Predicate(layer="static", statement="all is well")
FINE = Finding(Status.CONFIRMED, "all is well", metrics={"seen": 1.0, "unknown": float("nan")})


@pytest.fixture(scope="module")
def workload(bed: Bed) -> Path:
    return write_workload(bed.folder / "small.jsonl", 3, 4)


def asked(bed: Bed, workload: Path, name: str, examine, plant=None) -> Verdict:
    return judge(PREDICATE, bed.question(bed.tree(name, plant), workload), bed.context(), examine)


def test_a_finding_becomes_a_verdict_with_its_evidence(bed, workload):
    verdict = asked(bed, workload, "same", lambda bench: FINE)
    assert (verdict.status, verdict.observed, verdict.metrics) == (Status.CONFIRMED, "all is well", {"seen": 1.0})
    assert verdict.predicate_digest == PREDICATE.digest
    assert bed.evidence(verdict.evidence, "predicate.json")["statement"] == "all is well"
    assert bed.evidence(verdict.evidence, "question.json")["seed"] == 7
    assert bed.context().evidence.verify(verdict.evidence or "") == []


def test_a_protected_file_that_differs_refutes_before_anything_runs(bed, workload):
    def never(bench: Bench) -> Finding:
        raise AssertionError("ran")

    verdict = asked(bed, workload, "edited", never, appends(f"{OPS}/linear/spec.py", "\n# looser\n"))
    assert (verdict.status, verdict.confidence) == (Status.REFUTED, Confidence.PROOF)
    assert "linear/spec.py differs from the trusted one (before the probe)" in verdict.observed


def test_a_protected_file_that_is_changed_meanwhile_refutes_whatever_was_found(bed, workload):
    def examine(bench: Bench) -> Finding:
        appends(f"{OPS}/linear/spec.py", "\n# looser\n")(bench.question.candidate.root)
        return FINE

    verdict = asked(bed, workload, "edits-itself", examine)
    assert verdict.status is Status.REFUTED
    assert "(after the probe)" in verdict.observed


def test_a_trusted_tree_that_changes_meanwhile_makes_it_invalid(bed, workload):
    place = f"{OPS}/linear/spec.py"
    text = (bed.tree("trusted").root / place).read_text()

    def examine(bench: Bench) -> Finding:
        appends(place, "\n# looser\n")(bench.question.trusted.root)
        return FINE

    try:
        verdict = asked(bed, workload, "honest", examine)
    finally:
        (bed.tree("trusted").root / place).write_text(text)
    assert verdict.status is Status.INVALID
    assert "trusted tree changed" in verdict.observed


def test_a_candidate_that_fails_is_refuted_with_the_place(bed, workload):
    plant = appends("target_engine/adapter_helper.py", "")
    verdict = asked(bed, workload, "fails", lambda bench: bench.candidate.call("no_such_method"), plant)
    assert verdict.status is Status.REFUTED
    assert "no_such_method" in verdict.observed


def test_a_trusted_side_that_fails_is_invalid_never_confirmed(bed, workload):
    verdict = asked(bed, workload, "fine", lambda bench: Finding(Status.CONFIRMED, str(bench.oracle.logits([], [1]))))
    assert verdict.status is Status.INVALID
    assert verdict.observed.startswith("the trusted target failed: error in score")


def test_what_the_target_cannot_do_is_unsupported(bed, workload):
    def examine(bench: Bench) -> Finding:
        raise Unsupported("it has no operators")

    verdict = asked(bed, workload, "plain", examine)
    assert (verdict.status, verdict.gaps) == (Status.UNSUPPORTED, ("it has no operators",))


def test_what_the_candidate_printed_is_kept(bed, workload):
    plant = appends(f"{OPS}/registry.py", "\nprint('hello from the candidate')\n")
    verdict = asked(bed, workload, "prints", lambda bench: bench.candidate.call("describe") and FINE, plant)
    folder = bed.folder / "evidence" / (verdict.evidence or "")
    assert "hello from the candidate" in (folder / "candidate-stdout.txt").read_text()


def test_digests_see_missing_files_and_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("x")
    (tmp_path / "linked").symlink_to("real")
    entries = [FileEntry(path=p, role=Role.PROTECTED) for p in ("real/a", "linked/a", "real/b")]
    entries.append(FileEntry(path="real/c", role=Role.EDITABLE))
    digests = protected_digests(tmp_path, entries)
    assert set(digests) == {"real/a", "linked/a", "real/b"}
    assert (digests["linked/a"], digests["real/b"]) == ("link:real", ABSENT)
    assert file_digest(tmp_path, "real") == ABSENT
    trusted = dict.fromkeys(digests, digests["real/a"])
    assert [(t.path, t.what) for t in tampering(trusted, digests, "before")] == [
        ("linked/a", "is a link to real"),
        ("real/b", "is missing"),
    ]


def test_memory_forgets_the_least_recently_used():
    import numpy as np

    memory, made = Memory(limit=3000), []

    def value(name: str) -> np.ndarray:
        return memory.get(name, lambda: made.append(name) or np.zeros(125))  # 1,000 bytes

    for name in ("a", "b", "c", "a", "d", "a", "b"):
        value(name)
    assert made == ["a", "b", "c", "d", "b"]


def test_probes_are_found_by_their_folders():
    found = discover()
    assert {"static", "smoke", "operators", "accuracy"} <= found.keys()
    assert all(found[name].layer == name and found[name].cost_prior > 0 for name in found)
