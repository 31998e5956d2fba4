"""Cache write in C: one call for keys and values, straight from the strided rows of the projection."""

from ctypes import c_long, c_void_p
from pathlib import Path

from torch import Tensor

from target_engine.native.build import load
from target_engine.native.build import unavailable as unavailable
from target_engine.ops.settings import OperatorSettings

SOURCE = Path(__file__).with_name("kv_write.c")


class Implementation:
    """k, v [N, G, D]; slot_mapping int64 [N]; changes the contiguous k_cache and v_cache [X, S, G, D] in place."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._run = load(SOURCE).kv_write
        strided = [c_void_p, c_long]
        self._run.argtypes = [c_long] * 2 + strided * 2 + [c_void_p] * 3
        self._run.restype = None

    def __call__(self, k: Tensor, v: Tensor, slot_mapping: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        rows, kv_heads, size = k.shape
        inner = (size, 1)
        if k.stride()[1:] != inner or v.stride()[1:] != inner:
            k, v = k.contiguous(), v.contiguous()
        width = k.element_size()
        assert k_cache.is_contiguous()
        assert v_cache.is_contiguous()
        self._run(
            rows,
            kv_heads * size * width,
            k.data_ptr(),
            k.stride(0) * width,
            v.data_ptr(),
            v.stride(0) * width,
            slot_mapping.contiguous().data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
        )
