"""Evidence folders: whole or recognisably not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.evidence import EvidenceStore, environment
from feedback.verdict import Confidence, Predicate, Status, Verdict


@pytest.fixture
def store(tmp_path: Path) -> EvidenceStore:
    return EvidenceStore(tmp_path / "evidence")


def finished(store: EvidenceStore) -> str:
    folder = store.new("load", "h1: fuse the projections")
    folder.record(seeds={"inputs": 7}, digests={"workload": "ab"}, order=["base", "candidate"])
    folder.write_json("samples", {"seconds": [0.1, np.float64(0.2)], "where": Path("a/b")})
    folder.write_text("stderr", "it said\nthis")
    folder.write_arrays("outputs", {"y": np.arange(6.0).reshape(2, 3), "file": np.array(True)})
    return folder.finish(status="refuted")


def test_everything_needed_to_repeat_is_there(store: EvidenceStore) -> None:
    id = finished(store)
    folder = store.path(id)
    assert id.startswith("load/h1-fuse-the-projections-")
    assert store.ids() == [id]
    assert store.verify(id) == []
    manifest = store.manifest(id)
    assert manifest["argv"] == sys.argv
    assert manifest["seeds"] == {"inputs": 7}
    assert manifest["digests"] == {"workload": "ab"}
    assert manifest["order"] == ["base", "candidate"]
    assert manifest["hypothesis"] == "h1: fuse the projections"
    assert manifest["verdict"] == {"status": "refuted"}
    assert manifest["environment"] == environment()
    assert set(manifest["files"]) == {"samples.json", "stderr.txt", "outputs.npz"}
    assert json.loads((folder / "samples.json").read_text()) == {"seconds": [0.1, 0.2], "where": "a/b"}
    with np.load(folder / "outputs.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["y"], np.arange(6.0).reshape(2, 3))
        assert bool(arrays["file"]) is True


def test_the_environment_names_what_decides_a_time() -> None:
    facts = environment()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 1 << 28
    assert facts["sandbox"] in ("landlock+seccomp", "landlock", "process only")
    json.dumps(facts)


def test_a_verdict_is_kept_with_its_id(store: EvidenceStore) -> None:
    predicate = Predicate(layer="smoke", statement="it starts")
    folder = store.new("smoke", "h2")
    verdict = Verdict(
        hypothesis="h2",
        layer="smoke",
        status=Status.CONFIRMED,
        predicate=predicate.statement,
        predicate_digest=predicate.digest,
        observed="started",
        confidence=Confidence.DIRECT,
        cost_seconds=1.0,
        evidence=folder.id,
    )
    folder.finish(verdict)
    kept = store.manifest(folder.id)["verdict"]
    assert kept["id"] == verdict.id
    assert Verdict.parse(json.dumps(kept)) == verdict


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: (f / "samples.json").write_text("{}"), ["samples.json was changed after the probe"]),
        (lambda f: (f / "stderr.txt").unlink(), ["stderr.txt cannot be read: No such file or directory"]),
        (lambda f: (f / "added.txt").write_text(""), ["added.txt is not in the manifest"]),
    ],
)
def test_damage_is_named(store: EvidenceStore, harm: object, says: list[str]) -> None:
    id = finished(store)
    harm(store.path(id))  # type: ignore[operator]
    assert store.verify(id) == says


def test_a_folder_that_was_cut_off_is_no_evidence(store: EvidenceStore) -> None:
    folder = store.new("smoke", "h1")
    folder.write_text("log", "...")
    (problem,) = store.verify(folder.id)
    assert "was cut off before it was finished" in problem
    (problem,) = store.verify("smoke/nothing")
    assert "does not exist" in problem


def test_a_broken_manifest_is_one_line(store: EvidenceStore) -> None:
    id = finished(store)
    for text in ("{", '{"schema": "other"}'):
        (store.path(id) / "manifest.json").write_text(text)
        with pytest.raises(UserError, match="manifest"):
            store.manifest(id)
        assert len(store.verify(id)) == 1


def test_an_error_is_kept_and_passed_on(store: EvidenceStore) -> None:
    folder = store.new("smoke", "h1")

    def probe() -> None:
        with folder:
            folder.write_text("log", "so far")
            raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        probe()
    assert store.verify(folder.id) == []
    assert store.manifest(folder.id)["verdict"] == {"error": "RuntimeError: broke"}


def test_evidence_is_not_edited(store: EvidenceStore) -> None:
    folder = store.new("smoke", "h1")
    folder.write_text("log", "one")
    with pytest.raises(ValueError, match=r"already has log\.txt"):
        folder.write_text("log", "two")
    with pytest.raises(ValueError, match="already has layer"):
        folder.record(layer="other")
    folder.finish()
    with pytest.raises(ValueError, match="is finished"):
        folder.write_text("more", "x")
    with pytest.raises(ValueError, match="is finished"):
        folder.finish()


@pytest.mark.parametrize("name", ["../escape", "/etc/x", ".hidden", "a/b", "", "x" * 200, "a\nb"])
def test_names_stay_inside(store: EvidenceStore, name: str) -> None:
    folder = store.new("smoke", "h1")
    with pytest.raises(ValueError, match="no plain file name"):
        folder.write_text(name, "x")


def test_objects_are_never_pickled(store: EvidenceStore) -> None:
    folder = store.new("smoke", "h1")
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        folder.write_arrays("bad", {"x": np.array([object()])})
    folder.finish()
    assert store.verify(folder.id) == []


@given(layer=st.text(max_size=80), hypothesis=st.text(max_size=80))
def test_any_hypothesis_has_a_folder(tmp_path_factory: pytest.TempPathFactory, layer: str, hypothesis: str) -> None:
    store = EvidenceStore(tmp_path_factory.mktemp("e"))
    with store.new(layer, hypothesis) as folder:
        pass
    assert store.path(folder.id) == folder.path
    assert folder.path.is_relative_to(store.root)
    assert store.verify(folder.id) == []


@pytest.mark.parametrize("id", ["..", "a/../b", "a", "a/b/c", "/etc/passwd", ""])
def test_ids_stay_inside(store: EvidenceStore, id: str) -> None:
    with pytest.raises(ValueError, match="no evidence id"):
        store.path(id)


def test_two_runs_of_a_probe_have_two_folders(store: EvidenceStore) -> None:
    assert store.new("smoke", "h1").id != store.new("smoke", "h1").id


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot make the evidence folder .*: Not a directory"):
        EvidenceStore(tmp_path / "file").new("smoke", "h1")
