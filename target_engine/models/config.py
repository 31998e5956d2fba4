"""The architecture of a checkpoint, read from a Hugging Face `config.json`. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from target_engine.errors import EngineError
from target_engine.jsonfile import json_object


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts: `linear` (all by `factor`) or `llama3` (the low ones)."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a model: Llama, or the hybrid of Kimi Delta Attention (KDA) and full attention.

    `layer_types` says what each layer of a hybrid is, "kda" or "full"; it is empty for Llama, whose layers are all
    full. The `linear_` sizes and `conv_width` are those of the KDA layers.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    rope_scaling: RopeScaling | None = None
    model_type: str = "llama"
    layer_types: tuple[str, ...] = ()
    linear_num_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv_width: int = 0

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep a recurrent state; empty for Llama."""
        return tuple(index for index, kind in enumerate(self.layer_types) if kind == "kda")

    def state_layout(self, dtype: str, ranks: int = 1) -> str:
        """What must be equal for a recurrent state to mean the same: the layers, and the axes and types of its tensors.

        `dtype` is the type of the convolutions' inputs; the recurrent part is float32 [heads, key, value]. Heads are
        shared out over `ranks`.
        """
        layers = ",".join(map(str, self.kda_layers))
        heads, key, value = self.linear_num_heads, self.linear_key_dim, self.linear_value_dim
        sizes = f"heads={heads}/{ranks} key={key} value={value} conv={self.conv_width - 1}:{dtype}"
        return f"kda layers={layers} {sizes} order=HKV"

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """From `config.json` in `folder`; raises `EngineError` for another architecture or a missing field."""
        path = folder / "config.json"
        if not path.is_file():
            raise EngineError(f"{folder}: no config.json: not a Hugging Face model folder")
        return cls.from_dict(json_object(path), str(path))

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str) -> ModelConfig:
        """From the values of a `config.json`; `where` names it in errors."""
        kind = values.get("model_type")
        if kind not in ("llama", "kda_hybrid"):
            raise EngineError(
                f"{where}: model_type {kind!r} is not supported; this engine runs 'llama' and 'kda_hybrid'"
            )
        if values.get("hidden_act", "silu") != "silu":
            raise EngineError(f"{where}: hidden_act {values['hidden_act']!r} is not supported; only 'silu'")
        for bias in ("attention_bias", "mlp_bias"):
            if values.get(bias):
                raise EngineError(f"{where}: {bias} is not supported")
        try:
            hidden, heads = int(values["hidden_size"]), int(values["num_attention_heads"])
            kv_heads = int(values.get("num_key_value_heads") or heads)
            rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
            config = cls(
                hidden_size=hidden,
                intermediate_size=int(values["intermediate_size"]),
                num_layers=int(values["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=int(values.get("head_dim") or hidden // heads),
                vocab_size=int(values["vocab_size"]),
                rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
                rope_theta=float(values.get("rope_theta") or rope.get("rope_theta") or 10000.0),
                max_position_embeddings=int(values.get("max_position_embeddings", 2048)),
                tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
                eos_token_ids=_ids(values.get("eos_token_id")),
                rope_scaling=_scaling(rope, where),
                model_type=kind,
                **(_linear(values, where) if kind == "kda_hybrid" else {}),
            )
        except KeyError as error:
            raise EngineError(f"{where}: the field {error.args[0]!r} is missing") from error
        except (TypeError, ValueError) as error:
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"{where}: {error}") from error
        if config.num_heads % config.num_kv_heads:
            raise EngineError(f"{where}: {heads} query heads cannot share {kv_heads} key-value heads evenly")
        return config


def _linear(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a hybrid's KDA layers."""
    kinds = tuple(values["layer_types"])
    layers = int(values["num_hidden_layers"])
    if len(kinds) != layers:
        raise EngineError(f"{where}: layer_types names {len(kinds)} layers, num_hidden_layers is {layers}")
    unknown = next((kind for kind in kinds if kind not in ("kda", "full")), None)
    if unknown is not None:
        raise EngineError(f"{where}: layer_types has {unknown!r}; a layer is 'kda' or 'full'")
    missing = next((kind for kind in ("kda", "full") if kind not in kinds), None)
    if missing is not None:
        raise EngineError(f"{where}: layer_types has no {missing!r} layer: a hybrid has both kinds")
    sizes = {
        name: int(values[name]) for name in ("linear_num_heads", "linear_key_dim", "linear_value_dim", "conv_width")
    }
    for name, size in sizes.items():
        least = 2 if name == "conv_width" else 1
        if size < least:
            raise EngineError(f"{where}: {name} must be at least {least}, not {size}")
    return {"layer_types": kinds, **sizes}


def _ids(value: Any) -> tuple[int, ...]:
    """Token ids of a field that holds none, one or several."""
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)


def _scaling(rope: dict[str, Any], where: str) -> RopeScaling | None:
    """Rope scaling out of `rope_scaling` (or `rope_parameters`)."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise EngineError(f"{where}: rope scaling {kind!r} is not supported; 'linear' and 'llama3' are")
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return RopeScaling(kind, float(rope["factor"]), **{name: rope[name] for name in names if name in rope})


def scale_frequency(frequency: float, scaling: RopeScaling | None) -> float:
    """A rotary frequency (radians a token) under `scaling`."""
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength = 2 * math.pi / frequency
    original = scaling.original_max_position_embeddings
    if wavelength < original / scaling.high_freq_factor:
        return frequency
    if wavelength > original / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency
