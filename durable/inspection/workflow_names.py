"""The names of one workflow: its page and its figures are the same under each name that a migration has given it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from durable.conf import conf
from durable.core import registry
from durable.core.registry import WorkflowDefinition
from durable.core.renames import names_of_workflow
from durable.models.renames import learn_names

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkflow:
    """A workflow with all its names, the oldest first. `definition` is its code, None if this process has none."""

    names: tuple[str, ...]
    definition: WorkflowDefinition | None

    @property
    def name(self) -> str:
        """The name to show: that of the code, or else the newest."""
        return self.names[-1] if self.definition is None else self.definition.name

    @property
    def other_names(self) -> tuple[str, ...]:
        """The names that are not shown, the oldest first."""
        return tuple(each for each in self.names if each != self.name)

    def among(self, found: Mapping[str, T]) -> T | None:
        """Return what the mapping has by one of the names, first by that to show; None if it has nothing."""
        return next((found[each] for each in (self.name, *self.names) if each in found), None)


def workflow_of(name: str) -> NamedWorkflow:
    """Return what has this name, whether or not code or a run has it; one statement."""
    learn_names(conf.DATABASE)
    return _known(name)


def each_once(names: Iterable[str]) -> list[NamedWorkflow]:
    """Return the workflows that have these names, each once, sorted by the name to show; one statement."""
    learn_names(conf.DATABASE)
    found = {each.name: each for each in map(_known, names)}
    return [found[name] for name in sorted(found)]


def _known(name: str) -> NamedWorkflow:
    names = names_of_workflow(name)
    in_code = next((each for each in reversed(names) if each in registry.registry), None)
    return NamedWorkflow(names=names, definition=None if in_code is None else registry.get(in_code))
