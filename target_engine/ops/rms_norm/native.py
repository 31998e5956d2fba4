"""RMS normalisation in C: one pass for the mean, one for the result, while the row is in the cache."""

from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from target_engine.native.build import element_flags, load
from target_engine.native.build import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

SOURCE = Path(__file__).with_name("rms_norm.c")


class Implementation:
    """weight [K]; x [N, K] -> y [N, K]. The mean and the products are in float32 whatever the compute type."""

    def __init__(self, settings: OperatorSettings, weight: Tensor) -> None:
        self.weight = weight.contiguous()
        self.eps = settings.eps
        self._run = load(SOURCE, *element_flags(weight.dtype)).rms_norm
        self._run.argtypes = [c_long, c_long, c_void_p, c_long, c_void_p, c_float, c_void_p, c_int]
        self._run.restype = None

    def __call__(self, x: Tensor) -> Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty(rows, columns, dtype=x.dtype)
        self._run(
            rows,
            columns,
            x.data_ptr(),
            x.stride(0),
            self.weight.data_ptr(),
            self.eps,
            y.data_ptr(),
            torch.get_num_threads(),
        )
        return y
