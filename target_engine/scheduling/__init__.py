"""Who runs in the next step: requests, their life, and the scheduler that plans steps over the blocks of `memory`.

Free of torch, with an injected clock, and deterministic: the same calls give the same plans. Tensors and sampling
belong to `execution`; what ends a request other than its length is the engine's to say.
"""
