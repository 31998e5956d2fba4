"""C behind operators: what compiles it at first use, what its sources share, and the projection kernel that several
operators use.

An operator's own C stands in the operator's folder. Nothing here chooses: the launch configuration names the
implementation, and where it cannot run on this machine the engine says so instead of taking another.
"""
