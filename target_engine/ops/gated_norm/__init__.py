"""Root-mean-square normalisation of each head, gated by a sigmoid (Kimi Team, 2025)."""
