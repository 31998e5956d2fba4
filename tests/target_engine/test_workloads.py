"""The shipped workloads and texts: readable by both sides, of the lengths they claim, with the prefixes they claim."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest

from feedback.load.workload import Workload
from target_engine.errors import EngineError
from target_engine.workload import WORKLOADS, read_workload

NAMES = ("main", "heldout", "smoke")


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_read_the_same_requests(name: str) -> None:
    judged = Workload.read(WORKLOADS / f"{name}.jsonl")
    chat, requests = read_workload(name)
    assert (judged.name, judged.chat) == (name, chat)
    assert [(row.id, row.prompt) for row in judged.rows] == [(request.id, request.prompt) for request in requests]
    assert all(row.ignore_eos and row.temperature == 0 for row in judged.rows)


def test_the_workloads_are_what_they_say() -> None:
    main, heldout, smoke = (Workload.read(WORKLOADS / f"{name}.jsonl").rows for name in NAMES)
    assert [row.max_tokens for row in main] == [32] * 16
    assert len(heldout) == 12
    assert {24, 48} <= {row.max_tokens for row in heldout}
    assert all(24 <= row.max_tokens <= 48 for row in heldout)
    assert [row.max_tokens for row in smoke] == [8] * 3
    texts = [row.prompt or "" for row in main]
    prefix = "".join(takewhile(str, (a[0] if len(set(a)) == 1 else "" for a in zip(*texts[::2], strict=False))))
    assert len(prefix) > 400
    assert not any(text.startswith(prefix[:50]) for text in texts[1::2])
    assert not {row.prompt for row in main} & {row.prompt for row in heldout}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "first line must be a header"),
        (['{"id": "a", "prompt": "x", "max_tokens": 1}'], "first line must be a header"),
        (['{"workload": "w", "version": 2}'], "version 1"),
        (['{"workload": "w", "version": 1}', "{"], r":2: not JSON"),
        (['{"workload": "w", "version": 1}', "[]"], r":2: not a JSON object"),
        (['{"workload": "w", "version": 1}', '{"id": "a", "max_tokens": 1}'], r":2: .*either prompt"),
        (['{"workload": "w", "version": 1}', '{"id": "a", "prompt": "x", "max_tokens": 0}'], r":2: .*max_tokens"),
        (['{"workload": "w", "version": 1}', "", '{"id": "a", "prompt": "x", "speed": 9}'], r":3: .*speed"),
        (['{"workload": "w", "version": 1}', '{"prompt": "x"}'], r":2: .*id"),
        (
            ['{"workload": "w", "version": 1}', '{"id": "a", "prompt": "x", "stop": "END"}'],
            r":2: .*list of strings.*END",
        ),
        (['{"workload": "w", "version": 1}', '{"id": "a", "prompt": "x", "seed": -1}'], r":2: .*seed"),
    ],
)
def test_a_bad_file_names_the_line(tmp_path: Path, lines: list[str], words: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(EngineError, match=words) as caught:
        read_workload(path)
    assert str(caught.value).startswith(str(path))


def test_a_good_file_keeps_every_field(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    row = {
        "id": "a",
        "prompt_token_ids": [1, 2],
        "max_tokens": 3,
        "stop": ["x"],
        "seed": 4,
        "arrival_s": 0.5,
        "top_k": 2,
    }
    path.write_text(json.dumps({"workload": "w", "version": 1, "chat": True}) + "\n" + json.dumps(row) + "\n")
    chat, [request] = read_workload(path)
    assert chat
    assert (request.prompt_token_ids, request.seed, request.arrival_s) == ((1, 2), 4, 0.5)
    assert request.sampling == {"max_tokens": 3, "stop": ["x"], "top_k": 2}


def test_the_text_for_likelihoods_is_plain_prose() -> None:
    text = (WORKLOADS / "nll.txt").read_text(encoding="utf-8")
    assert text.isascii()
    assert 1000 <= len(text.split()) <= 1400
