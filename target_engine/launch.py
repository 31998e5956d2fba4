"""The launch configuration: every start parameter of the engine, typed, validated and documented. Torch-free.

A profile is a TOML file with these parameters; what it leaves out has the default below. `profiles/` ships
`sequential` (the plainest oracle), `first_run` (an ordinary first version) and `production` (the best we know).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from target_engine.errors import EngineError
from target_engine.ops.registry import operator_names, problem_with_choice

PROFILES = Path(__file__).parent / "profiles"
SNAPSHOTS = 4
"""Kept states for each request that may run: its own latest, and those that lead back into the prefixes it shares."""


class LaunchConfig(BaseModel):
    """Everything the engine is started with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = Field(
        "smollm2-135m", min_length=1, description="A known model id, a GGUF file, or a folder with config.json"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights, activations and KV cache")
    max_batch: int = Field(4, ge=1, le=1024, description="Most requests that run at the same time (slots)")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens in one KV block")
    num_blocks: int = Field(0, ge=0, lt=2**31, description="KV blocks; 0 derives them from max_batch * max_model_len")
    max_model_len: int = Field(
        1024, ge=2, lt=2**31, description="Longest sequence, prompt and output together, in tokens"
    )
    prefill_chunk: int = Field(512, ge=1, lt=2**31, description="Most prompt tokens computed in one step")
    prefix_cache: bool = Field(False, description="Keep the KV blocks of finished requests and reuse shared prefixes")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 means all cores this process may use")
    scheduler: Literal["fcfs"] = Field("fcfs", description="Order in which waiting requests are admitted")
    operators: dict[str, str] = Field(
        default_factory=dict, description='Operator -> implementation; "torch" where absent'
    )
    tp: int = Field(1, ge=1, le=64, description="Tensor parallel: ranks that share out heads, columns and vocabulary")
    cp: int = Field(
        1, ge=1, le=64, description="Context parallel: groups of tp ranks that share out a prefill's tokens"
    )
    layer_split: bool = Field(
        False, description="Keep a layer's keys and values on one context-parallel rank, which sends them when read"
    )
    rank_timeout: int = Field(
        60, ge=1, le=86_400, description="Seconds a rank may keep the others waiting before it counts as hanging"
    )
    seed: int = Field(0, ge=0, lt=2**64, description="Seed of requests that bring none")
    span_level: int = Field(0, ge=0, le=2, description="0 no spans, 1 steps and phases, 2 operators too")

    @model_validator(mode="after")
    def _operators_exist(self) -> LaunchConfig:
        for operator, implementation in self.operators.items():
            problem = problem_with_choice(operator, implementation)
            if problem:
                raise ValueError(f"operators.{operator}: {problem}")
        return self

    @property
    def kv_blocks(self) -> int:
        """KV blocks to allocate: `num_blocks`, or enough for every slot at `max_model_len`."""
        return self.num_blocks or self.max_batch * -(-self.max_model_len // self.block_size)

    @property
    def snapshot_slots(self) -> int:
        """Slots for kept recurrent states, which a prefix cache needs."""
        return SNAPSHOTS * self.max_batch if self.prefix_cache else 0

    @property
    def state_slots(self) -> int:
        """Recurrent states to allocate, in a model that has any: one for each running request, and the kept ones."""
        return self.max_batch + self.snapshot_slots

    def implementation(self, operator: str) -> str:
        """The implementation chosen for an operator."""
        return self.operators.get(operator, "torch")

    @classmethod
    def parse(cls, values: dict[str, Any]) -> LaunchConfig:
        """From plain values; raises `EngineError` with the first problem."""
        found = problems(values)
        if found:
            parameter, message = found[0]
            raise EngineError(f"launch configuration: {parameter}: {message}")
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path) -> LaunchConfig:
        """From a TOML file, or the name of a shipped profile; `EngineError` names file, line and parameter."""
        path = profile_path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise EngineError(f"{path}: not valid TOML: {error}") from error
        found = problems(values)
        if found:
            parameter, message = found[0]
            raise EngineError(f"{path}:{_line_of(text, parameter)}: {parameter}: {message}")
        return cls(**values)


def profile_path(name: str | Path) -> Path:
    """The file of a shipped profile (`production`) or of a path (`my.toml`)."""
    shipped = PROFILES / f"{name}.toml"
    return shipped if shipped.is_file() and not Path(name).is_file() else Path(name)


def problems(values: dict[str, Any]) -> list[tuple[str, str]]:
    """`(parameter, message)` for all that keeps these values from being a launch configuration. Reads no weights."""
    try:
        config = LaunchConfig(**values)
    except ValidationError as error:
        return [_problem(item) for item in error.errors()]
    except TypeError as error:
        return [("launch", str(error))]
    found = []
    longest = config.kv_blocks * config.block_size
    if longest < config.max_model_len:
        needed = -(-config.max_model_len // config.block_size)
        found.append(
            (
                "num_blocks",
                f"{config.num_blocks} blocks of {config.block_size} hold {longest} tokens, fewer than max_model_len "
                f"{config.max_model_len}: give at least {needed}, or 0 to derive it",
            )
        )
    if config.layer_split and config.cp == 1:
        found.append(("layer_split", "there is one context-parallel rank to keep all layers: give cp 2 or more"))
    if config.cp > config.prefill_chunk:
        found.append(
            (
                "cp",
                f"{config.cp} context-parallel ranks cannot share out a prefill of at most {config.prefill_chunk} "
                "tokens (prefill_chunk): give at most as many ranks as tokens",
            )
        )
    return found


def _problem(item: Any) -> tuple[str, str]:
    """One pydantic error as (parameter, message)."""
    location = ".".join(str(part) for part in item["loc"])
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return location, f"unknown parameter; known are {', '.join(LaunchConfig.model_fields)}"
    if not location and ": " in message:
        location, message = message.split(": ", 1)
        return location, message
    got = "" if item["type"] == "value_error" else f", not {item['input']!r}"
    return location or "launch", message[:1].lower() + message[1:] + got


def _line_of(text: str, parameter: str) -> int:
    """Line of a dotted parameter in a TOML text; 1 when it is not written there."""
    *tables, key = parameter.split(".")
    current: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        if header:
            current = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            if ".".join(current) == parameter:
                return number
        elif current == tables and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return 1


@dataclass(frozen=True)
class LaunchParameter:
    """One dimension of the launch space: what may be tried, and whether it changes what is computed."""

    name: str
    kind: Literal["int", "float", "bool", "choice"]
    values: tuple[Any, ...]
    default: Any
    doc: str
    changes_numerics: bool = False


def _parameter(name: str, kind: Any, values: tuple[Any, ...], changes_numerics: bool = False) -> LaunchParameter:
    field = LaunchConfig.model_fields[name]
    return LaunchParameter(name, kind, values, field.default, field.description or "", changes_numerics)


def launch_space() -> tuple[LaunchParameter, ...]:
    """What a person or a search may change, with sensible values in order. Operators appear as `operators.<name>`."""
    from target_engine.ops.registry import implementations

    chosen = tuple(
        LaunchParameter(f"operators.{name}", "choice", tuple(found), "torch", f"Implementation of the operator {name}")
        for name in operator_names()
        if len(found := implementations(name)) > 1
    )
    return LAUNCH_SPACE + chosen


LAUNCH_SPACE: tuple[LaunchParameter, ...] = (
    _parameter("dtype", "choice", ("float32", "bfloat16"), changes_numerics=True),
    _parameter("max_batch", "int", (1, 2, 4, 8, 16, 32)),
    _parameter("prefill_chunk", "int", (64, 128, 256, 512, 1024)),
    _parameter("prefix_cache", "bool", (False, True)),
    _parameter("block_size", "int", (8, 16, 32, 64)),
    _parameter("threads", "int", (0, 1, 2, 4, 8)),
)
