"""A finding, and a rule: its id, level, reason and advice, and a function of facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from durable.lint.facts import Call, Comparison, Facts, Mutation, Operation, Start
from durable.lint.modules import Module

Level = Literal["error", "warning", "hint"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `line` counts from 1; `workflow` is the name of the workflow it was found in, "" for a whole file.

    "error": the code fails, or behaves differently when it is replayed. "warning": it may. "hint": it works, and could
    be better.
    """

    id: str
    path: str
    line: int
    workflow: str
    level: Level
    message: str
    fix: str

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """A place that breaks a rule; `fix` replaces the rule's."""

    module: Module
    line: int
    message: str
    fix: str = ""


def report(place: Operation | Call | Mutation | Start | Comparison, message: str, fix: str = "") -> Report:
    """Return a report of the line on which a fact begins."""
    return Report(place.module, getattr(place.node, "lineno", 1), message, fix)


#: Yields the places of a workflow that break a rule.
Check = Callable[[Facts], Iterator[Report]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule. `why` and `fix` are sentences."""

    id: str
    level: Level
    title: str
    why: str
    fix: str
    check: Check


#: The rules created by `rule`, in the order of their code.
MADE: Final[list[Rule]] = []


def rule(id: str, level: Level, title: str, *, why: str, fix: str) -> Callable[[Check], Check]:
    """Create a rule from the function that checks it."""

    def made(check: Check) -> Check:
        MADE.append(Rule(id=id, level=level, title=title, why=why, fix=fix, check=check))
        return check

    return made
