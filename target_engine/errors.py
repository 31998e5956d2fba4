"""Errors a person can act on: one line that says what is wrong, where, and what to do."""

from __future__ import annotations


class EngineError(ValueError):
    """Bad input of any kind: a file, a profile, a request. The command line prints it and exits with 2."""
