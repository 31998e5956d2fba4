"""Decides: goals, proposers, the loop, the ledger, review, the gate, and the command line.

The hot path is short: goal -> loop -> proposer -> workspace -> ladder -> probe -> verdict -> decision -> ledger.
"""

__version__ = "0.1.0"
