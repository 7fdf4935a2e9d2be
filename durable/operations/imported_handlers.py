"""The rollback handlers that an imported history may name: those that the code at hand gives to steps of that name.

A file may be written by anybody, and a rollback calls the handlers that are recorded. So what a file names is compared
with the source of the workflow's module, and of the modules of the same package from which it takes names. Nothing is
executed and nothing is imported.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NamedTuple

from durable.core import registry
from durable.core.location import unescape
from durable.core.options import handler_name
from durable.core.recorded_names import other_names
from durable.core.records import EntryKind, EntryRecord

_MOST: Final = 200  # modules that are read
_STEPS: Final = frozenset({"step", "try_step"})


class LeftOut(NamedTuple):
    """A step of an imported history, and its handler, which is not imported."""

    location: str
    handler: str


class _Named(NamedTuple):
    """A handler that code gives to a step; `step` is None where the source does not say the step's name."""

    handler: str
    step: str | None


def without_foreign_handlers(workflow: str, entries: Sequence[EntryRecord]) -> tuple[list[EntryRecord], list[LeftOut]]:
    """Return the entries without the handlers that the code of the workflow does not name there, and those handlers."""
    named: frozenset[_Named] | None = None
    kept: list[EntryRecord] = []
    left_out: list[LeftOut] = []
    for entry in entries:
        if entry.kind == EntryKind.STEP and "rollback" in entry.data:
            named = _named_by(workflow) if named is None else named
            handler = str(entry.data["rollback"].get("handler", ""))
            if not _may_be(handler, unescape(entry.location.rpartition("/")[2]), named):
                left_out.append(LeftOut(entry.location, handler))
                entry = replace(entry, data={name: each for name, each in entry.data.items() if name != "rollback"})
        kept.append(entry)
    return kept, left_out


def _may_be(handler: str, step: str, named: frozenset[_Named]) -> bool:
    names = {handler, *other_names(handler)}
    return any(each.handler in names and each.step in (step, None) for each in named)


def _named_by(workflow: str) -> frozenset[_Named]:
    """Return the handlers that the code of a workflow names; none for a workflow that this process does not know."""
    try:
        function = registry.get(workflow).function
    except registry.UnknownWorkflowError:
        return frozenset()
    first = sys.modules.get(inspect.unwrap(function).__module__)
    return frozenset(each for module in _modules_around(first) for each in _named_in(module))


def _modules_around(first: ModuleType | None) -> Iterator[ModuleType]:
    """Yield a module, and those of its package from whose names its code may take steps."""
    waiting, seen = [] if first is None else [first], set[str]()
    while waiting and len(seen) < _MOST:
        module = waiting.pop()
        if module.__name__ in seen:
            continue
        seen.add(module.__name__)
        yield module
        package = module.__name__.partition(".")[0]
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name.partition(".")[0] == package and (found := sys.modules.get(name)):
                waiting.append(found)


def _named_in(module: ModuleType) -> Iterator[_Named]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "rollback" and (handler := _name_of(keyword.value, module)) is not None:
                yield _Named(handler, _step_of(node))


def _step_of(call: ast.AST) -> str | None:
    """Return the name of the step that a call makes, if the source says it."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _STEPS and call.args:
        first = call.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


def _name_of(node: ast.expr, module: ModuleType) -> str | None:
    """Return the name under which the function of an expression such as `bank.refund` is recorded."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    found: Any = vars(module).get(node.id)
    for each in path:
        if not isinstance(found, ModuleType | type):
            return None
        found = inspect.getattr_static(found, each, None)
    try:
        return handler_name(found)
    except TypeError:
        return None
