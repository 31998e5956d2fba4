"""Kimi Delta Attention (Kimi Team, 2025) of runs of new tokens."""
