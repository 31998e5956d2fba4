"""Where the time goes: a short profiled run, and the flat facts that diagnoses are made from.

Spans are written by the code that is judged, so their shares explain and never decide: whether something became faster
is for `load` and `microbench`, on the parent's clock.
"""
