"""Hybrid models whose weights are made from a seed on first use: the same bytes on any machine, checked by digest.

There is no trained KDA checkpoint small enough to ship, and an engine needs none to be judged: what matters is that
every layer has an effect, that decays are both weak and strong, and that greedy decoding is rarely a near tie. Numbers
come from a counter-based generator's raw bits, one stream for each tensor: matrices by exactly rounded arithmetic, the
few decays through float64 logarithms that are rounded to float32. Torch-free.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from target_engine.cache import cache_dir, make_folder, sha256_of
from target_engine.errors import EngineError
from target_engine.models.config import ModelConfig
from target_engine.models.shapes import expected_shapes

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "the of and to in is that for it as was with be by on not he this are or his from at which but have an had "
    "they you were their one all we can her has there been if more when will would who so no said what up its "
    "about into than them out do my some could time these two may then other new only like now over such our man "
    "me even most made after also did many before must through back years where much your way well down should "
    "because each just those people how too little state good very make world still own see men work long get "
    "here between both life being under never day same another know while last might us great old year off come "
    "since against go came right used take three"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class SeededModel:
    """A hybrid of this architecture, its weights drawn from `seed`; `sha256` is that of its `model.safetensors`."""

    name: str
    seed: int
    sha256: str
    hidden: int
    intermediate: int
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    linear_heads: int
    key_dim: int
    value_dim: int
    vocabulary: int
    tied: bool = True

    @property
    def path(self) -> Path:
        """Where the made folder lies in the user's cache."""
        return cache_dir() / "seeded" / f"{self.name}-{self.sha256[:16]}"

    def config(self) -> dict[str, Any]:
        """The values of its `config.json`."""
        return {
            "architectures": ["KdaHybridForCausalLM"],
            "model_type": "kda_hybrid",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": len(self.layer_types),
            "layer_types": list(self.layer_types),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "linear_num_heads": self.linear_heads,
            "linear_key_dim": self.key_dim,
            "linear_value_dim": self.value_dim,
            "conv_width": 4,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 16384,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        }


PATTERN = ("kda", "kda", "kda", "full")

SEEDED_MODELS = {
    model.name: model
    for model in (
        SeededModel(
            "kda-hybrid-tiny", 1, "480ffb0c06fbf90b8bd567e146612e617215f41755551bcdb9743fa5e782d8f2",
            hidden=64, intermediate=128, layer_types=PATTERN,
            heads=4, kv_heads=2, head_dim=16, linear_heads=4, key_dim=16, value_dim=16, vocabulary=512,
        ),
        SeededModel(
            "kda-hybrid-small", 2, "9bb322bbe1f5ad5c96ab110cf7bd89cc4b131cb85741b4f2d7512061edd8262b",
            hidden=256, intermediate=640, layer_types=PATTERN * 2,
            heads=8, kv_heads=2, head_dim=32, linear_heads=4, key_dim=64, value_dim=64, vocabulary=1024, tied=False,
        ),
        SeededModel(
            "kda-hybrid-base", 3, "4ac5f8d6185b4f863cf92e35f3c3edff09ca1c724fdd5aecbad09f07d6ebdc45",
            hidden=512, intermediate=1408, layer_types=PATTERN * 3,
            heads=8, kv_heads=4, head_dim=64, linear_heads=4, key_dim=128, value_dim=128, vocabulary=8192,
        ),
    )
}  # fmt: skip


def made(model: SeededModel) -> Path:
    """The model's folder, made now unless it is there and whole."""
    folder = model.path
    if _whole(folder, model.sha256):
        return folder
    make_folder(folder.parent)
    scratch = folder.parent / f".making-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        scratch.mkdir()
        write(scratch, model.config(), model.seed)
        digest = sha256_of(scratch / "model.safetensors")
        if digest != model.sha256:
            raise EngineError(
                f"the weights of {model.name} made on this machine have SHA-256 {digest}, not {model.sha256}: "
                "its arithmetic differs, results could not be compared; give a model folder instead"
            )
        if folder.exists():  # damaged
            os.replace(folder, scratch.with_suffix(".old"))
        os.replace(scratch, folder)
    except OSError as error:
        if not _whole(folder, model.sha256):  # another process may have made the same model first
            raise EngineError(f"cannot make {model.name} in {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(scratch.with_suffix(".old"), ignore_errors=True)
    return folder


def _whole(folder: Path, sha256: str) -> bool:
    """Whether the folder holds all files and the right weights; read through once in a process unless they change."""
    if not all((folder / name).is_file() for name in ("config.json", "tokenizer.json", "model.safetensors")):
        return False
    state = (folder / "model.safetensors").stat()
    return _digest(folder / "model.safetensors", state.st_size, state.st_mtime_ns) == sha256


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    return sha256_of(path)


def write(folder: Path, config: dict[str, Any], seed: int) -> None:
    """Write `config.json`, seeded float32 weights and a tokenizer into an existing folder."""
    from target_engine.gguf_import import write_safetensors

    model = ModelConfig.from_dict(config, str(folder))
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(model.vocab_size)), encoding="utf-8")
    special = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}, indent=1), encoding="utf-8"
    )
    write_safetensors(folder / "model.safetensors", _tensors(model, seed))


def _tensors(model: ModelConfig, seed: int) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    for name, shape in expected_shapes(model).items():
        yield name, shape, lambda name=name, shape=shape: values(name, shape, seed)


def values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A tensor's float32 values, by name and seed alone.

    Matrices keep unit variance (times a gain that makes every layer count), norms are about 1, and decays are as Kimi
    Linear starts them: exp(a_log) in [1, 16], softplus(dt_bias) log-uniform in [0.001, 0.1], so that a head forgets
    over tens to thousands of tokens.
    """
    u = uniform(name, shape, seed)
    if name.endswith("a_log"):
        return np.log(1.0 + 15.0 * u).astype(np.float32)
    if name.endswith("dt_bias"):
        rate = np.exp(np.log(1e-3) + u * np.log(100.0))
        return (rate + np.log(-np.expm1(-rate))).astype(np.float32)  # the inverse of softplus
    centred = (2.0 * u - 1.0).astype(np.float32)
    if len(shape) == 1:
        return np.float32(1.0) + np.float32(0.1) * centred
    gain = next((gain for part, gain in GAINS.items() if part in name), 2.0)
    return centred * np.float32(gain * math.sqrt(3.0 / shape[-1]))


GAINS = {
    "embed_tokens": 1.5,
    "lm_head": 1.5,
    "_conv": 1.5,
    "decay_": 0.7,  # two products in a row: the decay stays near its bias
    "beta_": 1.5,
}
"""Standard deviation of a matrix's products with unit-variance vectors, by a part of its name; 2 for the rest."""


def uniform(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float64 numbers in (0, 1), multiples of 2^-25, from the Philox stream of (seed, name)."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    count = int(np.prod(shape))
    raw = np.random.Philox(key=key).random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    return (((raw >> 8).astype(np.float64) + 0.5) * 2.0**-24).reshape(shape)


def tokenizer(vocabulary: int) -> dict[str, Any]:
    """A `tokenizer.json`: byte-level BPE whose merges spell common words, three special tokens first. It encodes any
    text; a larger vocabulary has ids that no text spells.
    """
    tokens = [*SPECIAL, *byte_alphabet()]
    known, merges = set(tokens), []
    for word in ("Ġ" + text for text in WORDS.split()):
        for end in range(2, len(word) + 1):
            left, right = word[: end - 1], word[end - 1]
            if len(tokens) < vocabulary and left in known and left + right not in known:
                tokens.append(left + right)
                known.add(left + right)
                merges.append([left, right])
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **special} for number, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, sorted: a byte that has no glyph of its own is moved past 255."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (chr(0x100 + number) for number in range(256 - len(own)))
    return sorted([*map(chr, own), *moved])
