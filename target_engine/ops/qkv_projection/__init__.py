"""The three parallel projections before attention."""
