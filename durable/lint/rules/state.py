"""Rules of state: it is made of what steps return."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from durable.lint.facts import Facts
from durable.lint.modules import Module
from durable.lint.rules.base import Report, Rule
from durable.lint.values import Env, Given, Input


class OutsideSteps(Rule):
    """A step that changes a variable of the workflow's code."""

    id = "W121"
    level = "error"
    title = "A step changes a variable that the workflow reads"
    why = "A recorded step is not called again, so in the next pass the variable is as if the step had never run."
    fix = "Let the step return the value, and assign it: found = ctx.step(...)."

    def check(self, facts: Facts) -> Iterator[Report]:
        receivers = {mutation.receiver for step in facts.steps for mutation in step.mutations}
        read: dict[ast.AST, set[str]] = {}
        for step in facts.steps:
            for mutation in step.mutations:
                name, env = mutation.name, mutation.env
                if isinstance(mutation.value, Given):
                    name, env = mutation.value.name, mutation.value.env
                if (
                    env is None
                    or env.node is None
                    or isinstance(mutation.value, Input)
                    or _is_within(env, step.functions)
                ):
                    continue
                if mutation.attribute:
                    if _reads_attribute(env.node, name, mutation.attribute):
                        yield Report(
                            mutation.module,
                            _line(mutation.node),
                            f"This runs within a step and changes `{name}.{mutation.attribute}`, which the code outside of the "
                            "step reads.",
                        )
                    continue
                if env.node not in read:
                    read[env.node] = _read_names(env.node, receivers)
                if name in read[env.node]:
                    yield Report(
                        mutation.module,
                        _line(mutation.node),
                        f"This runs within a step and changes `{name}`, which the code outside of the step reads.",
                    )


class Globals(Rule):
    """Changing globals."""

    id = "W122"
    level = "warning"
    title = "The workflow relies on a global that code changes"
    why = "Each worker process has globals of its own, and they are gone when it ends. The next pass may see other values."
    fix = "Keep the value in a variable that is made of what steps return, or in a row that a step reads."

    def check(self, facts: Facts) -> Iterator[Report]:
        changed = [
            each
            for each in (*facts.mutations, *(each for step in facts.steps for each in step.mutations))
            if each.env is None
        ]
        names = {(each.module, each.name) for each in changed}
        with_operations = {each.function for each in facts.own()}
        by_itself = {
            (each.module, each.name, each.function) for each in changed if each.function not in with_operations
        }
        seen: set[tuple[Module, str]] = set()
        for module, function, node in facts.globals_read:
            key = (module, node.id)
            if key not in names or key in seen or (*key, function) in by_itself or _only_adds(node, module):
                continue
            seen.add(key)
            yield Report(module, node.lineno, f"`{node.id}` is a global, and code of the workflow changes it.")


class ChangedInput(Rule):
    """A changed input."""

    id = "W123"
    level = "warning"
    title = "The input is changed"
    why = "Each pass gets a fresh copy of the input: what a step puts into it is gone, and operators see the original."
    fix = "Make a copy first, or keep the new value in a variable of its own."

    def check(self, facts: Facts) -> Iterator[Report]:
        for mutation in [*facts.mutations, *(each for step in facts.steps for each in step.mutations)]:
            if isinstance(mutation.value, Input) and mutation.how == "changed":
                yield Report(
                    mutation.module,
                    _line(mutation.node),
                    f"`{mutation.name}` is input of the workflow, and is changed here.",
                )


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))


def _is_within(env: Env, functions: list[tuple[Module, Any]]) -> bool:
    """Return True if the names are those of the step's own functions."""
    here: Env | None = env
    while here is not None:
        if any(here.node is node for _, node in functions):
            return True
        if isinstance(here.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        here = here.parent
    return False


def _read_names(function: ast.AST, receivers: set[ast.AST | None]) -> set[str]:
    """Return the names that a function reads, other than to change what they hold."""
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in receivers
    }


def _reads_attribute(function: ast.AST, name: str, attribute: str) -> bool:
    """Return True if a function reads an attribute of what a name holds."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in ast.walk(function)
    )


def _only_adds(node: ast.Name, module: Module) -> bool:
    """Return True if a name is read only to add to what it holds: nothing follows from it."""
    user = module.parents.get(node)
    if isinstance(user, ast.Subscript):
        return isinstance(user.ctx, ast.Store) and user.value is node
    return isinstance(user, ast.Attribute) and user.attr in ("append", "add", "extend", "update", "clear")


STATE: tuple[Rule, ...] = (OutsideSteps(), Globals(), ChangedInput())
