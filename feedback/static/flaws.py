"""What a static check found: one frozen record for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from feedback.verdict import Location


@dataclass(frozen=True, order=True)
class Flaw:
    """One finding in one file.

    `hard` findings refute; the others are named for a person and left to the layers that run the code. `inferred`
    marks those whose meaning is a guess from a pattern (confidence `heuristic`), as opposed to what follows from the
    text alone.
    """

    path: str
    line: int | None
    check: str
    text: str
    hard: bool = True
    inferred: bool = False

    def location(self) -> Location:
        """Where it is; launch parameters are located by name, since a profile's lines are not code."""
        if self.check == "launch":
            return Location(file=self.path or None, parameter=self.text.split(":", 1)[0])
        return Location(file=self.path, line=self.line)
