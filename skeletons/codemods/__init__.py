"""Shared LibCST analysis and editing for code skeletons. Knows Python and torch, and no target.

`source` parses; `classes` tells what an instance holds, `blocks` in which order statements run and what they write,
`ssa` which assignment a read sees, `purity` what can be computed once. `linear`, `normalisation`, `repetition`,
`invariants` recognise what skeletons look for. `edits` changes text and leaves the rest as it was; `search` runs a
skeleton over a target's files; `construct` changes what a constructor stores. `implementations` and `paged` fill
templates. What cannot be shown is declined with its reason.
"""
