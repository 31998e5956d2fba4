"""Decay and write strength of every token of Kimi Delta Attention (Kimi Team, 2025)."""
