"""The ways in which a block of statements ends."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def ending(body: Sequence[ast.stmt]) -> str:
    """Return "return", "raise", "break" or "continue" if the block always ends so, else ""."""
    for statement in body:
        found = _ending(statement)
        if found:
            return found
    return ""


def _ending(statement: ast.stmt) -> str:
    match statement:
        case ast.Return():
            return "return"
        case ast.Raise():
            return "raise"
        case ast.Break():
            return "break"
        case ast.Continue():
            return "continue"
        case ast.With() | ast.AsyncWith():
            return ending(statement.body)
        case ast.If():
            return _weaker(ending(statement.body), ending(statement.orelse))
        case ast.Match():
            is_whole = any(
                isinstance(case.pattern, ast.MatchAs) and case.pattern.name is None for case in statement.cases
            )
            found = "raise" if is_whole else ""
            for case in statement.cases:
                found = _weaker(found, ending(case.body))
            return found
        case ast.Try():
            found = ending([*statement.body, *statement.orelse])
            for handler in statement.handlers:
                found = _weaker(found, ending(handler.body))
            return ending(statement.finalbody) or found
        case _:
            return ""


def _weaker(one: str, other: str) -> str:
    """Return how code ends that ends in one of two ways: as the one that leaves less."""
    order = ("", "continue", "break", "return", "raise")
    return min(one, other, key=order.index)
