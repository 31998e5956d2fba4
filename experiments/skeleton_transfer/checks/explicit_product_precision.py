"""A scan of matrices, and flash-linear-attention's products of keys, run by Triton's own interpreter on the CPU.

It ignores the precision of products: what is shown is that the kernels are the same but for it.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch


def plain(kernel):
    """The kernel under decorators that would measure on a GPU."""
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        kernel = kernel.fn
    return kernel


def variant(module, seed):
    torch.manual_seed(seed)
    steps, first = torch.randn(5, 16, 16) / 4, torch.randn(16, 32)
    carried, mixed = torch.empty(5, 16, 32), torch.empty(5, 16, 32)
    module.carry[(2,)](steps, first, carried, mixed, 5, SIZE=16, WIDTH=32, BLOCK=16)
    return {"carried": carried, "mixed": mixed}


def library(module, seed):
    torch.manual_seed(seed)
    keys, strengths = torch.randn(1, 40, 2, 32), torch.rand(1, 40, 2)
    products = torch.zeros(1, 40, 2, 16)
    plain(module.chunk_scaled_dot_kkt_fwd_kernel)[(3, 2)](
        keys, None, strengths, products, None, None, 40, H=2, HV=2, K=32, BT=16, BK=16, IS_VARLEN=False, USE_G=False
    )
    return {"products": products}
