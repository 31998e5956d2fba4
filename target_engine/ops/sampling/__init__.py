"""Draws a token from each row of logits."""
