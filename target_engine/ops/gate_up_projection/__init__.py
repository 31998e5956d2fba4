"""The two parallel projections of the gated MLP."""
