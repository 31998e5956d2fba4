"""The gate on commits of which it is known what they are."""
