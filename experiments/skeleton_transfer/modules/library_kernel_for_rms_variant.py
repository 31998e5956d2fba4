"""Loudness normalisation of frames: a function, the root in the denominator, the gain behind the cast."""

import torch


def mean_energy(frames):
    return float(frames.float().square().mean())


def level_frames(frames, gain, least):
    precise = frames.to(torch.float32)
    energy = torch.mean(precise * precise, dim=-1, keepdim=True)
    loudness = torch.sqrt(least + energy)
    levelled = precise / loudness
    return gain * levelled.to(frames.dtype)
