"""Each public name has an example in the reference, and the examples do what they show.

`test_pages` runs them with the other pages. Here is who must have one, and that no `except` is there for show.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import durable
from durable import context, errors, operations, testing
from durable.core.effects import StepInfo
from tests.docs import playing, stages
from tests.docs.pages import ROOT, SITE

#: Classes of which each public method and property has an example.
CLASSES: Final[dict[str, type]] = {
    "Context": durable.Context,
    "AsyncContext": durable.AsyncContext,
    "context.Queue": context.Queue,
    "context.AsyncQueue": context.AsyncQueue,
    "Child": durable.Child,
    "AsyncChild": durable.AsyncChild,
    "MapResult": durable.MapResult,
    "QueueMessage": durable.QueueMessage,
    "RollbackContext": durable.RollbackContext,
    "core.current.StepInfo": StepInfo,
    "Workflow": durable.Workflow,
    "Handle": durable.Handle,
    "Schedule": durable.Schedule,
    "operations.RunInfo": operations.RunInfo,
    "operations.Actor": operations.Actor,
    "testing.Harness": testing.Harness,
}
#: Members that durable's own modules call.
INTERNAL: Final = {
    "Workflow": {"child_request", "is_about_something", "map_requests"},
    "core.current.StepInfo": {"saves", "begun_progress", "has_emitted"},
}
#: Names that the reference has under that of their home.
HOMES: Final = {"operations.ALLOWED": "core.transitions.ALLOWED"}
#: What no test can raise: tests have no workers that could lack a workflow.
NOT_RAISED: Final = {"UndiscoveredWorkflowError"}
NOTES: Final = "notes_of_handlers"  # a module for the time of a test
EXAMPLE_PAGES: Final = sorted(
    path.relative_to(ROOT).as_posix() for path in (SITE / "reference" / "examples").glob("*.md")
)


def examples_of_the_site() -> dict[str, list[str]]:
    """The examples, as the site's extension finds them."""
    spec = importlib.util.spec_from_file_location("docs_examples", SITE / "_ext" / "examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = list(module.examples())
    assert len(found) == len(dict(found)), "a name has two sections"
    return dict(found)


def members(cls: type) -> list[str]:
    own = [each for each in cls.__mro__ if each.__module__.startswith("durable.") and "models" not in each.__module__]
    shown = {
        name
        for each in own
        for name, value in vars(each).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    }
    return sorted(shown)


def needed() -> set[str]:
    names = {*durable.__all__, *(f"operations.{name}" for name in operations.__all__)}
    names |= {f"testing.{name}" for name in testing.__all__}
    names |= {f"errors.{name}" for name in errors.__all__ if name not in durable.__all__}
    for prefix, cls in CLASSES.items():
        names |= {f"{prefix}.{name}" for name in members(cls) if name not in INTERNAL.get(prefix, ())}
    return {f"durable.{HOMES.get(name, name)}" for name in names}


def test_every_public_name_has_an_example() -> None:
    assert len(needed()) > 250
    assert sorted(needed() - examples_of_the_site().keys()) == []


def test_an_example_is_of_a_name_that_exists() -> None:
    for name in examples_of_the_site():
        parts = name.split(".")
        module, rest = next(
            (found, parts[count:])
            for count in range(len(parts), 0, -1)
            if (found := importable(".".join(parts[:count]))) is not None
        )
        reduce(getattr, rest, module)


def importable(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


class _Handlers(ast.NodeTransformer):
    """Let each handler of an exception note that it was entered."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        assert node.type is not None
        name = ast.unparse(node.type).removeprefix("errors.")
        self.names.add(name)
        note = ast.parse(f"import {NOTES}; {NOTES}.entered({name!r})").body
        node.body = [*(ast.copy_location(each, node.body[0]) for each in note), *node.body]
        return ast.fix_missing_locations(node)


@pytest.mark.django_db
@pytest.mark.parametrize("name", EXAMPLE_PAGES)
def test_an_example_raises_each_error_that_it_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: set[str] = set()
    handlers = _Handlers()

    def instrumented(source: str, path: str | Path, mode: str, **more: Any) -> Any:
        return compile(handlers.visit(ast.parse(source, str(path))), path, mode, **more)

    notes = ModuleType(NOTES)
    vars(notes)["entered"] = entered.add
    monkeypatch.setitem(sys.modules, NOTES, notes)
    monkeypatch.setattr(playing, "compile", instrumented, raising=False)
    with playing.play(name) as (player, document), stages.of(name, player, document.namespace):
        for example in document.examples():
            example.evaluate()
    assert handlers.names - entered <= NOT_RAISED
