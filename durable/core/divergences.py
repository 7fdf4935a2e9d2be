"""Places where code and history part, as data for what tells people and programs what to write in the code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Stands for the kind of a try block, a branch or an iteration, which have no entry of their own.
BLOCK = "block"


class DivergenceKind(StrEnum):
    """A way in which code and history part."""

    ADDED = "added"  # the code comes to an operation that is not in the history, which goes on with others
    REMOVED = "removed"  # the code has ended, and the history goes on
    SKIPPED = "skipped"  # the code comes to the operation that waits, and the history has others before it
    KIND = "kind"  # the operation has another kind
    CHANGED = "changed"  # the operation is of the same kind, and differs in what is recorded of it
    USED_TWICE = "used_twice"  # the code uses a name of its scope again


@dataclass(frozen=True, slots=True)
class OperationAt:
    """An operation: its kind (`EntryKind`, or BLOCK) and its location."""

    kind: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The place where the code of a scope and its history part.

    `code` is the operation that the code has come to, None for the end of its code. `recorded` are the first operations
    of the history that the code has not reached, or the one that it contradicts, in recorded order. `raised` is the
    error with which the code has ended.
    """

    kind: DivergenceKind
    scope: str
    problem: str
    code: OperationAt | None
    recorded: tuple[OperationAt, ...]
    raised: Exception | None = None
