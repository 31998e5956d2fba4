"""Waiting until nothing else uses the machine: a measurement that would be thrown away is not begun."""

from __future__ import annotations

import time

from feedback.load.disturbance import CpuMeter
from feedback.units import DISTURBED_SHARE

#: A look is so long; the machine is quiet when others took less than a unit may lose.
LOOK_SECONDS = 0.5


def wait_for_quiet(seconds: float) -> bool:
    """Wait until other processes leave the CPUs alone for one look, at most `seconds`. Returns whether they did."""
    meter = CpuMeter(())
    deadline = time.monotonic() + seconds
    while True:
        before = meter.read()
        time.sleep(LOOK_SECONDS)
        if meter.other_share(before, meter.read()) <= DISTURBED_SHARE:
            return True
        if time.monotonic() >= deadline:
            return False
