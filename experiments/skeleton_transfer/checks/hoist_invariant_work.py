"""Integrated channels; the categorical mixture of ESMFold."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    return {"integrated": module.Integrator(0.3, 9).integrate(torch.randn(6, 40))}


def library(module, seed):
    torch.manual_seed(seed)
    mixture = module.EsmCategoricalMixture(torch.randn(3, 5, 20), bins=20)
    first, second = mixture.log_prob(torch.rand(3, 5)), mixture.log_prob(torch.rand(3, 5))
    return {"first": first, "second": second, "mean": mixture.mean()}
