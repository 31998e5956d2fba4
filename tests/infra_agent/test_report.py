"""The report is one page that says everything, escapes what it was given, and can be written at any moment of a run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from infra_agent import report
from infra_agent.ledger import Ledger
from infra_agent.loop import run
from infra_agent.measurements.recorded import START, RecordedMeasurements, Table
from infra_agent.paths import RunPaths
from infra_agent.records import RunRecord
from infra_agent.report import charts
from infra_agent.report.data import gather
from infra_agent.report.svg import Canvas, Scale, round_step, spanning
from tests.infra_agent.example_run import write_run
from tests.infra_agent.target_files import write_target
from tests.infra_agent.worlds import Silent, goal, healthy, move, play, typical

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Reader(HTMLParser):
    """Collects tags, and whether they close in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        self.references += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def done(self) -> None:
        assert self._open == []


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.done()
    return reader


def played(tmp_path: Path, table: Table | None = None, **more: Any) -> RunPaths:
    paths = RunPaths(tmp_path / "run-1")
    paths.root.mkdir()
    with Ledger.open(paths.ledger) as ledger:
        ledger.note("run", "run", run_record(**more))
        run(goal(), ledger, RecordedMeasurements(table or typical()), Silent(), START)
    return paths


def run_record(**more: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "run": "run-1",
        "goal": "throughput",
        "goal_digest": "g" * 16,
        "goal_text": 'name = "throughput"\n',
        "start": "first_run",
        "start_digest": "s" * 16,
        "adapter": "none.adapter",
        "metric": "output_throughput",
        "direction": "maximize",
        "workload": "main",
        "seed": 7,
        "base_commit": START,
        "files": {},
        "started_at": "2026-01-02T03:04:05Z",
    }
    return RunRecord.model_validate({**fields, **more})


def test_the_page_tells_the_whole_story(tmp_path: Path) -> None:
    html = report.render(played(tmp_path))
    read(html)
    for words in (
        "3.71x",
        "improved",
        "more slots",
        "6.0 requests wait on average",
        "columns 0-25 wrong",
        "SIGSEGV in start",
        "no such site",
        "held out",
        "par",
        "sequential",
        "Ablation",
        "too few slots",
        "infra-agent run",
        "infra-agent apply run-1",
        "Seed 7",
    ):
        assert words in html, words


def test_it_needs_nothing_else(tmp_path: Path) -> None:
    html = report.render(played(tmp_path))
    reader = read(html)
    assert reader.references == []
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(reader.tags)
    assert "default-src 'none'" in html
    assert len(html) < 300_000


def test_everything_that_was_given_is_escaped(tmp_path: Path) -> None:
    table = typical()
    moves = [
        entry.model_copy(
            update={
                "move": entry.move.model_copy(update={"title": HOSTILE}),
                "refuted": dict.fromkeys(entry.refuted, HOSTILE),
                "fails": HOSTILE if entry.fails else None,
            }
        )
        for entry in table.moves
    ]
    paths = played(tmp_path, table.model_copy(update={"moves": tuple(moves)}), goal=HOSTILE, goal_text=HOSTILE)
    html = report.render(paths)
    reader = read(html)
    assert "script" not in reader.tags
    assert reader.references == []
    assert "&lt;script&gt;" in html


def test_a_run_without_a_win_and_one_that_only_began_have_a_page(tmp_path: Path) -> None:
    html = report.render(played(tmp_path, healthy()))
    assert "no win" in html
    begun = RunPaths(tmp_path / "begun")
    begun.root.mkdir()
    Ledger.open(begun.ledger).close()
    assert "No move was tried" in report.render(begun)


@pytest.mark.parametrize("cut", [4, 20, 60, 150])
def test_an_interrupted_run_has_a_page(cut: int, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "cut")
    paths.root.mkdir()
    seen = []

    def kill(row: object) -> None:
        seen.append(row)
        if len(seen) == cut:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(typical(), paths.ledger, observer=kill)
    html = report.render(paths)
    read(html)
    assert "interrupted" in html


def test_diffs_out_of_the_workspace_are_shown(tmp_path: Path) -> None:
    entries = write_target(tmp_path / "target")
    paths = write_run(tmp_path / "target", entries, tmp_path)
    html = report.render(paths)
    read(html)
    assert '<span class="add">+my packed</span>' in html
    assert '<span class="del">-def linear(w, x):</span>' in html or '<span class="add">+broken</span>' in html
    assert "max_batch = 16" in html


def test_the_numbers_on_the_page_are_those_of_the_ledger(tmp_path: Path) -> None:
    data = gather(played(tmp_path))
    kept = [m for m in data["moves"] if m["decision"] == "keep"]
    assert len(kept) == 4
    final = data["told"]["final"]["ratio"]
    assert data["told"]["objective"]["ratio"] == final
    assert all(len(m["lines"]) >= 3 for m in kept)


def test_writing_where_a_file_is_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    paths = played(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        report.write(paths, tmp_path / "file" / "report.html")
    assert report.write(paths).is_file()


# -- pictures ----------------------------------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(st.text(max_size=40), st.floats(0.01, 1e4), st.sampled_from(["keep", "reject", "ask"]))))
def test_any_run_can_be_drawn(steps: list[tuple[str, float, str]]) -> None:
    drawn = charts.evolution(
        [charts.Step(name, decision, value, value * 0.9, value * 1.1) for name, value, decision in steps],
        [("par", 4.0)],
        "output_throughput",
    ).render(standalone=True)
    if _is_xml_text("".join(name for name, _, _ in steps)):
        ElementTree.fromstring(drawn)


def test_a_picture_says_its_values() -> None:
    drawn = charts.bars([charts.Bar("ours & <theirs>", 2.5, 2.4, 2.6)], "ratios").render(standalone=True)
    tree = ElementTree.fromstring(drawn)
    texts = ["".join(node.itertext()) for node in tree.iter() if node.tag.endswith("text")]
    assert "ours & <theirs>" in texts
    assert "2.5x" in texts


@given(numbers, numbers, st.floats(1e-6, 1e6))
def test_a_scale_shows_what_it_was_made_for(one: float, two: float, more: float) -> None:
    scale = spanning([one, two, two + more], 0.0, 100.0)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in (one, two, two + more))
    ticks = scale.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= 12


@given(st.floats(1e-9, 1e9))
def test_steps_are_round_and_large_enough(raw: float) -> None:
    step = round_step(raw)
    assert step >= raw * (1 - 1e-9)
    assert step <= 10 * raw
    assert re.match(r"[125]\.0+e", f"{step:.6e}")


def test_a_scale_may_run_backwards() -> None:
    assert Scale(0, 10, 100, 0)(10) == 0


def test_a_canvas_escapes_attributes_and_text() -> None:
    canvas = Canvas(10, 10, HOSTILE)
    canvas.text(0, 0, HOSTILE, colour='"><script>')
    canvas.dot(0, 0, "red", hint=HOSTILE)
    tree = ElementTree.fromstring(canvas.render(standalone=True))
    assert {node.tag.rpartition("}")[2] for node in tree.iter()} == {"svg", "title", "rect", "text", "circle"}


def _is_xml_text(text: str) -> bool:
    return all(c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff" for c in text)


def test_a_title_is_not_read_as_a_template(tmp_path: Path) -> None:
    table = typical()
    odd = move("more_slots", "launch", "too_few_slots", 1.8, title="{{ 7 * 7 }}")
    first = table.moves[0].model_copy(update={"move": odd})
    html = report.render(played(tmp_path, table.model_copy(update={"moves": (first, *table.moves[1:])})))
    assert "{{ 7 * 7 }}" in html
