"""How much one answer tells, and what to ask next: a tiled matrix product with planted faults, and tools to ask."""
