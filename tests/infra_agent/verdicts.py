"""Verdicts for tests."""

from __future__ import annotations

from typing import Any

from feedback.verdict import Confidence, Location, Status, Verdict


def verdict(layer: str, status: Status = Status.CONFIRMED, observed: str = "seen", **more: Any) -> Verdict:
    """A verdict of any layer; timing layers need `effect` or metrics to be confirmed."""
    fields: dict[str, Any] = {
        "hypothesis": "m01",
        "layer": layer,
        "status": status,
        "predicate": "holds",
        "predicate_digest": "0" * 16,
        "observed": observed,
        "confidence": Confidence.DIRECT,
        "cost_seconds": 1.0,
        "gaps": ("why",) if status is Status.UNSUPPORTED else (),
    }
    return Verdict.model_validate({**fields, **more})


def load(effect: float, half: float = 0.01, status: Status | None = None, margin: float = 1.02, **more: Any) -> Verdict:
    """A load verdict whose interval is effect -+ half; the status follows from the margin unless given."""
    low, high = effect - half, effect + half
    follows = Status.CONFIRMED if low >= margin else Status.REFUTED if high < margin else Status.INCONCLUSIVE
    timing: dict[str, Any] = {
        "effect": effect,
        "interval": (low, high),
        "margin": margin,
        "minimal_detectable_effect": 0.02,
        "noise_floor": 0.01,
        "n": 1,
        "confidence": Confidence.STATISTICAL,
        "cost_seconds": 30.0,
    }
    return verdict("load", status or follows, f"{effect:.3f}x", **{**timing, **more})


__all__ = ["Location", "Status", "load", "verdict"]
