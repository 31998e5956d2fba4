"""For tests that read a clock: a machine on which others work gives no times, and that is no failure of the code."""

from __future__ import annotations

import pytest

#: How the judging side says that it could not time anything (`feedback.load.ab.too_disturbed`).
DISTURBED = "the machine is not quiet enough to time anything"


def skip_when_disturbed(told: str) -> None:
    """Skip when what was told says that other processes kept the clock from meaning anything."""
    if DISTURBED in told:
        pytest.skip(DISTURBED)
