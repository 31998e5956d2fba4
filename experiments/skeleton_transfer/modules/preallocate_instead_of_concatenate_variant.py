"""A random walk that looks back at all its places: a while loop, several walkers, a middle axis."""

import torch


def walk(begin, pull, most):
    trail = begin.unsqueeze(1)
    taken = 0
    while taken < most:
        memory = torch.exp(-pull * torch.arange(trail.shape[1], 0, -1, dtype=trail.dtype))
        centre = (trail * memory[None, :, None]).sum(dim=1) / memory.sum()
        place = torch.sin(centre + 0.1 * taken).unsqueeze(1)
        trail = torch.cat((trail, place), dim=1)
        taken += 1
    return trail.mean(dim=1), trail
