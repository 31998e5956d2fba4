"""Judges: verdicts about a candidate, from static checks to end-to-end load.

Code here runs in the parent, which holds the clock, the expected values and the statistics, and works with numpy
alone. It knows a target only through the protocol in `feedback.target`; the target itself is imported in worker
processes and nowhere else.
"""
