"""The gated activation silu(gate) * up."""
