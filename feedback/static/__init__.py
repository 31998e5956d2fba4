"""The static layer: what the text of a candidate and its launch configuration already say, in less than a second.

Edit scope, syntax, undefined names, imports that resolve to nothing, types of the changed files, validity of the
launch configuration, digests of the protected files, and signs of evaluator tampering. Nothing of the candidate is
imported or run here; what needs the target's own knowledge is asked of a worker of the trusted tree.
"""
