"""Places where code and history differ, as data for the texts that advise what to write in the code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: The kind of a try block, a branch or an iteration, which have no entry of their own.
BLOCK = "block"


class DivergenceKind(StrEnum):
    """A way in which code and history differ."""

    ADDED = "added"  # the code has an operation that the history lacks; the history continues with others
    REMOVED = "removed"  # the code has ended, and the history continues
    SKIPPED = "skipped"  # the code has come to the waiting operation too early: the history has others before it
    KIND = "kind"  # the recorded operation is of another kind
    CHANGED = "changed"  # the kind is the same, but the record differs
    USED_TWICE = "used_twice"  # the code uses a name twice in its scope


@dataclass(frozen=True, slots=True)
class OperationAt:
    """An operation: its kind (`EntryKind`, or BLOCK) and its location."""

    kind: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The place where the code of a scope and its history differ.

    `code` is the operation that the code has come to, None for the end of its code. `recorded` are the first recorded
    operations that the code has not reached, or the one that it contradicts, in recorded order. `raised` is the error
    that has ended the code.
    """

    kind: DivergenceKind
    scope: str
    problem: str
    code: OperationAt | None
    recorded: tuple[OperationAt, ...]
    raised: Exception | None = None
