"""The parts of a rule: an id, a level, why it exists, what to do, and a function of facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from durable.lint.facts import Facts
from durable.lint.findings import Level
from durable.lint.modules import Module


@dataclass(frozen=True, slots=True)
class Report:
    """A place that breaks a rule; `fix` replaces the rule's."""

    module: Module
    line: int
    message: str
    fix: str = ""


class Rule(ABC):
    """A rule. `why` and `fix` are sentences."""

    id: ClassVar[str]
    level: ClassVar[Level]
    title: ClassVar[str]
    why: ClassVar[str]
    fix: ClassVar[str]

    @abstractmethod
    def check(self, facts: Facts) -> Iterator[Report]:
        """Yield the places of a workflow that break the rule."""
