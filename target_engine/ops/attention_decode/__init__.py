"""Attention of one new token per sequence over the paged cache."""
