"""Workload files: read back what was written, refuse with file and line, and salt so that passes share nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from feedback.load.mooncake import read_mooncake
from feedback.load.openloop import poisson_arrivals
from feedback.load.workload import SALT_RANGE, Row, Workload, prepare, salt_of, warm_up_requests

HEADER = '{"workload": "w", "version": 1}\n'


def rows_strategy() -> st.SearchStrategy[tuple[Row, ...]]:
    text = st.text(min_size=1, max_size=20)
    row = st.builds(
        Row,
        id=st.text("abcdefgh", min_size=1, max_size=6),
        prompt=text,
        max_tokens=st.integers(1, 500),
        ignore_eos=st.booleans(),
        arrival_s=st.floats(0, 100),
        temperature=st.sampled_from([0.0, 0.7]),
        seed=st.none() | st.integers(0, 9),
        stop=st.lists(text, max_size=2).map(tuple),
    )
    return st.lists(row, min_size=1, max_size=5, unique_by=lambda item: item.id).map(tuple)


def bytes_as_ids(texts: list[str], chat: bool) -> list[list[int]]:
    return [[1, *text.encode(), 2] if chat else list(text.encode()) for text in texts]


class TestReading:
    @given(rows_strategy(), st.booleans())
    def test_reads_back_what_was_written(self, rows: tuple[Row, ...], chat: bool) -> None:
        workload = Workload(name="w", rows=rows, chat=chat, about={"shared_prefix_share": 0.5})
        again = Workload.parse(workload.to_text())
        assert again == workload
        assert again.digest == workload.digest

    @given(rows_strategy())
    def test_the_digest_names_the_content(self, rows: tuple[Row, ...]) -> None:
        workload = Workload(name="w", rows=rows)
        changed = (rows[0].model_copy(update={"max_tokens": rows[0].max_tokens + 1}), *rows[1:])
        assert Workload(name="w", rows=changed).digest != workload.digest

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "w.jsonl: empty"),
            ('{"id": "a", "prompt": "x", "max_tokens": 2}\n', "w.jsonl:1: not the header"),
            ('{"workload": "w", "version": 2}\n', "w.jsonl:1: not the header of a workload of version 1"),
            (HEADER, "w.jsonl: rows"),
            (HEADER + '\n{"id": "a", "prompt": "x"}\n', "w.jsonl:3: max_tokens: Field required"),
            (HEADER + '{"id": "a", "prompt": "x", "max_tokens": 2, "tokens": 3}\n', "w.jsonl:2: tokens: Extra"),
            (HEADER + '{"id": "a", "max_tokens": 2}\n', "w.jsonl:2: give exactly one of prompt"),
            (HEADER + '{"id": "a", "prompt": "x", "max_tokens": 2\n', "w.jsonl:2: not JSON"),
            (HEADER + "[1]\n", "w.jsonl:2: a row is a JSON object"),
            (HEADER + 2 * '{"id": "a", "prompt": "x", "max_tokens": 2}\n', "two rows have the id 'a'"),
        ],
    )
    def test_a_bad_file_is_refused_with_its_line(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "w.jsonl"
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            Workload.read(path)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"nowhere.jsonl: cannot read the workload: No such file"):
            Workload.read(tmp_path / "nowhere.jsonl")


class TestPreparing:
    @given(rows_strategy(), st.integers(0, SALT_RANGE - 1), st.integers(0, SALT_RANGE - 1))
    def test_salt_keeps_lengths_and_shared_prefixes_within_a_pass_and_breaks_them_between_passes(
        self, rows: tuple[Row, ...], one: int, other: int
    ) -> None:
        workload = Workload(name="w", rows=rows)
        first, second = prepare(workload, bytes_as_ids, one), prepare(workload, bytes_as_ids, other)
        bare = prepare(workload, bytes_as_ids, None)
        for a, b, plain in zip(first, second, bare, strict=True):
            assert a.prompt_token_ids is not None
            assert b.prompt_token_ids is not None
            assert len(a.prompt_token_ids) == len(b.prompt_token_ids)
            assert a.prompt_token_ids[7:] == plain.prompt_token_ids
            assert (a.prompt_token_ids[:6] == b.prompt_token_ids[:6]) == (one == other)

    def test_token_id_prompts_are_salted_too(self) -> None:
        rows = (Row(id="a", prompt_token_ids=(9, 9), max_tokens=1), Row(id="b", prompt="x", max_tokens=1))
        found = prepare(Workload(name="w", rows=rows), bytes_as_ids, 12)
        assert found[0].prompt_token_ids == (*b"000012 ", 9, 9)
        assert found[1].prompt_token_ids == (*b"000012 ", *b"x")

    def test_the_chat_template_is_the_tokenizers_business(self) -> None:
        workload = Workload(name="w", rows=(Row(id="a", prompt="x", max_tokens=1),), chat=True)
        assert prepare(workload, bytes_as_ids, None)[0].prompt_token_ids == (1, *b"x", 2)

    @given(st.lists(st.integers(), max_size=3), st.lists(st.integers(), max_size=3))
    def test_salts_follow_their_parts(self, one: list[int], other: list[int]) -> None:
        assert 0 <= salt_of(*one) < SALT_RANGE
        assert (salt_of(*one) == salt_of(*other)) == (one == other)

    def test_warming_up_meets_every_prompt_and_every_batch_size(self) -> None:
        rows = tuple(Row(id=f"r{index}", prompt="x" * (index + 1), max_tokens=3) for index in range(5))
        requests = prepare(Workload(name="w", rows=rows), bytes_as_ids, None)
        warm = warm_up_requests(requests)
        assert [item.max_tokens for item in warm] == [1, 2, 3, 3, 3]
        assert [item.prompt_token_ids for item in warm] == [item.prompt_token_ids for item in requests]
        assert {item.id for item in warm}.isdisjoint(item.id for item in requests)


class TestArrivals:
    @given(st.floats(0.1, 50), st.integers(0, 1000))
    def test_poisson_arrivals_start_at_zero_and_keep_the_order(self, rate: float, seed: int) -> None:
        rows = tuple(Row(id=str(index), prompt="x", max_tokens=1) for index in range(20))
        found = poisson_arrivals(Workload(name="w", rows=rows), rate, seed)
        arrivals = [row.arrival_s for row in found.rows]
        assert arrivals[0] == 0.0
        assert arrivals == sorted(arrivals)
        assert [row.id for row in found.rows] == [row.id for row in rows]

    def test_the_rate_is_the_rate(self) -> None:
        rows = tuple(Row(id=str(index), prompt="x", max_tokens=1) for index in range(4000))
        found = poisson_arrivals(Workload(name="w", rows=rows), 8.0, 0)
        assert 4000 / found.rows[-1].arrival_s == pytest.approx(8.0, rel=0.05)


class TestMooncake:
    def write(self, path: Path, *entries: dict[str, object]) -> Path:
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        return path

    def test_lengths_arrivals_and_shared_blocks_survive(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path / "trace.jsonl",
            {"timestamp": 5000, "input_length": 1300, "output_length": 40, "hash_ids": [1, 2, 3]},
            {"timestamp": 6500, "input_length": 1100, "output_length": 8, "hash_ids": [1, 2, 9]},
        )
        one, two = read_mooncake(path, (10, 300), scale=0.125).rows
        assert one.prompt_token_ids is not None
        assert two.prompt_token_ids is not None
        assert (len(one.prompt_token_ids), len(two.prompt_token_ids)) == (162, 138)
        assert one.prompt_token_ids[:128] == two.prompt_token_ids[:128]
        assert one.prompt_token_ids[128:136] != two.prompt_token_ids[128:136]
        assert (one.arrival_s, two.arrival_s) == (0.0, 1.5)
        assert (one.max_tokens, two.max_tokens) == (5, 1)
        assert all(10 <= token < 300 for token in one.prompt_token_ids)

    def test_what_no_hash_covers_is_the_requests_own(self, tmp_path: Path) -> None:
        entry: dict[str, object] = {"timestamp": 0, "input_length": 50, "output_length": 4}
        one, two = read_mooncake(self.write(tmp_path / "t.jsonl", entry, entry), (0, 100)).rows
        assert len(one.prompt_token_ids or ()) == 50
        assert one.prompt_token_ids != two.prompt_token_ids

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no requests"),
            ("{", "t.jsonl:1: not JSON"),
            ('{"timestamp": 0}', "t.jsonl:1: a trace line needs the numbers"),
            ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "t.jsonl:1: lengths"),
        ],
    )
    def test_a_bad_trace_is_refused_with_its_line(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_mooncake(path, (0, 100))
