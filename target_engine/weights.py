"""Loads a checkpoint's tensors, memory-mapped, in the compute type, and checks that each has the right shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.jsonfile import json_object
from target_engine.models.config import ModelConfig, scale_frequency
from target_engine.models.shapes import expected_shapes as expected_shapes

WIDE_NAMES = ("linear_attn.a_log", "linear_attn.dt_bias")
"""Tensors that half precision would spoil: the exponent of a decay over thousands of tokens."""


class Weights:
    """A checkpoint's tensors by Hugging Face name, read when asked for.

    float32 tensors of a float32 checkpoint are views of the mapped file: they cost no copy, and processes share their
    pages.
    """

    def __init__(self, folder: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._shapes = expected_shapes(config)
        self._where: dict[str, Any] = {}
        self._stack = ExitStack()
        try:
            for path in _files(folder):
                file = self._stack.enter_context(safe_open(str(path), framework="pt"))
                self._where |= dict.fromkeys(file.keys(), file)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{folder}: the weights cannot be read, truncated or damaged ({error})") from error
        missing = [name for name in self._shapes if name not in self._where]
        if missing:
            raise EngineError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
        for name, shape in self._shapes.items():
            found = tuple(self._where[name].get_slice(name).get_shape())
            if found != shape:
                raise EngineError(f"{folder}: {name} has the shape {list(found)}, config.json asks for {list(shape)}")
        self.config = config

    def __getitem__(self, name: str) -> Tensor:
        """A tensor in the compute type, or in float32 where half precision would spoil it."""
        half = self.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if half and name.endswith(WIDE_NAMES) else self.dtype
        return self._where[name].get_tensor(name).to(dtype).contiguous()

    def inverse_frequencies(self) -> Tensor:
        """Rotary frequencies [head_dim / 2], after scaling; float32, or float64 where that is the compute type."""
        size, wide = self.config.head_dim, torch.float64 if self.dtype == torch.float64 else torch.float32
        plain = 1.0 / (self.config.rope_theta ** (torch.arange(0, size, 2, dtype=torch.int64).to(wide) / size))
        if self.config.rope_scaling is not None:
            scaled = [scale_frequency(value, self.config.rope_scaling) for value in plain.tolist()]
            plain = torch.tensor(scaled, dtype=wide)
        if "rope_freqs.weight" in self._where:
            plain = plain / self._where["rope_freqs.weight"].get_tensor("rope_freqs.weight").to(wide)
        return plain

    def close(self) -> None:
        """Close the files; tensors already read stay valid."""
        self._where.clear()
        self._stack.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a model folder: one, or those that an index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        yield single
    elif index.is_file():
        try:
            names = set(json_object(index)["weight_map"].values())
        except (KeyError, AttributeError) as error:
            raise EngineError(f"{index}: no weight_map from tensors to files") from error
        yield from (folder / name for name in sorted(names))
    else:
        raise EngineError(f"{folder}: no model.safetensors (or its index): the weights are missing")
