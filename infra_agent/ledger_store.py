"""The ledger's file: rows in SQLite that can only be appended.

Rows cannot be updated or deleted (triggers), each carries the digest of the one before (a chain, checked at opening),
a row is durable when `append` returns (`synchronous=FULL`), and one process writes at a time (a file lock, which the
system drops with the process). What the rows mean is `ledger`'s business.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import quote

from feedback.errors import UserError

#: `PRAGMA user_version`, and the application id that tells a ledger from any other SQLite file.
SCHEMA_VERSION = 1
APPLICATION_ID = 0x494E4641

Phase = Literal["intent", "result", "interrupted"]

_SCHEMA = """
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase IN ('intent', 'result', 'interrupted')),
    payload TEXT NOT NULL,
    at REAL NOT NULL,
    seconds REAL NOT NULL,
    digest TEXT NOT NULL
);
CREATE UNIQUE INDEX one_intent ON rows (kind, key) WHERE phase = 'intent';
CREATE UNIQUE INDEX one_result ON rows (kind, key) WHERE phase = 'result';
CREATE TRIGGER rows_are_never_updated BEFORE UPDATE ON rows
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER rows_are_never_deleted BEFORE DELETE ON rows
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


@dataclass(frozen=True)
class Row:
    """One row. `at` is Unix time, `seconds` the wall time of the effect (result rows), `payload` parsed JSON."""

    seq: int
    kind: str
    key: str
    phase: Phase
    payload: Any
    at: float
    seconds: float
    digest: str


class RowStore:
    """The rows of one ledger file, loaded and checked at opening. One thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._connection = connection
        self._lock = lock
        self._tip = ""
        self._load()

    @classmethod
    def open(cls, path: Path) -> RowStore:
        """Open for writing, created when absent. `UserError` when another process writes it, or when it is damaged."""
        lock = _take_lock(path)
        try:
            connection = _connect(path, "rwc")
            with _readable(path):
                _create(connection)
                store = cls(path, connection, lock)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            return store
        except BaseException:
            lock.close()
            raise

    @classmethod
    def read(cls, path: Path) -> RowStore:
        """Open for reading only, also while another process writes. `UserError` when it is missing or damaged."""
        if not path.is_file():
            raise UserError(f"there is no ledger at {path}")
        return cls(path, _connect(path, "ro"), None)

    def _load(self) -> None:
        with _readable(self.path):
            if _pragma(self._connection, "application_id") != APPLICATION_ID:
                raise UserError(f"{self.path} is not a ledger of infra-agent")
            version = _pragma(self._connection, "user_version")
            if version != SCHEMA_VERSION:
                raise UserError(f"{self.path} has version {version}; this program reads ledgers of {SCHEMA_VERSION}")
            stored = self._connection.execute(
                "SELECT seq, kind, key, phase, payload, at, seconds, digest FROM rows ORDER BY seq"
            ).fetchall()
        for seq, *fields, digest in stored:
            due = len(self.rows) + 1
            if seq != due or digest != _digest(self._tip, [seq, *fields]):
                raise UserError(f"{self.path}: row {due} was altered or is missing; this record cannot be trusted")
            kind, key, phase, payload, at, seconds = fields
            self._remember(Row(seq, kind, key, phase, json.loads(payload), at, seconds, digest))

    def append(self, kind: str, key: str, phase: Phase, payload: str, seconds: float) -> Row:
        """Write one row durably; `payload` is JSON text."""
        if self._lock is None:
            raise RuntimeError("this ledger was opened for reading")
        seq, at = len(self.rows) + 1, time.time()
        fields = [seq, kind, key, phase, payload, at, seconds]
        digest = _digest(self._tip, fields)
        try:
            with self._connection:
                self._connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*fields, digest))
        except sqlite3.OperationalError as error:
            raise UserError(f"cannot write the ledger {self.path}: {error}") from error
        row = Row(seq, kind, key, phase, json.loads(payload), at, seconds, digest)
        self._remember(row)
        return row

    def _remember(self, row: Row) -> None:
        self.rows.append(row)
        self._tip = row.digest

    def close(self) -> None:
        """Close the file and let another process write. Idempotent."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()


def _digest(before: str, fields: list[Any]) -> str:
    return hashlib.sha256(json.dumps([before, *fields], ensure_ascii=False).encode()).hexdigest()


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turn SQLite's errors about the file into one line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise UserError(f"the ledger {path} cannot be used: {error}") from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _readable(path):
        return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode={mode}", uri=True, timeout=10.0)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _create(connection: sqlite3.Connection) -> None:
    """Lay the table in an empty file, all or nothing; another program's file is left as it is."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {header} COMMIT;")


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _take_lock(path: Path) -> IO[str]:
    """The writer's lock, held while the returned file is open; `UserError` naming the process that has it."""
    try:
        lock = _lock_path(path).open("a+")
    except OSError as error:
        raise UserError(f"cannot open the ledger {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise UserError(f"the run {path.parent.name} is going on in another process (pid {holder})") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def is_being_written(path: Path) -> bool:
    """Whether some process holds the writer's lock of the ledger at `path`."""
    try:
        with _lock_path(path).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
