"""Errors a person can act on: one line that says what is wrong, where, and what to do."""

from __future__ import annotations


class EngineError(ValueError):
    """Bad input of any kind: a file, a profile, a request. The command line prints it and exits with 2."""

    def __str__(self) -> str:
        # A damaged file may put a line break into what is quoted from it; an error stays one line.
        return " ".join(super().__str__().splitlines())


LONGEST_LINE = 400
"""Letters of what a failing rank says: some errors quote whole tensors."""


class RankFailure(RuntimeError):
    """One of several ranks died, hangs or failed; one line that names it. The command line exits with 1."""

    def __str__(self) -> str:
        line = " ".join(super().__str__().split())
        return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..."
