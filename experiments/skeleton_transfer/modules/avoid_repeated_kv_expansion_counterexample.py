"""The repeated keys are handed on, so that whoever gets them needs them repeated."""

import torch


def attend(questions, labels, readers, cache):
    spread = labels.repeat_interleave(readers, dim=1)
    cache.append(spread)
    return torch.matmul(questions, spread.transpose(-1, -2))
