"""Is an operator faster, on which input conditions, and by how much: base and candidate as live workers.

The parent writes fresh inputs for every unit, poisons the outputs, keeps the clock, and verifies the outputs of the
calls that it timed. What is faster here is a hypothesis about the service until `load` confirms it.
"""
