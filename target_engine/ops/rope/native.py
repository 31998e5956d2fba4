"""Rotary embedding in C: one pass over queries and keys, no halves copied."""

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from target_engine.native.build import element_flags, load
from target_engine.native.build import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

SOURCE = Path(__file__).with_name("rope.c")


class Implementation:
    """q [N, H, D], k [N, G, D], rows of any stride, cos and sin [N, D] -> rotated q and k, new tensors."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._run = load(SOURCE, *element_flags(getattr(torch, settings.dtype))).rope
        pointer, strided = [c_void_p], [c_void_p, c_long]
        self._run.argtypes = [c_long] * 4 + strided * 2 + pointer * 4 + [c_int]
        self._run.restype = None

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        rows, heads, size = q.shape
        kv_heads = k.shape[1]
        inner = (size, 1)
        if q.stride()[1:] != inner or k.stride()[1:] != inner:
            q, k = q.contiguous(), k.contiguous()
        cos, sin = cos.contiguous(), sin.contiguous()
        q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
        self._run(
            rows,
            heads,
            kv_heads,
            size,
            q.data_ptr(),
            q.stride(0),
            k.data_ptr(),
            k.stride(0),
            cos.data_ptr(),
            sin.data_ptr(),
            q_out.data_ptr(),
            k_out.data_ptr(),
            torch.get_num_threads(),
        )
        return q_out, k_out
