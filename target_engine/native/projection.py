"""The projection kernel as Python calls it: packed weights, and products of few rows with them."""

from __future__ import annotations

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from target_engine.native.build import element_flags, load

SOURCE = Path(__file__).with_name("projection.c")
LANES = 16

MANY_ROWS = 32
"""Above this many rows arithmetic is the limit, and where the processor has matrix tiles (AMX), oneDNN uses them."""


def pack(weight: Tensor) -> Tensor:
    """[M, K] -> [ceil(M/16), ceil(K/pair), 16, pair] padded with zeros; `pair` is 2 for bfloat16 and 1 for float32."""
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    outputs, inputs = weight.shape
    panels, steps = -(-outputs // LANES), -(-inputs // pair)
    padded = weight.new_zeros(panels * LANES, steps * pair)
    padded[:outputs, :inputs] = weight
    return padded.view(panels, LANES, steps, pair).transpose(1, 2).contiguous()


class Projection:
    """x [N, K], rows of unit stride -> x @ weight.T [N, M].

    `packed` holds the weight; `tiled` holds it a second time in oneDNN's layout where AMX exists.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self.dtype = dtype or weight.dtype
        self.packed = pack(weight)
        self.tiled = None
        if weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
            self.tiled = torch.ops.mkldnn._reorder_linear_weight(weight, 4 * MANY_ROWS)
        library = load(SOURCE, *element_flags(weight.dtype))
        self._widened = bool(library.rows_as_float())
        self._padding = self._widened and self.inputs % 2
        self._run = library.project
        self._run.argtypes = [c_long, c_long, c_long, c_void_p, c_long, c_void_p, c_void_p, c_int, c_int]
        self._run.restype = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """x @ weight.T, a new contiguous tensor of `dtype`."""
        rows = x.shape[0]
        if self.tiled is not None and rows > MANY_ROWS:
            return torch.ops.mkldnn._linear_pointwise(x, self.tiled, None, "none", [], "").to(self.dtype)
        if self._widened:
            x = x.float()
        if self._padding:
            x = torch.nn.functional.pad(x, (0, 1))
        elif x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty(rows, self.outputs, dtype=self.dtype)
        self._run(
            rows,
            self.inputs,
            self.outputs,
            x.data_ptr(),
            x.stride(0),
            self.packed.data_ptr(),
            y.data_ptr(),
            self.dtype == torch.float32,
            torch.get_num_threads(),
        )
        return y
