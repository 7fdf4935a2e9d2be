"""The host of a driver: commits, contexts for bodies, and where code may run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from durable.core.deadlocks import Deadlock
from durable.core.effects import (
    Acquire,
    Call,
    CloseLimit,
    KeyOwner,
    PeekChild,
    PeekDeadlock,
    PeekGroup,
    PeekInbox,
    PeekKey,
    PeekMembers,
    PeekRun,
    PeekTaken,
    RecoverChild,
    Reserve,
    Save,
    Supersede,
    UndoChild,
)
from durable.core.rates import Reservation
from durable.core.records import ChildRecord, Message, RunRecord
from durable.core.scope import Scope
from durable.core.slot_records import Admission
from durable.drivers.owner_thread import ThreadDelegate


class Host(Protocol):
    """The surroundings of one pass."""

    #: True to run branches one after the other, in the caller's thread.
    sequential_branches: bool
    #: The maximum number of threads for branches.
    max_threads: int
    #: Delegates calls of branch threads to the pass's own thread.
    delegate: ThreadDelegate

    def save(self, effect: Save) -> None:
        """Commit what the journal holds; return when it is committed."""

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        """Run `call`, `record` and a commit in one transaction of the store's database.

        `record` marks the step's entry. No other commit of the pass may write that entry before: it is not final yet.
        """

    def peek_inbox(self, effect: PeekInbox) -> list[Message]:
        """Query the run's inbox."""

    def peek_run(self, effect: PeekRun) -> RunRecord | None:
        """Return another run, or None."""

    def peek_child(self, effect: PeekChild) -> tuple[RunRecord | None, ChildRecord | None]:
        """Return the run of a child and, if asked for, what makes it one; None for what there is not."""

    def acquire(self, effect: Acquire) -> Admission:
        """Take slots of limits for the run, or a place in a line. Raises LeaseLost."""

    def reserve(self, effect: Reserve) -> Reservation:
        """Reserve units of a limit's rate. Raises LeaseLost."""

    def close_limit(self, effect: CloseLimit) -> None:
        """Close a limit's rate."""

    def peek_group(self, effect: PeekGroup | PeekMembers | PeekTaken) -> Any:
        """Return a group of children, some of its children, or which ids are taken, as the effect says."""

    def peek_tags(self) -> dict[str, str]:
        """Return the tags of the run, as they are stored."""

    def peek_key(self, effect: PeekKey) -> KeyOwner | None:
        """Return who has a key, None for one that is free."""

    def peek_deadlock(self, effect: PeekDeadlock) -> Deadlock | None:
        """Return why slots that are wanted can never be had, None if they can."""

    def supersede(self, effect: Supersede) -> bool:
        """Cancel the run that has a key, for a child; return False if it cannot be cancelled."""

    def undo_child(self, effect: UndoChild) -> RunRecord | None:
        """Begin the compensation of a child; return its run then, None if it is gone."""

    def recover_child(self, effect: RecoverChild) -> None:
        """Recover a failed child, unless it is gone or cannot be recovered."""

    def wait(self, seconds: float) -> None:
        """Wait in memory; less if the pass is evicted meanwhile."""

    async def async_wait(self, seconds: float) -> None:
        """Wait in memory without blocking the event loop."""

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Return the context manager around the call of a user's function, in the thread or task that calls it."""

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        """Return the context manager around a function in its own thread: transactions that it leaves open are an
        error.
        """

    def is_evicted(self) -> bool:
        """Return True if the pass has to end."""

    def sync_context(self, scope: Scope, driver: Any) -> Any:
        """Return the context for a synchronous body."""

    def async_context(self, scope: Scope, driver: Any) -> Any:
        """Return the context for an asynchronous body."""

    def before_branches(self) -> None:
        """Check, in the pass's own thread, that no transaction is open before it commits for branches in others."""

    def branch_thread(self) -> AbstractContextManager[None]:
        """Return the context manager around the branches in a thread of their own: it cleans up before and after."""

    def branch_thread_ends(self) -> None:
        """Clean up in a branch thread before it ends: close database connections, for example."""

    def interrupted(self) -> None:
        """Clean up after a timeout has interrupted a step at any point: drop a half-used connection, for example."""


def refuse_lazy_body(value: Any, function: Callable[..., Any]) -> None:
    """Raise TypeError if a body returned a generator or, unawaited, a coroutine: none of its code has run then."""
    if inspect.iscoroutine(value):
        value.close()
        kind, advice = "a coroutine", "write `def`, or `async def` for the workflow itself to have asynchronous bodies"
    elif inspect.isgenerator(value) or inspect.isasyncgen(value):
        kind, advice = "a generator", "repeat with ctx.loop and wait with ctx.queue.next instead of yielding"
    else:
        return
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(f"the body {name} returned {kind}, so none of its code has run: {advice}")
