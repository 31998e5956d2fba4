"""Projection to float32 logits over the vocabulary."""
