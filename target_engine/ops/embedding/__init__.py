"""Token embedding lookup."""
