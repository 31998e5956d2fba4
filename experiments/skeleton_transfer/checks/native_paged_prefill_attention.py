"""Answers to runs of new tokens, of the variant and of transformers' eager paged attention; behind the kernel the plain
form is cut off.
"""

import torch


def _runs(seed, blocks, block, groups, size, heads):
    """Runs of one to fourteen new tokens behind contexts of several pages."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(blocks, block, groups, size, generator=generator) for _ in range(2))
    new = [1, 5, 14, 3]
    lengths = torch.tensor([count + (11 * row + seed) % (2 * block) for row, count in enumerate(new)])
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()])
    tables = torch.stack([torch.randperm(blocks, generator=generator)[:5] for _ in new])
    query = torch.randn(sum(new), heads, size, generator=generator)
    return keys, values, starts.int(), lengths.int(), tables.int(), query


def _alone(implementation, module):
    """The kernel has to do it: whatever would fall back to the plain form fails."""
    if module.TRANSFORMED:

        def refused(*arguments):
            raise AssertionError("the plain form was asked, not the kernel")

        implementation.plain.forward = refused
        type(implementation.plain).__call__ = refused
    return implementation


def variant(module, seed):
    keys, values, starts, lengths, tables, query = _runs(seed, 24, 8, 2, 16, 6)
    reader = _alone(module.LineReader(0.21), module)
    return {"answers": reader.forward(keys, values, starts, lengths, tables, query)}


def library(module, seed):
    keys, values, starts, lengths, tables, query = _runs(seed, 40, 16, 3, 24, 9)
    reader = _alone(module.PagedRuns(9, 3, 24), module)
    return {"attended": reader(query, keys, values, tables, starts, lengths)}
