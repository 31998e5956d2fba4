"""What trials and compile reports may be told as: nothing that was not seen is confirmed."""

from __future__ import annotations

from typing import Any

import pytest

from feedback.kernels.conclude import concluded
from feedback.kernels.trial import Outcome, Trial
from feedback.sharding.finding import finding
from feedback.verdict import Confidence, Status

BELIEVED = (Confidence.HEURISTIC, ("no GPU",))


def trial(case: str = "a", ratio: float = 0.5, launches: tuple[str, ...] = ("kernel",)) -> Trial:
    outcomes = tuple(Outcome(mode, ratio, 1e-7, "out") for mode in ("truncation", "rounding"))
    return Trial(case, outcomes, seen={"launches": list(launches), "dots": []})


def report(device: str = "cuda:90", kernel: str = "kernel", problem: str = "", **values: Any) -> dict[str, Any]:
    numbers = {"registers": 32, "spill_bytes": 0, "spilled_registers": 0, "shared_bytes": 0, "dots": {}, "excess": []}
    return {"kernel": kernel, "device": device, "problem": problem, "timed_out": False, **numbers, **values}


def told(trials: list[Trial], reports: list[dict[str, Any]], *promised: str) -> Any:
    return concluded("subject", trials, reports, must_compile=promised, confidence=BELIEVED)


def test_right_numbers_and_a_promise_kept_are_confirmed() -> None:
    assert told([trial()], [report()], "cuda:90").status is Status.CONFIRMED


def test_a_result_without_a_launch_is_no_answer_about_a_kernel() -> None:
    found = told([trial(launches=()), trial("b", launches=())], [])
    assert found.status is Status.UNSUPPORTED
    assert "no kernel was launched" in found.observed
    some = told([trial(), trial("b", launches=())], [report()])
    assert "cases in which no kernel was launched: b" in some.gaps
    assert told([trial(ratio=2.0, launches=())], []).status is Status.REFUTED, "wrong is wrong, however it came about"


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([report("hip:gfx942")], Status.INCONCLUSIVE),
        ([report(timed_out=True, problem="no result after 60 s")], Status.INCONCLUSIVE),
        ([report(problem="no tf32x3")], Status.REFUTED),
        ([report(excess=["needs 300 KiB shared, cuda:90 has 227"])], Status.REFUTED),
    ],
)
def test_a_promised_device_is_compiled_for_or_not_confirmed(reports: list[dict[str, Any]], status: Status) -> None:
    assert told([trial()], reports, "cuda:90").status is status


def test_a_kernel_that_no_device_takes_is_refuted_though_another_kernel_compiles() -> None:
    reports = [
        report(kernel="good"),
        report(kernel="bad", problem="no"),
        report("cuda:80", "bad", excess=["too large"]),
    ]
    assert told([trial()], reports).status is Status.REFUTED
    assert told([trial()], [*reports, report("cuda:100", "bad")]).status is Status.CONFIRMED


def test_a_cut_that_was_not_tried_is_not_confirmed() -> None:
    found = finding([], ["kda_chunk: context not reached in 60 s"], (), 0, {})
    assert found.status is Status.INCONCLUSIVE
    assert "kda_chunk: context not reached in 60 s" in found.gaps
