"""The processes that candidate code runs in, and the parent's handles on them.

Parent side: `pool` (one warm parent, many workers) and `handle` (a worker and its sessions); below them `watched`,
`timed`, `zygote_process`, `scratch`, `failures`, `limits`, `output`, `procfs`. Worker side, run by path and never
imported by the parent: `zygote` (imports torch, forks), `worker` (serves calls), `tree` (imports the target), `report`.
Both sides: `wire`, `frames`, `memory`, `batch`.

Worker-side files import the standard library, numpy and each other alone: they load under a private package name, so
that a target can neither shadow nor find its judge. Hence nothing is imported here.
"""
