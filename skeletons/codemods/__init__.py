"""Shared LibCST analysis and editing for code skeletons. Knows Python and torch, and no target.

`source` parses, `classes` tells what an instance holds, `blocks` in which order statements run and what they write,
`purity` what can be computed once, `linear` what a linear application looks like, `edits` changes text and leaves the
rest as it was. Everything that cannot be shown is declined with its reason.
"""
