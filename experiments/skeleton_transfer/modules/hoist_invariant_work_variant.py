"""A leaky integrator over channels: the kernel of every channel is built again, in two steps, inside the loop."""

import math

import torch


class Integrator:
    def __init__(self, rate, horizon):
        self.rate = rate
        self.horizon = horizon

    def integrate(self, channels):
        results = []
        for channel in channels:
            ages = torch.arange(self.horizon, dtype=torch.float32)
            kernel = torch.exp(ages * -self.rate) / math.sqrt(self.horizon)
            windows = channel.unfold(0, self.horizon, 1)
            results.append((windows * kernel.flip(0)).sum(dim=-1))
        return torch.stack(results)
