"""Who holds which block of the paged key-value cache and which recurrent state slot: the pools, the prefix cache, and
the snapshots of states that prefixes are resumed from.

Bookkeeping of numbers alone, free of torch and of time, so that thousands of schedules a second can be fuzzed.
The tensors behind the numbers belong to `execution`; who may run when belongs to `scheduling`.
"""
