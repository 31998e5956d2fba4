"""A pinned workload: which requests, in which order, of which lengths. JSON lines.

The first line is the header, `{"workload": NAME, "version": 1, ...}`; every further line is a row: `id`, `prompt`
(text) or `prompt_token_ids`, `max_tokens`, and optionally `ignore_eos`, `arrival_s`, `temperature`, `top_k`, `top_p`,
`seed`, `stop`. The header may carry `chat` (prompts are user turns for the chat template), `doc`, and any further
description.

A pass over a live engine must not find the prompts of the pass before in its prefix cache, so every pass puts its own
short salt in front of each prompt: what the rows share with one another stays shared, what passes would share does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from feedback.errors import UserError
from feedback.target import Request

VERSION = 1
SALT_RANGE = 1_000_000

Tokenize = Callable[[list[str], bool], list[list[int]]]


class Row(BaseModel):
    """One request of a workload; `arrival_s` counts from the start of the run and matters to the open loop only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    max_tokens: int = Field(ge=1)
    ignore_eos: bool = False
    arrival_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    temperature: float = Field(default=0.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if bool(self.prompt) == bool(self.prompt_token_ids):
            raise ValueError("give exactly one of prompt and prompt_token_ids, and not an empty one")
        return self


class Workload(BaseModel):
    """A named, ordered set of rows; `about` is what else the header says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    chat: bool = False
    about: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        seen: set[str] = set()
        for row in self.rows:
            if row.id in seen:
                raise ValueError(f"two rows have the id {row.id!r}: ids name requests in verdicts, so they must differ")
            seen.add(row.id)
        return self

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Read a workload file; raises `UserError` naming file and line."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot read the workload: {getattr(error, 'strerror', None) or error}") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "workload") -> Workload:
        """Read the JSON lines of a workload; raises `UserError` naming `source` and line."""
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        if not numbered:
            raise UserError(
                f"{source}: empty; the first line must be the header {{'workload': NAME, 'version': {VERSION}}}"
            )
        header = _object(numbered[0], source)
        if header.pop("version", None) != VERSION or not isinstance(header.get("workload"), str):
            raise UserError(
                f"{source}:{numbered[0][0]}: not the header of a workload of version {VERSION} "
                f"({{'workload': NAME, 'version': {VERSION}}}): {numbered[0][1][:80]}"
            )
        name, chat = header.pop("workload"), header.pop("chat", False)
        rows = []
        for number, line in numbered[1:]:
            try:
                rows.append(Row.model_validate(_object((number, line), source)))
            except ValidationError as error:
                raise UserError(f"{source}:{number}: {_first(error)}") from error
        try:
            return cls(name=name, rows=tuple(rows), chat=chat, about=header)
        except ValidationError as error:
            raise UserError(f"{source}: {_first(error)}") from error

    def to_text(self) -> str:
        """The JSON lines that `parse` reads back; fields at their defaults are left out of rows."""
        header = {"workload": self.name, "version": VERSION, **({"chat": True} if self.chat else {}), **self.about}
        lines = [header, *(row.model_dump(mode="json", exclude_defaults=True) for row in self.rows)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, first 16 hex digits."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()[:16]

    def head(self, count: int) -> Workload:
        """The first `count` rows (at least one), as a workload of its own."""
        return self.model_copy(update={"rows": self.rows[: max(1, count)]})


def _object(numbered: tuple[int, str], source: str) -> dict[str, Any]:
    number, line = numbered
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}:{number}: not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(value, dict):
        raise UserError(f"{source}:{number}: a row is a JSON object, not {line[:60]}")
    return value


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"].removeprefix("Value error, ")


def salt_of(*parts: object) -> int:
    """A salt below `SALT_RANGE` from whatever names a pass: seed, commit, pass number."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") % SALT_RANGE


def prepare(workload: Workload, tokenize: Tokenize, salt: int | None) -> tuple[Request, ...]:
    """Turn rows into requests of token ids, all arms get the same ones.

    `tokenize(texts, chat)` is the oracle's, so that a candidate does not choose its own prompts. The salt goes in front
    of the text (of token ids, in front of the ids), always six digits: lengths do not depend on it. None leaves the
    prompts as they are.
    """
    mark = "" if salt is None else f"{salt:06d} "
    texts = [mark + row.prompt for row in workload.rows if row.prompt is not None]
    from_text = iter(tokenize(texts, workload.chat)) if texts else iter(())
    given = any(row.prompt_token_ids is not None for row in workload.rows)
    prefix = tokenize([mark], False)[0] if mark and given else []
    requests = []
    for row in workload.rows:
        ids = next(from_text) if row.prompt_token_ids is None else [*prefix, *row.prompt_token_ids]
        requests.append(
            Request(
                id=row.id,
                prompt_token_ids=tuple(ids),
                max_tokens=row.max_tokens,
                ignore_eos=row.ignore_eos,
                temperature=row.temperature,
                top_k=row.top_k,
                top_p=row.top_p,
                seed=row.seed,
                stop=row.stop,
            )
        )
    return tuple(requests)


def warm_up_requests(requests: Sequence[Request], prefix: str = "warm") -> tuple[Request, ...]:
    """The same prompts with 1, 2, 3, ...

    Output tokens: every prompt shape and every batch size is met once before anything is timed.
    """
    return tuple(
        request.model_copy(
            update={
                "id": f"{prefix}-{request.id}",
                "max_tokens": min(request.max_tokens, 1 + index),
                "ignore_eos": True,
            }
        )
        for index, request in enumerate(requests)
    )
