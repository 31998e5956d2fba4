"""Who holds which block of the paged key-value cache: the block pool and the prefix cache on top of it.

Bookkeeping of block numbers alone, free of torch and of time, so that thousands of schedules a second can be fuzzed.
The tensors behind the numbers belong to `execution`; who may run when belongs to `scheduling`.
"""
