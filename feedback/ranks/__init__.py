"""The ranks layer: the launch configuration as it is, its ranks real processes that talk through real collectives.

Simulated ranks share a process, its memory and its errors; here each has its own. The worker is alone in a network of
its own for that, with a loopback interface and nothing else.
"""
