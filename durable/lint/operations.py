"""The meaning of an operation's arguments: its name, its bodies, a step's function and options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from durable.lint.values import NOTHING, Display, External, Function, Result, Value

_STEP: Final = frozenset({"durable.step", "durable.definitions.step"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of an operation's call, as read."""

    node: ast.Call
    values: list[Result]
    keywords: dict[str, Result]

    @property
    def name(self) -> ast.expr | None:
        """The expression of the name."""
        if self.node.args:
            return self.node.args[0]
        return next((each.value for each in self.node.keywords if each.arg == "name"), None)

    @property
    def name_result(self) -> Result:
        """The result of reading the name."""
        return self.of(0, "name")

    def of(self, position: int, keyword: str) -> Result:
        """Return the argument at a position, or of a keyword."""
        if position < len(self.values):
            return self.values[position]
        return self.keywords.get(keyword, NOTHING)


def bodies_of(result: Result) -> Iterator[Function]:
    """Yield the functions of a body, or of a dict of them."""
    values: list[Value] = result.value.values if isinstance(result.value, Display) else [result.value]
    yield from (each for each in values if isinstance(each, Function))


def step_definition(function: Function | None) -> tuple[str | None, dict[str, ast.expr]]:
    """Return the name and the options that `@step` gives a function: (None, {}) if it has none."""
    if function is None or isinstance(function.node, ast.Lambda):
        return None, {}
    for decorator in function.node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        value = function.module.dotted(call.func if call is not None else decorator)
        if not isinstance(value, External) or value.name not in _STEP:
            continue
        options = {each.arg: each.value for each in call.keywords if each.arg} if call is not None else {}
        name = options.pop("name", None)
        if name is None:
            return function.node.name, options
        return (name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None), options
    return None, {}
