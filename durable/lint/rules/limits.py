"""Rules of limits and rates: what names them, what their keys are made of, and who waits for a slot."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from durable.lint.facts import Facts, Operation, Step
from durable.lint.known import kind_of
from durable.lint.modules import Module, workflow_decorator
from durable.lint.rules.base import Report, Rule
from durable.lint.values import External, Function, WorkflowValue

_NAMING: Final = ("limit", "rate")
_DECLARING: Final = frozenset({"durable.Limit", "durable.core.workflow_limits.Limit"})
_MANAGERS: Final = frozenset({"objects", "_default_manager", "_base_manager"})
_WAITED_FOR: Final = frozenset({"child", "map"})


class Refused(Rule):
    """Limits of steps that are refused."""

    id = "W171"
    level = "error"
    title = "The limit of a step is refused"
    why = "A limit is a text: its name, and behind a slash a key if it has keys. Units are of a rate."
    fix = 'Write limit="carrier", limit=f"crm/{tenant}" or rate="openai", units=10.'

    def check(self, facts: Facts) -> Iterator[Report]:
        for step in facts.steps:
            for message in _problems(step):
                yield Report(step.operation.module, step.operation.line, message)


def _problems(step: Step) -> Iterator[str]:
    for option in _NAMING:
        node = step.options.get(option)
        if not isinstance(node, ast.Constant) or node.value is None:
            continue
        if not isinstance(node.value, str):
            yield f"`{option}` is the name of a limit, not {node.value!r}."
            continue
        name, slash, key = node.value.partition("/")
        if not name:
            yield f"`{option}` names no limit."
        elif slash and not key:
            yield f"`{option}` names an empty key of the limit {name}."
    units = step.options.get("units")
    if isinstance(units, ast.Constant) and isinstance(units.value, int):
        if units.value < 1:
            yield f"One attempt takes at least 1 unit, not {units.value}."
        elif units.value != 1 and ("rate" not in step.options or _is_none(step.options["rate"])):
            yield "`units` are of a rate, and there is none."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class UnsteadyLimit(Rule):
    """Limits that differ from pass to pass."""

    id = "W172"
    level = "error"
    title = "A limit or its key differs from pass to pass"
    why = "A run that waits in the line of one key would be asked for a slot of another in its next pass."
    fix = "Make keys of the input and of what steps returned, and of nothing else."

    def check(self, facts: Facts) -> Iterator[Report]:
        for step in facts.steps:
            for option in (*_NAMING, "units"):
                given = step.option_values.get(option)
                if given is not None and given.origins:
                    text = min(each.text for each in given.origins)
                    yield Report(step.operation.module, step.operation.line, f"`{option}` is made of `{text}`.")
        for limit in _declared(Function(facts.module, facts.function, None)):
            for name in _unsteady(limit):
                yield Report(facts.module, limit.node.lineno, f"The key of {limit.name} is made of `{name}`.")


class SleepInSlot(Rule):
    """Steps that wait by themselves."""

    id = "W173"
    level = "hint"
    title = "A step with a limit sleeps"
    why = "The step holds its slot meanwhile: all that wait in line wait for the sleep too."
    fix = "Raise RetryLater(seconds, limit=name), or sleep between steps with ctx.sleep(name, duration)."

    def check(self, facts: Facts) -> Iterator[Report]:
        for step in facts.steps:
            limit = step.options.get("limit")
            sleep = next((each for each in step.calls if each.kind == "sleep"), None)
            if limit is not None and not _is_none(limit) and sleep is not None:
                yield Report(
                    step.operation.module, step.operation.line, f"The step has a `limit`, and calls `{sleep.name}`."
                )


class OwnSlot(Rule):
    """Runs that wait for their own slots."""

    id = "W174"
    level = "warning"
    title = "A run waits for a slot of a limit that it holds itself"
    why = (
        'With hold="open" a run holds its slot until its end. If all slots are held by runs that wait so, none goes on.'
    )
    fix = "Give the inner one a limit of its own, or start it in a step and do not wait for it."

    def check(self, facts: Facts) -> Iterator[Report]:
        held = [each for each in _declared(Function(facts.module, facts.function, None)) if each.is_open]
        if not held:
            return
        for operation in facts.own():
            if operation.kind in _WAITED_FOR and operation.child is not None:
                for limit in _of_child(operation.child):
                    if any(_is_shared(each, limit.name, limit.key is not None) for each in held):
                        yield _waits(operation, f"the child {operation.child.name}", limit.name)
        for step in facts.steps:
            name, has_key = _slot_of(step.options.get("limit"))
            if any(_is_shared(each, name, has_key) for each in held):
                yield _waits(step.operation, "the step", name)


def _waits(operation: Operation, who: str, name: str) -> Report:
    message = f"The run holds a slot of {name}, and waits here for {who}, which needs one of {name} too."
    return Report(operation.module, operation.line, message)


# -- limits of workflows, as their decorators declare them


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    key: ast.expr | None
    is_open: bool
    node: ast.Call
    module: Module


def _declared(function: Function) -> Iterator[_Declared]:
    """Yield the limits of a workflow that are written out in its decorator."""
    if isinstance(function.node, ast.Lambda):
        return
    decorator = workflow_decorator(function.node, function.module)
    given = next((each.value for each in getattr(decorator, "keywords", ()) if each.arg == "limit"), None)
    for node in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
        if not isinstance(node, ast.Call):
            continue
        made = function.module.dotted(node.func)
        name = node.args[0] if node.args else None
        if not isinstance(made, External) or made.name not in _DECLARING:
            continue
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            options = {each.arg: each.value for each in node.keywords}
            hold = options.get("hold")
            is_open = isinstance(hold, ast.Constant) and hold.value == "open"
            yield _Declared(name.value, options.get("key"), is_open, node, function.module)


def _of_child(child: WorkflowValue) -> Iterator[_Declared]:
    if child.function is not None:
        yield from _declared(child.function)


def _is_shared(held: _Declared, name: str, has_key: bool) -> bool:
    return held.name == name and (held.key is not None) == has_key


def _slot_of(node: ast.expr | None) -> tuple[str, bool]:
    """Return the limit that a step names, and whether a key; "" if the text does not tell."""
    begins = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if not isinstance(begins, ast.Constant) or not isinstance(begins.value, str):
        return "", False
    name, slash, _ = begins.value.partition("/")
    return (name, bool(slash)) if slash or begins is node else ("", False)


def _unsteady(limit: _Declared) -> Iterator[str]:
    """Yield what the key of a limit calls that answers otherwise at another time or in another process."""
    module, body = limit.module, limit.key
    if isinstance(body, ast.Name | ast.Attribute):
        function = module.dotted(body)
        if not isinstance(function, Function):
            return
        module, body = function.module, function.node  # type: ignore[assignment]  # walked, whatever it is
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Attribute) and node.attr in _MANAGERS:
            yield ast.unparse(node)
        called = module.dotted(node.func) if isinstance(node, ast.Call) else None
        if isinstance(called, External) and kind_of(called.name) is not None:
            yield called.name


LIMITS: tuple[Rule, ...] = (Refused(), UnsteadyLimit(), SleepInSlot(), OwnSlot())
