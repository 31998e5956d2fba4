"""Rows and text of the tables that stand below the main one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedback.information.scores import Score
from infra_agent.experiments import Result, table


def text_of(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """A table as lines, with an empty one before it."""
    return ["", *table(Result(tuple(columns), tuple(rows))).splitlines()]


def score_rows(scores: Sequence[Score]) -> list[tuple[Any, ...]]:
    """Name, found, wrong, calls, seconds, bits of each."""
    return [(s.name, s.found, s.wrong, s.calls, s.seconds, s.bits) for s in scores]
