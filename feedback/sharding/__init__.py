"""The sharding layer: every operator of a launch configuration, cut over ranks, against the same operator on one rank.

What is cut comes from the target's operator plan. The trusted side cuts the inputs and computes what each rank must
give; the candidate's worker runs the engine's own combining code over simulated ranks. `cuts` says what is checked,
`conditions` on which inputs, `trial` asks, `compare` judges one answer, `localise`, `precision`, `growth` and `sweep`
say where, why and how fast, `finding` puts it into words. Everything but `trial`, `subject`, `sweep` and `probe` is
pure.
"""
