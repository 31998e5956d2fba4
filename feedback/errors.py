"""Errors that a person can mend: one line that says what was wrong, where, and what to do."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input or a missing thing on the machine. The command line prints the text and exits with 2."""
