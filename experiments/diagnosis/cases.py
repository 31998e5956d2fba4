"""The cases: starts with one planted cause each (folders of `experiments/starts/`), and their traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feedback.load.workload import Row, Workload


@dataclass(frozen=True)
class Case:
    """One start. `planted` is the cause by the name that the diagnosis gives it; `workload` one of the target, or
    `prefix_heavy`.
    """

    start: str
    planted: str
    how: str
    workload: str = "main"


#: All are the shipped engine but for one thing.
CASES = (
    Case("few_slots", "too_few_slots", "2 slots for 16 requests"),
    Case("wide_weights", "wide_weights", "float32 weights"),
    Case("plain_weights", "weights_repacked_every_call", "two projections without packed weights"),
    Case("forgotten_prefixes", "prefixes_recomputed", "no prefix reuse on prompts behind one page", "prefix_heavy"),
    Case("one_thread", "threads_do_not_match_cores", "one thread"),
    Case("gathered_cache", "blocks_gathered", "decode attention that gathers blocks"),
)

HEALTHY = Case("production", "healthy", "nothing")

PAGE = """You answer for the service desk of a ferry line between eleven islands. Say first which pier and which
gate a traveller needs, then the time, then what else matters. Tickets are sold at the piers and on board; on
board only cash is taken. Bicycles travel in the bow and pay half, dogs travel free on deck and never in the
saloon. In winds above force seven the small boats stay in harbour and the large one calls at the four main
islands alone; travellers to the others wait or sleep at the hostel by the lighthouse, where the line pays for
the first night. Lost things are kept for thirty days at the main pier, office two, and sent on against the
postage. A boat that is more than an hour late entitles to a refund of half the fare, more than two hours to the
whole, unless fog was announced the evening before. Never promise a place on the car deck: it is given out by
the mate, in the order of arrival, and cars that are wider than two metres have to wait for the large boat. When
a question is not about travelling, say so in one sentence and end there."""

QUESTIONS = (
    "When does the last boat leave for the north island on Sundays?",
    "I left an umbrella on the morning boat. Where is it now?",
    "Can my dog sit with me in the saloon when it rains?",
    "The boat was ninety minutes late. What do I get back?",
    "Is there room for a van that is two metres and ten wide?",
    "How do I pay for a ticket when I board at the last moment?",
    "They say storm tomorrow. Will anything sail to the small islands?",
    "Which gate is it for the boat with the bicycles?",
    "My hotel is full and the boat is gone. Where can I sleep?",
    "Is a refund possible when there was fog?",
    "Which is the best restaurant at the main pier?",
    "Do children need a ticket of their own?",
    "We are twelve people with bicycles. Do we have to book?",
    "How early should a car be at the ramp?",
    "Could you write a poem about the lighthouse?",
    "Is there a boat between the two southern islands?",
)


def prefix_heavy() -> Workload:
    """Sixteen requests behind the same page of instructions, with short answers."""
    page = " ".join(PAGE.split())
    rows = [
        Row(id=f"p{number:02d}", prompt=f"{page}\nTraveller: {question}\nDesk:", max_tokens=12, ignore_eos=True)
        for number, question in enumerate(QUESTIONS)
    ]
    return Workload(name="prefix_heavy", rows=tuple(rows), about={"doc": "one long common prefix, short answers"})


def workload_for(case: Case, folder: Path) -> str:
    """The workload as a goal names it; one of the experiment's own is written to `folder`."""
    if case.workload != "prefix_heavy":
        return case.workload
    file = folder / "prefix_heavy.jsonl"
    file.write_text(prefix_heavy().to_text(), encoding="utf-8")
    return str(file)
