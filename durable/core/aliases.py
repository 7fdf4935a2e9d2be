"""Names that stand for one thing, because a migration has renamed it: workflows and queues.

Owns which names those are, and which of them is the oldest. Must not know what they name.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class AliasKind(StrEnum):
    """The kind of thing that a name is of."""

    WORKFLOW = "workflow"
    QUEUE = "queue"


class Alias(NamedTuple):
    """A thing that was named `old` and is named `new`."""

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
        """Have both names stand for one thing. Raises ValueError for a name of another thing."""
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
        """Return all names of what has this name, the oldest first."""
        return self._names.get(name, (name,))

    def first(self, name: str) -> str:
        """Return the oldest name of what has this name."""
        return self.names(name)[0]

    def is_same(self, name: str, other: str) -> bool:
        """Return True if both are names of one thing."""
        return name == other or other in self.names(name)
