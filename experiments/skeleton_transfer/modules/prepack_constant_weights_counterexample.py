"""A weight that drifts with every call: laid out once, it would stay what it was."""

import torch.nn.functional as F


class Drifting:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, signal):
        self.weight.mul_(0.999)
        return F.linear(signal, self.weight)
