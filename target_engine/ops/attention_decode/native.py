"""Paged decode attention in C: keys and values are read where they lie, once for all query heads that share them."""

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from target_engine.errors import EngineError
from target_engine.native.build import element_flags, load
from target_engine.native.build import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

SOURCE = Path(__file__).with_name("attention_decode.c")
LANES = 16


class Implementation:
    """q [B, H, D]; contiguous caches [X, S, G, D]; block_tables int32 [B, T]; context_lens int32 [B] -> out [B, H, D].

    D is a multiple of 16: `EngineError` otherwise.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        if settings.head_dim % LANES:
            raise EngineError(
                f"operators.attention_decode: native needs a head size that is a multiple of {LANES}, "
                f"this model has {settings.head_dim}: choose another implementation"
            )
        self._run = load(SOURCE, *element_flags(getattr(torch, settings.dtype))).attention_decode
        sizes, strided, pointer = [c_long] * 4, [c_void_p, c_long], [c_void_p]
        self._run.argtypes = sizes + strided + pointer + strided + strided + pointer * 2 + [c_int]
        self._run.restype = None

    def __call__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
    ) -> Tensor:
        batch, heads, size = q.shape
        if q.stride()[1:] != (size, 1):
            q = q.contiguous()
        assert k_cache.is_contiguous()
        assert v_cache.is_contiguous()
        block_tables, context_lens = block_tables.contiguous(), context_lens.contiguous()
        out = torch.empty(batch, heads, size, dtype=q.dtype)
        self._run(
            batch,
            heads,
            k_cache.shape[2],
            size,
            q.data_ptr(),
            q.stride(0),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.shape[1],
            block_tables.data_ptr(),
            block_tables.shape[1],
            context_lens.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out
