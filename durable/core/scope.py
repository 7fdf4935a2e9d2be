"""Scopes: the root, a loop's iteration, a branch or a try block, during one pass.

A scope holds together what its operations need: the cursor in its history (`replay_cursor`), the guard of its
operations (`operation_guard`), its clock and dice (`determinism`), and the messages that it received (`receipts`). It
decides nothing itself.
"""

from __future__ import annotations

from typing import Any

from durable.core.compatibility import unreadable
from durable.core.determinism import Determinism
from durable.core.errors import PayloadError
from durable.core.journal import Environment, Journal, Node
from durable.core.operation_guard import Branch, OperationGuard
from durable.core.receipts import Receipts
from durable.core.records import EntryKind, EntryRecord
from durable.core.replay_cursor import ReplayCursor


class Scope:
    """One scope during one pass."""

    __slots__ = (
        "awaited",
        "branch",
        "cursor",
        "determinism",
        "environment",
        "guard",
        "has_checkpoint",
        "is_concurrent",
        "journal",
        "location",
        "receipts",
    )

    def __init__(self, journal: Journal, node: Node, parent: Scope | None = None, branch: Branch | None = None) -> None:
        self.journal = journal
        self.environment: Environment = journal.environment
        #: The scope's location; "" for the root.
        self.location: str = node.location
        #: What the code of an async scope has returned to be awaited; None for others.
        self.awaited: Any = None
        self.branch: Branch | None = branch or (parent.branch if parent else None)
        self.is_concurrent: bool = branch is not None or (parent is not None and parent.is_concurrent)
        self.has_checkpoint: bool = parent is not None and parent.has_checkpoint
        self.cursor: ReplayCursor = ReplayCursor(journal, node, parent.cursor if parent else None)
        self.guard: OperationGuard = OperationGuard(journal, node.location, self.branch)
        self.determinism: Determinism = Determinism(journal.run, node.location, parent.determinism if parent else None)
        self.receipts: Receipts = Receipts(parent.receipts if parent else None)

    def create(self, node: Node, kind: EntryKind, **columns: Any) -> EntryRecord:
        """Create an entry of this scope at `node`, not marked yet."""
        segment = node.location.rpartition("/")[2]
        return self.journal.create(self.cursor.node, segment, node, kind, **columns)

    def finish(self, error: Exception | None = None) -> None:
        """End the scope, whose code has ended with `error`.

        Raises pending control flow, and an error for an operation under way or an entry not matched.
        """
        self.guard.finish()
        self.cursor.finish(error)

    def recorded(
        self, location: str, what: str, text: str | None, field: str = "output", where: str | None = None
    ) -> Any:
        """Return the value of the codec text recorded at `location`, as `field`, or at the place `where` in it.

        Stops the run if this code cannot read it.
        """
        try:
            return self.environment.decode(text, field, location if where is None else where)
        except PayloadError as error:
            self.journal.stop(unreadable(location, what, error))
