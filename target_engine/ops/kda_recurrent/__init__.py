"""Kimi Delta Attention (Kimi Team, 2025) of one new token per sequence."""
