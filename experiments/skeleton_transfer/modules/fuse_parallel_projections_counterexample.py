"""Two products of what looks like one input, which the first of them is followed by a change of."""

import torch.nn.functional as F


class Refined:
    def __init__(self, coarse, fine):
        self.coarse = coarse
        self.fine = fine

    def __call__(self, signal):
        rough = F.linear(signal, self.coarse)
        signal.sub_(rough.mean(dim=-1, keepdim=True))
        detail = F.linear(signal, self.fine)
        return rough, detail
