"""The same formula over another axis: across the batch, not across the channels."""

import torch


def level_batch(frames, gain, least):
    precise = frames.float()
    energy = precise.pow(2).mean(0, keepdim=True)
    return gain * (precise * torch.rsqrt(energy + least)).to(frames.dtype)
