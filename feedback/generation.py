"""Running requests through a live engine, with the parent's own account of what came out."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.load.collect import Collector, Misreport
from feedback.load.metrics import RequestRecord
from feedback.target import Request
from feedback.workers.handle import SessionHandle

#: Engine steps asked for in one call: few enough that a hang is noticed in a call's time limit, many enough to be
#: cheap.
STEPS_PER_CALL = 16

#: Steps after which late requests come: the others have been prefilled and have begun to decode.
LATE_STEPS = 2


def generate(
    session: SessionHandle,
    requests: Sequence[Request],
    timeout: float | None = None,
    vocabulary: int | None = None,
    late: int = 0,
) -> tuple[RequestRecord, ...]:
    """What the engine delivered, in the order of `requests` (which carry `prompt_token_ids`).

    All are submitted at once, so the engine batches them as it would in service; but for the last `late` ones, which
    come `LATE_STEPS` steps later, so that in some step some decode while others are prefilled. Raises `Misreport` for
    what cannot be true (wrong counts, unknown requests, no progress, with `vocabulary` also ids outside it) and
    whatever the session raises. The records' times count calls, not seconds.
    """
    collector = Collector(requests)
    first = len(requests) - late if len(requests) > late else len(requests)
    session.submit(collector.submitting(requests[:first], at=0.0))
    calls = 0.0
    if first < len(requests):
        collector.take(session.step(LATE_STEPS, timeout=timeout), LATE_STEPS, 0.0, 1.0)
        session.submit(collector.submitting(requests[first:], at=1.0))
        calls = 1.0
    while not collector.done:
        report = session.step(STEPS_PER_CALL, timeout=timeout)
        collector.take(report, STEPS_PER_CALL, calls, calls + 1.0)
        calls += 1.0
    records = collector.records()
    for record in records:
        outside = [token for token in record.token_ids if vocabulary is not None and not 0 <= token < vocabulary]
        if outside:
            raise Misreport(f"delivered token id {outside[0]}, outside the vocabulary of {vocabulary}", record.id)
    return records
