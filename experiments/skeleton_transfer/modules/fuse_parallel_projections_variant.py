"""Three read-outs of one state of a controller: weights unpacked from a sequence, products written with transposes."""

import torch


def squash(values, bound):
    return torch.clamp(values, -bound, bound)


class Readout:
    def __init__(self, heads, bound):
        self.policy, self.worth, self.novelty = heads
        self.bound = bound

    def step(self, observed, noise):
        state = torch.tanh(observed + noise)
        choice = squash(state @ self.policy.transpose(0, 1), self.bound)
        value = torch.matmul(state, self.worth.T).sum(dim=-1)
        energy = state.square().mean()
        surprise = torch.mm(state, self.novelty.t())
        return {"choice": choice, "value": value, "surprise": surprise * energy}
