"""Causal depthwise convolution over a few tokens, with the last inputs kept as state (Mamba, Gu and Dao, 2023)."""
