"""A kernel worker as the parent talks to it: ask whether it can be believed, run, compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedback.kernels.trial import Answer, Run
from feedback.target import Unsupported
from feedback.workers.failures import WorkerFailure
from feedback.workers.handle import Worker

#: One interpreted call; a few programs with big blocks take a second.
CALL_SECONDS = 300.0

#: One compilation, and what reading its result may take on top.
COMPILE_SECONDS, READ_SECONDS = 60.0, 30.0


def capability(worker: Worker) -> str:
    """Triton's version. Raises `Unsupported` with the reason when the interpreter cannot be believed here."""
    found = worker.call("capability", timeout=CALL_SECONDS)
    if not isinstance(found, Mapping) or found.get("supported") is not True:
        reason = found.get("reason") if isinstance(found, Mapping) else None
        raise Unsupported(str(reason or "the worker does not say whether its interpreter can be believed"))
    return str(found.get("triton"))


def running(call: Callable[[str, list[list[Any]]], Any]) -> Run:
    """`call(mode, exact_at)` of a worker as a `Run`. What the interpreter does not model is `Unsupported`."""

    def run(mode: str, exact_at: Sequence[tuple[str, int]]) -> Answer:
        try:
            answer = call(mode, [list(place) for place in exact_at])
        except WorkerFailure as failure:
            if failure.error_type == "Unfaithful":
                what = failure.line.partition("Unfaithful: ")[2] or failure.line
                raise Unsupported(f"the rounding of {what} is not modelled") from failure
            raise
        try:
            return Answer(dict(answer["outputs"]), dict(answer["seen"]))
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerFailure("protocol", "run", "the answer holds no outputs") from error

    return run


def reports(worker: Worker, devices: Sequence[str]) -> list[dict[str, Any]]:
    """What became of the last call's launches on these devices, as `compile.Report` has it."""
    if not devices:
        return []
    seconds = len(devices) * (COMPILE_SECONDS + READ_SECONDS)
    found = worker.call("compile", list(devices), COMPILE_SECONDS, timeout=max(CALL_SECONDS, 4 * seconds))
    if not isinstance(found, list) or not all(isinstance(item, dict) and _whole(item) for item in found):
        raise WorkerFailure("protocol", "compile", "the answer is no list of reports")
    return found


def _whole(report: Mapping[str, Any]) -> bool:
    texts = ("kernel", "device", "problem")
    numbers = ("registers", "spill_bytes", "shared_bytes", "spilled_registers")
    return (
        all(isinstance(report.get(name), str) for name in texts)
        and all(type(report.get(name)) is int for name in numbers)
        and isinstance(report.get("dots"), dict)
        and isinstance(report.get("excess"), list)
    )
