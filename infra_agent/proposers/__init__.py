"""Who proposes: each module holds one strategy that turns observations and history into the next hypothesis.

A proposer is pure: the same goal, history, openings and seed give the same proposal, in whatever order a library
lists its skeletons. It starts nothing, reads no clock and no file; the loop carries out what it proposes.
"""
