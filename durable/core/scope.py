"""Scopes: names are unique in a scope, its operations are sequential, and its code is compared with history.

A scope is the root, a loop's iteration, a branch or a try block. Owns these decisions: whether an operation may begin
here and now, which recorded entry it matches, and, at the scope's end, whether every recorded entry was matched.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from durable.core.compatibility import unreadable
from durable.core.control_flow import BranchCancelled, ControlFlow, Evicted
from durable.core.errors import EntryInProgressError, HistoryDivergedError, OpenTransactionError, PayloadError
from durable.core.journal import Environment, Journal, Node
from durable.core.location import compensation_segment, escape, join, send_segment
from durable.core.mistakes import is_mistake
from durable.core.receipts import Receipts
from durable.core.records import Entry, EntryKind, EntryStatus, Request

__all__ = ["Branch", "Scope"]

# These two kinds are made to be inserted before entries that older code recorded.
_MAY_PRECEDE = frozenset({EntryKind.REMOVED, EntryKind.VERSION_CHECK})
_FINAL = frozenset({EntryStatus.COMPLETED, EntryStatus.EXHAUSTED})


class Branch:
    """A branch of a race or join. It is cancelled by itself or with the branch around it."""

    __slots__ = ("is_lost", "parent")

    def __init__(self, parent: Branch | None) -> None:
        self.parent = parent
        self.is_lost = False

    def is_cancelled(self) -> bool:
        """Return True if this branch, or one around it, lost its race."""
        branch: Branch | None = self
        while branch is not None:
            if branch.is_lost:
                return True
            branch = branch.parent
        return False


class Scope:
    """One scope during one pass."""

    __slots__ = (
        "_announced",
        "_compensations",
        "_random",
        "_sends",
        "_used",
        "branch",
        "busy",
        "ended_by",
        "environment",
        "has_checkpoint",
        "is_concurrent",
        "journal",
        "moment",
        "node",
        "parent",
        "receipts",
        "unawaited",
    )

    def __init__(self, journal: Journal, node: Node, parent: Scope | None = None, branch: Branch | None = None) -> None:
        self.journal = journal
        self.environment: Environment = journal.environment
        self.node = node
        self.parent: Scope | None = parent
        self.branch: Branch | None = branch or (parent.branch if parent else None)
        self.is_concurrent: bool = branch is not None or (parent is not None and parent.is_concurrent)
        self.has_checkpoint: bool = parent is not None and parent.has_checkpoint
        #: The time of the newest record that this scope's code has seen.
        self.moment: datetime = parent.moment if parent else journal.run.began_at or journal.run.created_at
        #: The operation that runs now, for error texts.
        self.busy: str | None = None
        #: The control flow that ended this scope. It is raised again at each later operation, even if the code swallows
        #: it.
        self.ended_by: ControlFlow | None = None
        #: Operations of an async scope that were called and not awaited yet.
        self.unawaited: dict[int, str] = {}
        self._announced = 0
        self.receipts: Receipts = Receipts(parent.receipts if parent else None)
        self._used: set[str] = set()
        self._sends = 0
        self._compensations = 0
        self._random: random.Random | None = None

    @property
    def location(self) -> str:
        """The scope's location; "" for the root."""
        return self.node.location

    # -- beginning an operation

    def begin(self, label: str) -> None:
        """Reserve the scope for one operation.

        Raises EntryInProgressError while another one runs, and pending control flow.
        """
        if self.busy is not None:
            self.poison(self._in_progress(self.busy, label))
        if self.unawaited:
            self.poison(self._in_progress(next(iter(self.unawaited.values())), label))
        if self.ended_by is not None:
            raise self.ended_by
        try:
            self.check_may_go_on()
        except ControlFlow as signal:
            self.ended_by = signal
            raise
        if self.environment.is_in_transaction():
            self.poison(OpenTransactionError(label))
        self.busy = label

    def expect_await(self, label: str) -> int:
        """Note that an operation was called and has to be awaited; return its key in `unawaited`."""
        self._announced += 1
        self.unawaited[self._announced] = label
        return self._announced

    def cancelled(self, label: str) -> None:
        """Note that an operation was cancelled within the event loop: unless a race is lost, code must not continue
        without it.
        """
        if self.branch is not None and self.branch.is_cancelled():
            return
        if self.journal.poison is None:
            self.journal.poison = EntryInProgressError(
                f'{label} of scope "{self.location or "the root"}" was cancelled before it had ended, by asyncio.timeout, '
                "wait_for or a task's cancel(): where it stood is not recorded. Give a step a timeout=, a receive a "
                "timeout=, or let ctx.race decide between it and a ctx.sleep"
            )

    def check_may_go_on(self) -> None:
        """Raise what has come from outside: an error of the code elsewhere, a lost race, an eviction, a request."""
        if self.journal.poison is not None:
            raise self.journal.poison
        if self.branch is not None and self.branch.is_cancelled():
            raise BranchCancelled
        if self.journal.request != Request.NONE:
            raise Evicted(self.journal.request)
        if self.environment.is_evicted() or self.environment.is_asked():  # the next pass reads the request
            raise Evicted

    def match(self, kind: EntryKind, name: str) -> Node:
        """Return the node of the operation `name`: the recorded one with its entry, or a new one without.

        Raises HistoryDivergedError if the code does not fit the history.
        """
        return self._match(kind, escape(name))

    def match_send(self, kind: EntryKind = EntryKind.SEND) -> Node:
        """Return the node of this scope's next send, or of its stand-in."""
        self._sends += 1
        return self._match(kind, send_segment(self._sends - 1))

    def match_compensation(self, kind: EntryKind = EntryKind.COMPENSATE) -> Node:
        """Return the node of this scope's next compensation, or of its stand-in."""
        self._compensations += 1
        return self._match(kind, compensation_segment(self._compensations - 1))

    def match_block(self, name: str) -> Node:
        """Return the node of a try block.

        It has no entry of its own, so a block that recorded nothing is new each time.
        """
        segment = escape(name)
        self._use(segment)
        node = self.node.child(segment)
        if node is None:
            return self.journal.attach(self.node, segment, Node(join(self.location, segment)))
        if node.entry is not None:
            self.diverged(f'expected a try block at "{node.location}", found a {node.entry.kind}', node.location)
        self.node.unvisited -= 1
        return node

    def create(self, node: Node, kind: EntryKind, **columns: Any) -> Entry:
        """Create an entry of this scope at `node`, not marked yet."""
        segment = node.location.rpartition("/")[2]
        return self.journal.create(self.node, segment, node, kind, **columns)

    def _match(self, kind: EntryKind, segment: str) -> Node:
        self._use(segment)
        node = self.node.child(segment)
        if node is None:
            if kind not in _MAY_PRECEDE and (left := self.unvisited()):
                self.diverged(
                    f'the code comes to the {kind} "{join(self.location, segment)}", which is not in the history, '
                    f"but the history goes on with {_listed(left)}",
                    *left,
                )
            return Node(join(self.location, segment))
        entry = node.entry
        if entry is None and kind != EntryKind.REMOVED:
            self.diverged(f'expected a {kind} at "{node.location}", found a try block', node.location)
        if entry is not None and entry.kind != kind and kind != EntryKind.REMOVED:
            self.diverged(f'expected a {kind} at "{node.location}", found a {entry.kind}', node.location)
        self.node.unvisited -= 1
        if self.node.unvisited and kind not in _MAY_PRECEDE and entry is not None and entry.status not in _FINAL:
            # The operation would continue now; but an unfinished entry was the last that the scope's code reached.
            left = self.left_over()
            self.diverged(
                f'the code comes to the {kind} "{node.location}", which has not ended, but the history has '
                f"{_listed(left)} before it",
                *left,
            )
        return node

    def _use(self, segment: str) -> None:
        if segment in self._used:
            where = join(self.location, segment)
            error = HistoryDivergedError(
                f'"{where}" is used twice; a name is unique within its scope. Give each operation a name of its own; '
                'to repeat one, use ctx.loop, or number the names (f"send {number}")'
            )
            error.locations = (where,)  # type: ignore[attr-defined]  # for operators
            self.poison(error)
        self._used.add(segment)

    # -- code against history

    def unvisited(self) -> list[str]:
        """Return the recorded entries that the code has not reached, of this scope or, for a new node, of one around
        it.
        """
        scope: Scope | None = self
        while scope is not None:
            if scope.node.unvisited:
                return scope.left_over()
            scope = scope.parent
        return []

    def left_over(self) -> list[str]:
        """Return the locations of this scope's recorded entries that its code has not reached, in recorded order."""
        children = self.node.children or {}
        left = [node for segment, node in children.items() if segment not in self._used]
        return [node.location for node in sorted(left, key=Node.began)]

    def finish(self, error: Exception | None = None) -> None:
        """End the scope, whose code has ended with `error`.

        Raises pending control flow, and an error for an operation under way or an entry not matched. A mistake before
        the end of the history explains more than the remaining entries do, so it is raised in place of a divergence.
        """
        if self.ended_by is not None:
            raise self.ended_by
        if self.journal.poison is not None:
            raise self.journal.poison
        if self.busy is not None or self.unawaited:
            running = self.busy or next(iter(self.unawaited.values()))
            self.poison(self._in_progress(running, "the end of the code"))
        if self.node.unvisited:
            if error is not None and is_mistake(error, self.environment.mistakes):
                self.poison(error)
            left = self.left_over()
            self.diverged(f"the code ended, but the history goes on with {_listed(left)}", *left)

    def diverged(self, problem: str, *locations: str) -> None:
        """Stop the run: its code does not fit its history."""
        where = self.location or "the root"
        error = HistoryDivergedError(
            f"in {where}: {problem}. The code has changed since this history was recorded, or does not do the same "
            "each time (a clock, dice or a query between steps). Bring the operation back, stand for it with "
            "ctx.removed(name, kind), or branch on ctx.get_version(name, latest)"
        )
        error.locations = tuple(locations)  # type: ignore[attr-defined]  # for operators
        self.poison(error)

    def recorded(
        self, location: str, what: str, text: str | None, field: str = "output", where: str | None = None
    ) -> Any:
        """Return the value of the codec text recorded at `location`, as `field`, or at the place `where` in it.

        Stops the run if this code cannot read it.
        """
        try:
            return self.environment.decode(text, field, location if where is None else where)
        except PayloadError as error:
            self.poison(unreadable(location, what, error))

    def _in_progress(self, running: str, started: str) -> EntryInProgressError:
        return EntryInProgressError(
            f'{running} of scope "{self.location or "the root"}" has not ended, but the code came to {started}: await '
            "each operation, use the context that a body receives (not the outer one), none in a step's function, "
            "and use ctx.join for concurrency"
        )

    def poison(self, error: Exception) -> NoReturn:
        """Raise an error that must stop the run even if code catches it."""
        if self.journal.poison is None:
            self.journal.poison = error
        raise error

    # -- determinism

    def observe(self, entry: Entry) -> None:
        """Note that the code has seen this record: the scope's time is not before the record's."""
        moment = entry.completed_at or entry.last_attempt_at or entry.created_at
        self.moment = max(self.moment, moment)

    @property
    def random(self) -> random.Random:
        """A generator seeded by run and location: it draws the same numbers in each pass."""
        if self._random is None:
            self._random = random.Random(f"{self.journal.run.seed or self.journal.run.id}/{self.location}")  # noqa: S311  # not for secrets
        return self._random

    def uuid4(self) -> uuid.UUID:
        """Return a UUID drawn from `random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def logger(self, base: logging.Logger) -> logging.LoggerAdapter[logging.Logger]:
        """Return `base` with run, workflow and location, silent while the code replays."""
        return _ReplayAwareLogger(base, self._is_replaying, self._log_extra())

    def _is_replaying(self) -> bool:
        return bool(self.unvisited())

    def _log_extra(self) -> dict[str, object]:
        run = self.journal.run
        return {"run_id": run.id, "workflow": run.workflow, "location": self.location}


class _ReplayAwareLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, is_replaying: Callable[[], bool], extra: dict[str, object]) -> None:
        super().__init__(logger, extra)
        self._is_replaying = is_replaying

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's name
        return not self._is_replaying() and super().isEnabledFor(level)


def _listed(locations: list[str]) -> str:
    shown = ", ".join(f'"{each}"' for each in locations[:5])
    return shown + (f" and {len(locations) - 5} more" if len(locations) > 5 else "")
