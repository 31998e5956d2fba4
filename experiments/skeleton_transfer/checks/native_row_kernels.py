"""Levelled frames, and rows that transformers' rotary embedding turned; behind the kernels the plain forms are cut
off.
"""

import torch


def _alone(implementation, module):
    """The kernel has to do it: whatever would fall back to the plain form fails."""
    if module.TRANSFORMED:

        def refused(*arguments):
            raise AssertionError("the plain form was asked, not the kernel")

        implementation.plain.forward = refused
        type(implementation.plain).__call__ = refused
    return implementation


def variant(module, seed):
    torch.manual_seed(seed)
    leveller = _alone(module.Leveller(1e-6, torch.randn(72)), module)
    return {"levelled": leveller.forward(torch.randn(9, 72) * torch.logspace(-3, 3, 9)[:, None])}


def library(module, seed):
    torch.manual_seed(seed)
    rows = _alone(module.RotaryRows(), module)
    angles = torch.arange(11)[:, None] * torch.logspace(0, -3, 8).repeat(2)
    turned = rows(torch.randn(11, 6, 16), torch.randn(11, 2, 16), angles.cos(), angles.sin())
    return {"queries": turned[0], "keys": turned[1]}
