"""A projection without bias: attention output and MLP down."""
