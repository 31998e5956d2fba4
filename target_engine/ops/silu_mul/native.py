"""The gated activation in C: one pass over both inputs."""

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from target_engine.native.build import element_flags, load
from target_engine.native.build import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

SOURCE = Path(__file__).with_name("silu_mul.c")


class Implementation:
    """gate and up [N, M], rows of any stride -> y [N, M]."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._run = load(SOURCE, *element_flags(getattr(torch, settings.dtype))).silu_mul
        self._run.argtypes = [c_long, c_long, c_void_p, c_long, c_void_p, c_long, c_void_p, c_int]
        self._run.restype = None

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if gate.stride(1) != 1 or up.stride(1) != 1:
            gate, up = gate.contiguous(), up.contiguous()
        rows, columns = gate.shape
        y = torch.empty(rows, columns, dtype=gate.dtype)
        self._run(
            rows,
            columns,
            gate.data_ptr(),
            gate.stride(0),
            up.data_ptr(),
            up.stride(0),
            y.data_ptr(),
            torch.get_num_threads(),
        )
        return y
