"""A hybrid model small enough to run on plain references, and what it must compute: token by token, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from target_engine.models.config import ModelConfig
from target_engine.ops.paged import attend
from target_engine.ops.registry import reference
from target_engine.ops.settings import OperatorSettings
from target_engine.seeded import write

Arrays = dict[str, np.ndarray]


def hybrid_dims(**dims: Any) -> dict[str, Any]:
    """`config.json` of the smallest hybrid, with `dims` in place of the defaults; keys and values differ in size."""
    config: dict[str, Any] = {
        "model_type": "kda_hybrid",
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "layer_types": ["kda", "full", "kda"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "linear_num_heads": 2,
        "linear_key_dim": 8,
        "linear_value_dim": 6,
        "conv_width": 4,
        "vocab_size": 300,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    unknown = set(dims) - set(config)
    if unknown:
        raise ValueError(f"unknown dimensions of the hybrid model: {sorted(unknown)}")
    return config | dims


def make_hybrid(folder: Path, seed: int = 0, **dims: Any) -> Path:
    """Write the model into a folder, which is made; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, hybrid_dims(**dims), seed)
    return folder


class PlainHybrid:
    """The model in float64 numpy: the operators' references on one token after another, whole sequences, no paging.

    It shares nothing with the engine but the references and the names of the weights.
    """

    def __init__(self, folder: Path) -> None:
        self.config = ModelConfig.load(folder)
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        config = self.config
        self.settings = OperatorSettings(
            eps=config.rms_norm_eps,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            linear_heads=config.linear_num_heads,
            key_dim=config.linear_key_dim,
            value_dim=config.linear_value_dim,
            conv_width=config.conv_width,
        )

    def run(self, operator: str, **arrays: np.ndarray) -> Arrays:
        return reference(operator)(self.settings, **arrays)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float64 [number of tokens, vocabulary]."""
        memory: list[Any] = [
            self._empty_state() if index in self.config.kda_layers else ([], [])
            for index in range(self.config.num_layers)
        ]
        return np.concatenate([self._token(token, position, memory) for position, token in enumerate(tokens)])

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The most likely continuation; quadratic, for short ones."""
        memory: list[Any] = [
            self._empty_state() if index in self.config.kda_layers else ([], [])
            for index in range(self.config.num_layers)
        ]
        tokens = list(prompt)
        for position in range(len(prompt) + count - 1):
            logits = self._token(tokens[position], position, memory)
            if position >= len(prompt) - 1:
                tokens.append(int(logits[0].argmax()))
        return tokens[len(prompt) :]

    def _empty_state(self) -> Arrays:
        config = self.config
        heads, key, value, tail = (
            config.linear_num_heads,
            config.linear_key_dim,
            config.linear_value_dim,
            config.conv_width - 1,
        )
        return {
            "q": np.zeros((1, heads * key, tail)),
            "k": np.zeros((1, heads * key, tail)),
            "v": np.zeros((1, heads * value, tail)),
            "recurrent": np.zeros((1, heads, key, value)),
        }

    def _token(self, token: int, position: int, memory: list[Any]) -> np.ndarray:
        weights, config = self.weights, self.config
        x = weights["model.embed_tokens.weight"][[token]]
        for index in range(config.num_layers):
            prefix = f"model.layers.{index}."
            normed = self._norm(x, prefix + "input_layernorm.weight")
            mix = self._kda if index in config.kda_layers else self._attention
            x = x + mix(normed, prefix, position, memory[index])
            normed = self._norm(x, prefix + "post_attention_layernorm.weight")
            gate, up = (normed @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + self.run("silu_mul", gate=gate, up=up)["y"] @ weights[prefix + "mlp.down_proj.weight"].T
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        return self._norm(x, "model.norm.weight") @ weights[head].T

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.run("rms_norm", weight=self.weights[name], x=x)["y"]

    def _attention(self, x: np.ndarray, prefix: str, position: int, memory: tuple[list, list]) -> np.ndarray:
        config = self.config
        q, k, v = (x @ self.weights[f"{prefix}self_attn.{name}_proj.weight"].T for name in "qkv")
        size = config.head_dim
        frequencies = 1.0 / (config.rope_theta ** (np.arange(0, size, 2) / size))
        tables = self.run("rotary", inv_freq=frequencies, positions=np.array([position]))
        turned = self.run("rope", q=q.reshape(1, -1, size), k=k.reshape(1, -1, size), **tables)
        keys, values = memory
        keys.append(turned["k_out"])
        values.append(v.reshape(1, -1, size))
        out = attend(turned["q_out"], np.concatenate(keys), np.concatenate(values), position)
        return out.reshape(1, -1) @ self.weights[prefix + "self_attn.o_proj.weight"].T

    def _kda(self, x: np.ndarray, prefix: str, position: int, memory: Arrays) -> np.ndarray:
        config = self.config
        heads, key, value = config.linear_num_heads, config.linear_key_dim, config.linear_value_dim
        slot, starts = np.zeros(1, np.int32), np.array([0, 1], np.int32)

        def weight(name: str) -> np.ndarray:
            return self.weights[f"{prefix}linear_attn.{name}"]

        mixed = {}
        for name, size in (("q", key), ("k", key), ("v", value)):
            found = self.run(
                "short_convolution",
                weight=weight(f"{name}_conv.weight"),
                x=x @ weight(f"{name}_proj.weight").T,
                state=memory[name],
                state_slots=slot,
                query_starts=starts,
            )
            memory[name], mixed[name] = found["state"], found["out"].reshape(1, heads, size)
        raw = x @ weight("decay_down_proj.weight").T @ weight("decay_up_proj.weight").T
        decay = self.run(
            "kda_gate",
            a_log=weight("a_log"),
            dt_bias=weight("dt_bias"),
            raw=raw.reshape(1, heads, key),
            raw_beta=x @ weight("beta_proj.weight").T,
        )
        found = self.run("kda_recurrent", **mixed, **decay, state=memory["recurrent"], state_slots=slot)
        memory["recurrent"] = found["state"]
        gate = x @ weight("gate_down_proj.weight").T @ weight("gate_up_proj.weight").T
        normed = self.run(
            "gated_norm", weight=weight("norm.weight"), x=found["out"], gate=gate.reshape(1, heads, value)
        )
        return normed["out"].reshape(1, -1) @ weight("o_proj.weight").T
