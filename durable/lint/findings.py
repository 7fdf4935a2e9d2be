"""A finding, and the parts of a rule: an id, a level, why it exists, what to do, and a function of facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from durable.lint.facts import Facts
from durable.lint.modules import Module

Level = Literal["error", "warning", "hint"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `line` counts from 1; `workflow` is the name of the workflow it was found in, "" for a whole file.

    "error": the code fails, or does other things when it is replayed. "warning": it may. "hint": it works, and could be
    better.
    """

    id: str
    path: str
    line: int
    workflow: str
    level: Level
    message: str
    fix: str

    def as_data(self) -> dict[str, str | int]:
        """Return the finding as JSON has it."""
        return {
            "id": self.id,
            "path": self.path,
            "line": self.line,
            "workflow": self.workflow,
            "level": self.level,
            "message": self.message,
            "fix": self.fix,
        }


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
