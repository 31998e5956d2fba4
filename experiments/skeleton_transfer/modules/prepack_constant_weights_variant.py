"""A mixing stage: keyword arguments, a bias, and a second weight whose plain values are asked for elsewhere."""

from torch.nn import functional


class MixingStage:
    def __init__(self, kernels, offsets):
        self._mixing = kernels["mixing"] * 0.5
        self.readout = kernels["readout"]
        self._offset = offsets

    def norms(self):
        return self.readout.norm(dim=1)

    def advance(self, signal, rounds):
        for _ in range(rounds):
            signal = functional.linear(input=signal, weight=self._mixing, bias=self._offset).sin()
        return functional.linear(signal, self.readout)
