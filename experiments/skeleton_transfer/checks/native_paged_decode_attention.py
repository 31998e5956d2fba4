"""Answers of the variant and of transformers' eager paged attention; behind the kernel the plain form is cut off."""

import torch


def _pages(seed, batch, blocks, block, groups, size):
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(blocks, block, groups, size, generator=generator) for _ in range(2))
    lengths = torch.tensor([1 + (37 * row + seed) % (4 * block) for row in range(batch)], dtype=torch.int32)
    tables = torch.stack([torch.randperm(blocks, generator=generator)[:4] for _ in range(batch)]).to(torch.int32)
    return keys, values, lengths, tables, generator


def _alone(implementation, module):
    """The kernel has to do it: whatever would fall back to the plain form fails."""
    if module.TRANSFORMED:

        def refused(*arguments):
            raise AssertionError("the plain form was asked, not the kernel")

        implementation.plain.forward = refused
        type(implementation.plain).__call__ = refused
    return implementation


def variant(module, seed):
    keys, values, lengths, tables, generator = _pages(seed, 5, 24, 8, 2, 16)
    reader = _alone(module.PageReader(0.21), module)
    return {"answers": reader.forward(lengths, tables, torch.randn(5, 6, 16, generator=generator), keys, values)}


def library(module, seed):
    keys, values, lengths, tables, generator = _pages(seed, 7, 40, 16, 3, 24)
    reader = _alone(module.PagedReader(9, 3, 24), module)
    return {"attended": reader(torch.randn(7, 9, 24, generator=generator), keys, values, tables, lengths)}
