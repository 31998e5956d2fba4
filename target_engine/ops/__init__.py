"""Operators: one folder each, with its specification, its plain reference and its implementations.

A folder holds `spec.py` (signature, shapes, cases, tolerance, input maker), `reference.py` (float64-capable numpy,
protected), and one file per implementation that defines `Implementation`; the launch configuration
chooses by file name. Nothing is listed centrally. An implementation may not know of requests, schedules or models.
"""
