"""The ledger: effects run once, whatever cuts a run off; rows stay; one writer; damage is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from feedback.errors import UserError
from infra_agent.ledger import Ledger, LedgerDiverged, Row, is_being_written
from infra_agent.records import Ratio


class Killed(BaseException):
    """The process ends here."""


def test_an_effect_runs_once_and_its_result_is_what_json_gives_back(tmp_path: Path) -> None:
    calls: list[int] = []

    def effect() -> dict:
        calls.append(1)
        return {"pair": (1, 2), "ratio": Ratio(point=1.5, low=1.0, high=2.0)}

    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        first = ledger.once("probe", "k", {"x": 1}, effect)
        assert ledger.once("probe", "k", {"x": 1}, effect) == first
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        assert ledger.once("probe", "k", {"x": 1}, effect) == first
        assert first == {"pair": [1, 2], "ratio": {"point": 1.5, "low": 1.0, "high": 2.0}}
        typed = ledger.once("probe", "m", None, lambda: Ratio(point=1, low=1, high=1), Ratio)
        assert typed == Ratio(point=1, low=1, high=1)
    assert calls == [1]


def test_other_inputs_on_replay_are_another_run(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.once("probe", "k", {"x": 1}, lambda: 1)
        ledger.note("decision", "m", {"decision": "keep"})
        ledger.note("decision", "m", {"decision": "keep"})
        with pytest.raises(LedgerDiverged, match="probe 'k' was recorded with other inputs"):
            ledger.once("probe", "k", {"x": 2}, lambda: 1)
        with pytest.raises(LedgerDiverged, match="decision 'm'"):
            ledger.note("decision", "m", {"decision": "reject"})
        assert len(list(ledger.rows())) == 3


def test_what_raises_is_run_again_and_noted(tmp_path: Path) -> None:
    def fails() -> int:
        raise OSError("no")

    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        with pytest.raises(OSError, match="no"):
            ledger.once("probe", "k", 1, fails)
        assert not ledger.has("probe", "k")
        assert ledger.once("probe", "k", 1, lambda: 7) == 7
        assert [row.phase for row in ledger.rows("probe")] == ["intent", "interrupted", "result"]
        assert ledger.result("probe", "k") == 7


@pytest.mark.parametrize("bad", [float("nan"), {"x": float("inf")}, object(), {1, 2}])
def test_what_is_not_json_is_refused(tmp_path: Path, bad: object) -> None:
    with Ledger.open(tmp_path / "l.sqlite") as ledger, pytest.raises((TypeError, ValueError)):
        ledger.note("fact", "k", bad)


def test_time_spent_is_the_same_on_replay_with_nested_effects(tmp_path: Path) -> None:
    def run(ledger: Ledger, stop: bool = False) -> None:
        def inner() -> int:
            return sum(range(200_000))

        def outer() -> int:
            value = ledger.once("inner", "i", None, inner)
            if stop:
                raise Killed
            return value

        ledger.once("first", "f", None, inner)
        ledger.once("outer", "o", None, outer)

    with Ledger.open(tmp_path / "l.sqlite") as ledger, pytest.raises(Killed):
        run(ledger, stop=True)
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        run(ledger)
        spent = {row.kind: row.seconds for row in ledger.rows(phase="result")}
        assert spent["outer"] >= spent["inner"] > 0
        assert ledger.seconds == pytest.approx(spent["first"] + spent["outer"])
        total = ledger.seconds
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        run(ledger)
        assert ledger.seconds == pytest.approx(total)


# -- damage


def test_rows_can_be_neither_changed_nor_removed(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.note("fact", "k", 1)
    connection = sqlite3.connect(tmp_path / "l.sqlite")
    for statement in ("UPDATE rows SET payload = '2'", "DELETE FROM rows"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("damage", ["UPDATE rows SET payload = '9'", "UPDATE rows SET at = 0", "DELETE FROM rows"])
def test_an_altered_row_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger.open(path) as ledger:
        for i in range(4):
            ledger.note("fact", str(i), i)
    connection = sqlite3.connect(path, isolation_level=None)
    for trigger in ("rows_are_never_updated", "rows_are_never_deleted"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute(f"{damage} WHERE seq = 2")
    connection.close()
    for opening in (Ledger.open, Ledger.read):
        with pytest.raises(UserError, match=r"l\.sqlite: row 2 was altered or is missing"):
            opening(path)
    assert not is_being_written(path)


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_bytes(b"this is not a database" * 100)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE photographs (x)")
    connection.commit()
    connection.close()
    before = (text.read_bytes(), other.read_bytes())
    with pytest.raises(UserError, match=r"text\.sqlite cannot be used: file is not a database"):
        Ledger.open(text)
    with pytest.raises(UserError, match=r"other\.sqlite is not a ledger"):
        Ledger.open(other)
    with pytest.raises(UserError, match="there is no ledger"):
        Ledger.read(tmp_path / "none.sqlite")
    assert (text.read_bytes(), other.read_bytes()) == before


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger.open(path) as ledger:
        for i in range(200):
            ledger.note("fact", str(i), "x" * 100)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"cannot be used|was altered"):
        Ledger.open(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    Ledger.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UserError, match="has version 99; this program reads ledgers of 1"):
        Ledger.open(path)


# -- one writer


def test_one_process_writes_and_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger.open(path) as ledger:
        ledger.note("fact", "k", 1)
        assert is_being_written(path)
        with pytest.raises(UserError, match=rf"is going on in another process \(pid {os.getpid()}\)"):
            Ledger.open(path)
        with Ledger.read(path) as reader:
            assert [row.payload for row in reader.rows()] == [1]
            with pytest.raises(RuntimeError, match="opened for reading"):
                reader.note("fact", "other", 1)
    assert not is_being_written(path)
    with Ledger.open(path) as ledger:
        ledger.note("fact", "k2", 2)


# -- cut off anywhere


class CutOff(RuleBasedStateMachine):
    """A run that is cut off at any write or within any effect, again and again, ends as one that was not."""

    @initialize(effects=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
    def begin(self, effects: list[str]) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "l.sqlite"
        self.effects = effects
        self.performed: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.finished = False

    def run(self, writes: int | None, within: str | None) -> None:
        left = [writes]

        def count(row: Row) -> None:
            if row.kind == "effect" and row.phase == "result":
                assert row.key not in self.results, "a result was recorded twice"
                self.results[row.key] = row.payload
            if left[0] is not None:
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed

        def effect(name: str) -> int:
            self.performed[name] = self.performed.get(name, 0) + 1
            if name == within:
                raise Killed
            return 100 * ord(name) + self.performed[name]

        with Ledger.open(self.path, count) as ledger:
            values = []
            for name in self.effects:
                values.append(ledger.once("effect", name, {"before": list(values)}, lambda name=name: effect(name)))
                ledger.note("decision", name, {"values": list(values)})
        self.finished = True

    @precondition(lambda self: not self.finished)
    @rule(writes=st.integers(1, 6))
    def killed_after_a_write(self, writes: int) -> None:
        with contextlib.suppress(Killed):
            self.run(writes, None)

    @precondition(lambda self: not self.finished)
    @rule(data=st.data())
    def killed_within_an_effect(self, data: st.DataObject) -> None:
        within = data.draw(st.sampled_from(self.effects))
        with contextlib.suppress(Killed):
            self.run(None, within)

    @rule()
    def goes_through(self) -> None:
        performed, finished = dict(self.performed), self.finished
        self.run(None, None)
        if finished:
            assert self.performed == performed, "a finished effect ran again"

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "path") or not self.path.exists():
            return
        with Ledger.read(self.path) as ledger:
            recorded = {row.key: row.payload for row in ledger.rows("effect", "result")}
            assert recorded == {key: value for key, value in self.results.items() if key in recorded}
            for name in self.effects:
                phases = [row.phase for row in ledger.rows("effect") if row.key == name]
                assert phases.count("result") <= 1
                announced = [phase for phase in phases if phase != "result"]
                assert announced == ["intent", *["interrupted"] * (len(announced) - 1)][: len(announced)]
                assert self.performed.get(name, 0) <= len(announced), "an effect ran that was not announced"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestCutOff = CutOff.TestCase
TestCutOff.settings = settings(max_examples=40, stateful_step_count=12)


PROGRAM = """
import os, signal, sys, pathlib
from infra_agent.ledger import Ledger
path, log, kill_at = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
writes = 0
def watch(row):
    global writes
    writes += 1
    if writes == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
def effect(i):
    with log.open("a") as file:
        file.write(f"{i}\\n")
    return i * i
with Ledger.open(path, watch) as ledger:
    print(sum(ledger.once("square", str(i), {"i": i}, lambda i=i: effect(i)) for i in range(4)))
"""


def test_kill_9_at_every_write_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A real process, really killed: after an intent, after the result, after the next intent, ... to the end."""
    path, log = tmp_path / "l.sqlite", tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for life in range(40):
        kill_at = 1 + life % 2
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), str(log), str(kill_at)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.strip() == "14"
    with Ledger.read(path) as ledger:
        results = [(row.key, row.payload) for row in ledger.rows(phase="result")]
        assert results == [("0", 0), ("1", 1), ("2", 4), ("3", 9)]
        interrupted = [row.key for row in ledger.rows(phase="interrupted")]
    assert interrupted == ["0", "1", "2", "3"]
    assert log.read_text().split() == ["0", "1", "2", "3"]
