"""Expressions of LibCST: made from texts, looked at, changed in one place. Pure."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m


def code(text: str) -> cst.BaseExpression:
    """An expression from its text."""
    return cst.parse_expression(text)


def text_of(node: cst.CSTNode) -> str:
    """The text of an expression."""
    return cst.Module([]).code_for_node(node)


def bracketed(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression, in brackets where more could bind to a part of it."""
    if isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def template(text: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
    """An expression with others in place of names."""
    made = code(text)
    for name, part in parts.items():
        made = m.replace(made, m.Name(name), bracketed(part))
    assert isinstance(made, cst.BaseExpression)
    return made


def name_of(call: cst.Call) -> str:
    """The last part of what is called."""
    func = call.func
    return func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """What a method is called of; None for a function of a module."""
    func = call.func
    if not isinstance(func, cst.Attribute) or m.matches(func.value, m.Name("torch") | m.Name("F") | m.Name("self")):
        return None
    return func.value


def integer(node: cst.CSTNode) -> int | None:
    """The value of a whole number, with its sign."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = integer(node.expression)
        return None if inner is None else -inner
    return int(node.value) if isinstance(node, cst.Integer) else None


def ceiling(node: cst.UnaryOperation) -> cst.BaseExpression | None:
    """`a // b` for `-(-a // b)`, which rounds up."""
    inner = node.expression
    if isinstance(inner, cst.BinaryOperation) and isinstance(inner.operator, cst.FloorDivide):
        left = inner.left
        if isinstance(left, cst.UnaryOperation) and isinstance(left.operator, cst.Minus):
            return bracketed(inner.with_changes(left=left.expression, lpar=[], rpar=[]))
    return None


def with_argument(call: cst.Call, place: int, value: cst.BaseExpression) -> cst.Call:
    changed = [each.with_changes(value=value) if at == place else each for at, each in enumerate(call.args)]
    return call.with_changes(args=changed)


def renamed(func: cst.BaseExpression, name: str) -> cst.BaseExpression:
    assert isinstance(func, cst.Attribute)
    return func.with_changes(attr=cst.Name(name))


def tight() -> cst.AssignEqual:
    none = cst.SimpleWhitespace("")
    return cst.AssignEqual(none, none)
