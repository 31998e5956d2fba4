"""The smoke layer: does the candidate start under its configuration, and are its first tokens the oracle's?

A few seconds that catch what crashes, hangs, cannot start, or computes something else altogether. It says nothing about
speed, long outputs or accuracy.
"""
