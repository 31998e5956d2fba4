"""From a TOML text to a frozen model, or one line that names the file, the line, the key and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from feedback.errors import UserError
from infra_agent import tomltext
from infra_agent.wording import did_you_mean

Model = TypeVar("Model", bound=BaseModel)

#: What pydantic appends to a location for the arms of a union.
_PYDANTIC_ONLY = frozenset({"float", "int", "str", "bool"})


def load(model: type[Model], path: Path) -> Model:
    """Read and validate a TOML file; `UserError` as `path:line: key: what`."""
    return validated(model, tomltext.read(path), str(path))


def validated(model: type[Model], text: str, name: str) -> Model:
    """Parse and validate TOML text; `name` is what error lines call it."""
    data = tomltext.parse(text, name)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = [(_keys(dict(each)), _say(model, dict(each))) for each in error.errors(include_url=False)]
    problems = sorted((tomltext.line_of(text, keys), keys, what) for keys, what in found)
    line, keys, what = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise UserError(f"{name}:{line}: {'.'.join(keys) + ': ' if keys else ''}{what}{more}")


def at(text: str, name: str, key: tuple[str, ...], what: str) -> UserError:
    """The error for a key whose value fits its type but not the world."""
    return UserError(f"{name}:{tomltext.line_of(text, key)}: {'.'.join(key)}: {what}")


def misfit(key: str, what: str) -> PydanticCustomError:
    """For validators of a table: the error belongs to one of its keys."""
    # A literal template, since the text may hold braces of its own.
    return PydanticCustomError("misfit", "{what}", {"key": key, "what": what})


def _keys(problem: dict[str, Any]) -> tuple[str, ...]:
    """The key path in the file; members of unions and lists have names of pydantic's own behind it."""
    keys = tuple(part for part in problem["loc"] if isinstance(part, str))
    keys = keys[:-1] if keys and problem["type"] != "extra_forbidden" and keys[-1] in _PYDANTIC_ONLY else keys
    return (*keys, problem["ctx"]["key"]) if problem["type"] == "misfit" else keys


def _say(model: type[BaseModel], problem: dict[str, Any]) -> str:
    kind, got, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        known = _fields(model, problem["loc"][:-1])
        return f"unknown key{did_you_mean(str(problem['loc'][-1]), known) or '; known: ' + ', '.join(sorted(known))}"
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}, not {got!r}{did_you_mean(str(got), _literals(context['expected']))}"
    if kind in ("value_error", "misfit"):
        return str(context.get("error") or context["what"])
    message = str(problem["msg"])
    message = message.removeprefix("Input should be ").removeprefix("Input ")
    return f"should be {message}, not {got!r}"


def _literals(expected: str) -> list[str]:
    return [word.strip("'\"") for word in expected.replace(" or ", ", ").split(", ")]


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Field names of the (nested) model that a location points into."""
    for part in loc:
        field = model.model_fields.get(str(part))
        nested = field.annotation if field else None
        if not (isinstance(nested, type) and issubclass(nested, BaseModel)):
            return []
        model = nested
    return list(model.model_fields)
