"""Causal attention of runs of new tokens over the paged cache."""
