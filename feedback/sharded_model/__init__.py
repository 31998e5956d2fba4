"""The sharded-model layer: a whole model over simulated ranks against the same model on one.

`probe` compares logits and, for a workload, tokens. `layers` finds the first layer that leaves the unsharded path;
`shrink` makes a minimal reproducer of the requests whose output changed; both are pure and ask through a function.
`pair` holds the two engines.
"""
