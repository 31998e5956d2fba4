"""Code skeletons on modules they never saw.

`modules/` holds variants and counterexamples as sources to be transformed, `checks/` what is run to compare a module
before and after; `program.py` runs the checks in a process of its own. Nothing here names a path of a target.
"""
