"""Writes a step's keys and values into the paged cache."""
