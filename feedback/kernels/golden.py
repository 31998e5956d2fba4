"""What golden micro-kernels did on real hardware, kept for this machine: it decides how far a verdict is believed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedback.kernels.golden_cases import CASES
from feedback.verdict import Confidence
from feedback.workers.scratch import CACHE_NAME, user_cache

#: Said with every verdict until it is not so.
NOT_RECORDED = "golden micro-kernels were never recorded on hardware (make gpu-check)"


@dataclass(frozen=True)
class Record:
    """One recording: the device, Triton's version, and the modes that each micro-kernel agreed with."""

    device: str
    triton: str
    agrees: dict[str, tuple[str, ...]]

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Micro-kernels whose bits no mode gives: there the model is wrong for this device."""
        return tuple(case.name for case in CASES if not self.agrees.get(case.name))

    def line(self) -> str:
        """`NVIDIA H200, Triton 3.9.0: 8 of 8 micro-kernels as modelled, tf32 operands by truncation`."""
        known = len(CASES) - len(self.unexplained)
        operands = " or ".join(self.agrees.get("tf32", ())) or "as no mode has it"
        count = f"{known} of {len(CASES)} micro-kernels as modelled"
        return f"{self.device}, Triton {self.triton}: {count}, tf32 by {operands}"


def path() -> Path:
    """Where the recordings of this machine lie, one for each version of Triton."""
    return user_cache() / CACHE_NAME / "golden" / "kernels.json"


def keep(record: Record) -> None:
    """Write it, in place of an earlier one of the same version."""
    known = _read()
    known[record.triton] = {"device": record.device, "agrees": {k: list(v) for k, v in record.agrees.items()}}
    place = path()
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(known, indent=1, sort_keys=True))
    partial.replace(place)


def recorded(triton: str) -> Record | None:
    """The recording made with this version of Triton, if there is one."""
    found = _read().get(triton)
    try:
        return None if found is None else parsed({**found, "triton": triton})
    except (KeyError, TypeError, AttributeError):
        return None  # a damaged file is no recording


def parsed(data: dict[str, Any]) -> Record:
    """From the JSON of `hardware`."""
    agrees = {str(name): tuple(str(mode) for mode in modes) for name, modes in data["agrees"].items()}
    return Record(str(data["device"]), str(data["triton"]), agrees)


def confidence(triton: str) -> tuple[Confidence, tuple[str, ...]]:
    """How far a verdict made with this version is believed, and the gaps that go with it."""
    record = recorded(triton)
    if record is None:
        return Confidence.HEURISTIC, (NOT_RECORDED,)
    if record.unexplained:
        names = ", ".join(record.unexplained)
        return Confidence.HEURISTIC, (f"on {record.device} the bits of {names} were not those of the model",)
    return Confidence.DIRECT, ()


def _read() -> dict[str, Any]:
    try:
        known = json.loads(path().read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
