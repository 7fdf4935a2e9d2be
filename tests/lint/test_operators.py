"""What the linter knows of durable's own names is what durable has."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_args

from durable import AsyncContext, Child, Context, Workflow
from durable.context import Queue
from durable.core.options import StepPolicy
from durable.core.records import WhenParentEnds
from durable.core.results import QueueMessage
from durable.lint import known
from durable.lint.rules.starts import CHOICES
from durable.operations.start_options import IfOpen, Keep, WhenDeleted, WhenFull


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_the_operations_are_those_of_the_contexts() -> None:
    names = known.methods_of("Context") | known.PLAIN
    for context in (Context, AsyncContext):
        assert public(context) | {"logger"} <= names
    assert names - public(Context) <= {"logger", "map"}
    assert public(Queue) == known.methods_of("Queue")
    assert public(Child) - {"handle"} == known.methods_of("Child")
    assert public(QueueMessage) >= known.MESSAGE_METHODS


def test_the_operations_whose_first_argument_is_a_name_are_known() -> None:
    kinds = {"Context": Context, "Queue": Queue, "Child": Child}
    methods = {name: vars(kind)[name] for kind_name, kind in kinds.items() for name in known.methods_of(kind_name)}
    assert [name for name, method in methods.items() if not inspect.isfunction(method)] == [], "these go into PLAIN"
    first = {name: list(inspect.signature(method).parameters)[1] for name, method in methods.items()}
    unlike = {"publish"}  # a value may be published again under its name
    assert known.named() == {name for name, parameter in first.items() if parameter == "name"} - unlike


def test_the_options_are_those_of_steps() -> None:
    assert {each.name for each in fields(StepPolicy)} == known.step_options()


def test_the_options_are_those_of_starts() -> None:
    parameters = inspect.signature(Workflow.using).parameters
    assert set(CHOICES) <= set(parameters)
    assert set(parameters) - {"self"} == known.start_options()
    assert set(CHOICES["if_open"]) == set(get_args(IfOpen))
    assert set(CHOICES["keep"]) == set(get_args(Keep))
    assert set(CHOICES["when_full"]) == set(get_args(WhenFull))
    assert set(CHOICES["when_deleted"]) == set(get_args(WhenDeleted))
    assert set(CHOICES["when_parent_ends"]) == {str(each) for each in WhenParentEnds}
    assert all(hasattr(Workflow, name) for name in known.START_METHODS)
