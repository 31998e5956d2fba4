"""The processes that candidate code runs in, and the parent's handles on them.

Parent side: `pool` (one warm parent, many workers), `handle` (a worker and its sessions), `zygote_process`, `scratch`,
`failures`. Worker side, run by path and never imported by the parent: `zygote` (imports torch, forks), `worker` (serves
calls), `tree` (imports the target), `report`, `batch`. Both sides: `wire` (framing) and `shared` (memory layouts).

Worker-side files import the standard library, numpy and each other alone: they load under a private package name, so
that a target can neither shadow nor find its judge. Hence nothing is imported here.
"""
