"""Rotary position embedding (Su et al., 2021), in the half-split form."""
