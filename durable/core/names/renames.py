"""Renamed operations, workflows and queues: names that stand for one thing, because a migration has renamed it.

Owns the names of each thing, and which of them is the oldest. Must not know what they name.

Owns the canonical location, which is the oldest. Operations are matched, idempotency keys made and random numbers
seeded by it, so that code with either name continues a run. A process knows the renames that were put in force in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from durable.core.location import ITERATION_PATTERN, check_location, parent


class AliasKind(StrEnum):
    """The kind of thing that a name names."""

    WORKFLOW = "workflow"
    QUEUE = "queue"


class Alias(NamedTuple):
    """A thing renamed from `old` to `new`."""

    kind: AliasKind
    old: str
    new: str


class Aliases:
    """Renames of one kind, the oldest first. Raises ValueError for a name that stands for two things."""

    __slots__ = ("_names",)

    def __init__(self, renames: Iterable[Alias] = ()) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        for each in renames:
            self.add(each)

    def add(self, rename: Alias) -> None:
        """Record that both names stand for one thing. Raises ValueError if the new one names another thing."""
        names = self.names(rename.old)
        if rename.new in names:
            return
        if (others := self._names.get(rename.new)) is not None:
            raise ValueError(
                f'"{rename.new}" is a name of the {rename.kind} "{others[0]}", which was renamed: it cannot be that of '
                f'"{rename.old}" too; choose another name'
            )
        self._names |= dict.fromkeys((*names, rename.new), (*names, rename.new))

    def names(self, name: str) -> tuple[str, ...]:
        """Return all names of the thing with this name, the oldest first."""
        return self._names.get(name, (name,))

    def first(self, name: str) -> str:
        """Return the oldest name of the thing with this name."""
        return self.names(name)[0]

    def is_same(self, name: str, other: str) -> bool:
        """Return True if both names stand for one thing."""
        return name == other or other in self.names(name)


_ITERATION: Final = re.compile("~[0-9]+")
_NUMBERED: Final = re.compile("(?:send|compensate)~[0-9]+")


class Rename(NamedTuple):
    """An operation of a workflow, renamed from `old` to `new`: locations, in which "~" is any iteration of a loop."""

    workflow: str
    old: str
    new: str


class Names:
    """The renames of one workflow, the oldest first. Raises ValueError for a name that stands for two operations."""

    __slots__ = ("_roots", "_scopes")

    def __init__(self, renames: Iterable[Rename]) -> None:
        #: The oldest segment, by scope (canonical, "~" for an iteration) and segment.
        self._roots: dict[str, dict[str, str]] = {}
        self._scopes: dict[str, str] = {}
        for each in renames:
            self._add(each)

    def _add(self, rename: Rename) -> None:
        roots = self._roots.setdefault(self._scope(parent(rename.old)), {})
        old, new = rename.old.rpartition("/")[2], rename.new.rpartition("/")[2]
        root = roots.get(old, old)
        if new in (*roots, *roots.values()) and roots.get(new, new) != root:
            raise ValueError(
                f'"{rename.new}" of {rename.workflow} was the name of another operation, "{roots.get(new, new)}", which '
                "was renamed: old records may still be of that one; choose another name"
            )
        roots.setdefault(old, root)
        roots[new] = root
        self._scopes.clear()

    def canonical(self, location: str) -> str:
        """Return the oldest form of a location."""
        return "/".join(self._segments(location.split("/")))

    def segments(self, location: str) -> list[str]:
        """Return the segments of the oldest form of a location."""
        return list(self._segments(location.split("/")))

    def segment(self, scope: str, segment: str) -> str:
        """Return the oldest form of a segment in the scope at this location."""
        roots = self._roots.get(self._scope(scope))
        return segment if roots is None else roots.get(segment, segment)

    def _segments(self, segments: list[str]) -> Iterator[str]:
        scope = ""
        for each in segments:
            roots = self._roots.get(scope)
            found = each if roots is None else roots.get(each, each)
            yield found
            general = ITERATION_PATTERN if _ITERATION.fullmatch(found) else found
            scope = f"{scope}/{general}" if scope else general

    def _scope(self, location: str) -> str:
        """Return the canonical pattern of a scope's location."""
        if not location:
            return ""
        found = self._scopes.get(location)
        if found is None:
            segments = self._segments(location.split("/"))
            found = "/".join(ITERATION_PATTERN if _ITERATION.fullmatch(each) else each for each in segments)
            if len(self._scopes) < _MOST_SCOPES:
                self._scopes[location] = found
        return found


_MOST_SCOPES: Final = 1_000


class _InForce(NamedTuple):
    """The renames that a process knows: of operations by each name of their workflow, of workflows and of queues."""

    steps: Mapping[str, Names]
    workflows: Aliases
    queues: Aliases


_known = _InForce({}, Aliases(), Aliases())
_is_settled = False  # set within `in_force`


def names_of(workflow: str) -> Names | None:
    """Return the renamed operations of a workflow that are in force; None if there are none."""
    return _known.steps.get(workflow)


def names_of_workflow(workflow: str) -> tuple[str, ...]:
    """Return all names in force of a workflow, the oldest first."""
    return _known.workflows.names(workflow)


def names_of_queue(queue: str) -> tuple[str, ...]:
    """Return all names in force of a queue, the oldest first. A worker that serves one of them serves all."""
    return _known.queues.names(queue)


def canonical_workflow(workflow: str) -> str:
    """Return the oldest name of a workflow."""
    return _known.workflows.first(workflow)


def is_same_workflow(workflow: str, other: str) -> bool:
    """Return True if both are names of one workflow."""
    return workflow == other or _known.workflows.is_same(workflow, other)


def canonical(workflow: str, location: str) -> str:
    """Return the oldest form of a location in runs of the workflow."""
    names = _known.steps.get(workflow)
    return location if names is None or not location else names.canonical(location)


def is_same(workflow: str, location: str, other: str) -> bool:
    """Return True if, in runs of the workflow, both locations are of one operation."""
    return location == other or canonical(workflow, location) == canonical(workflow, other)


def _taken_together(renames: Iterable[Rename | Alias]) -> _InForce:
    """Combine these renames, the oldest first.

    Raises ValueError for a name that stands for two operations, workflows or queues.
    """
    renames = list(renames)
    workflows, queues = (
        Aliases(each for each in renames if isinstance(each, Alias) and each.kind == kind)
        for kind in (AliasKind.WORKFLOW, AliasKind.QUEUE)
    )
    by_workflow: dict[str, list[Rename]] = {}
    for each in renames:
        if isinstance(each, Rename):
            by_workflow.setdefault(workflows.first(each.workflow), []).append(each)
    steps = {
        name: names
        for first, found in by_workflow.items()
        for names in (Names(found),)
        for name in workflows.names(first)
    }
    return _InForce(steps, workflows, queues)


def put_in_force(renames: Iterable[Rename | Alias]) -> None:
    """Replace the renames in force in this process by these, the oldest first.

    Has no effect within `in_force`.
    """
    global _known  # one value, replaced whole, that threads of passes read without a lock
    if not _is_settled:
        _known = _taken_together(renames)


def put_queues_in_force(renames: Iterable[Alias]) -> None:
    """Replace the names of queues in force in this process by these, the oldest first; keep all others.

    So a pass under way keeps the names of operations with which it began. Has no effect within `in_force`.
    """
    global _known  # see `put_in_force`
    if not _is_settled:
        _known = _known._replace(queues=Aliases(renames))


@contextmanager
def in_force(renames: Iterable[Rename | Alias]) -> Iterator[None]:
    """Use exactly these renames within the block, whatever else is put in force meanwhile."""
    global _known, _is_settled  # see `put_in_force`
    before = _known, _is_settled
    _known, _is_settled = _taken_together(renames), True
    try:
        yield
    finally:
        _known, _is_settled = before


def check_pattern(old: str, new: str) -> None:
    """Raise TypeError or ValueError unless these are locations that differ only in the last name."""
    for each in (old, new):
        check_location(each)
        if not each or not all(each.split("/")):
            raise ValueError(
                f'"{each}" is not a location: write the names from the root to the operation, joined by "/"'
            )
        for segment in each.split("/"):
            if "~" in segment and segment != ITERATION_PATTERN:
                what = "a number" if _NUMBERED.fullmatch(segment) else "one iteration"
                raise ValueError(f'"{segment}" of "{each}" names {what}: "~" stands for any iteration of a loop')
    if parent(old) != parent(new):
        raise ValueError(
            f'"{old}" and "{new}" are in different scopes: an operation is renamed within its scope, so that the '
            "locations differ in the last name alone"
        )
    if ITERATION_PATTERN in (old.rpartition("/")[2], new.rpartition("/")[2]):
        raise ValueError(f'"{old}" ends with an iteration, which has no name: rename the loop')
    if old == new:
        raise ValueError(f'"{old}" is the name already')
