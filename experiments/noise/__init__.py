"""What the interleaved method can resolve, and what whole-run pairs can, on the same instances."""
