"""The operator layer: each operator against the trusted reference, on inputs the parent chose a moment ago.

`selection` says which operators, `cases` on which conditions, `calls` runs them in the candidate's worker with memory
that the parent can look into, `checks` compares, `patterns`, `indices` and `conditions` put an error into words. Time
is not judged here.
"""
