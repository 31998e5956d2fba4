"""Remembers: what worked, under which conditions, with what evidence.

A skeleton is a folder (`library/<name>/`): conditions that execute against observed facts, a transformation with holes,
resource constraints, evidence for and against. It names no path of any target.
"""
