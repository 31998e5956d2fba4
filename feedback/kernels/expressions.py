"""Sizes as small expressions over a kernel's constants: `cdiv(V, BLOCK_V)`. Pure.

A launch grid may depend on a constant that an autotuner chooses, so it cannot always be written as numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}


def size(expression: int | str, names: Mapping[str, Any]) -> int:
    """The value of an integer or of an expression of integers, names, + - * // %, `cdiv`, `min` and `max`.

    Raises `ValueError` that says what is wrong with it.
    """
    if isinstance(expression, int):
        return expression
    try:
        return _value(ast.parse(expression, mode="eval").body, names)
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is no expression") from error
    except ZeroDivisionError as error:
        raise ValueError(f"{expression!r} divides by zero") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            if not isinstance(names.get(name), int):
                raise ValueError(f"{name} is no integer constant of the launch")
            return int(names[name])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, names) for argument in args))
    raise ValueError(f"{ast.unparse(node)!r} cannot be a size: integers, constants, + - * // %, cdiv, min, max")
