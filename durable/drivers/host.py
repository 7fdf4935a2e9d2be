"""What a driver needs from around it: the commits, the context that bodies get, and where code may run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from durable.core.effects import Call, GetRunState, PeekInbox, Save
from durable.core.records import Message
from durable.core.scope import Scope
from durable.drivers.errands import ThreadDelegate

__all__ = ["Host", "refuse_lazy_body"]


class Host(Protocol):
    """The surroundings of one pass."""

    #: Branches run one after the other, in the caller's thread.
    sequential_branches: bool
    #: Threads for branches.
    max_threads: int
    #: What those threads have the pass's own do.
    errands: ThreadDelegate

    def save(self, effect: Save) -> None:
        """Commit what the journal holds; return when it is committed."""

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        """Run `call`, `record` and a commit in one transaction of the store's database.

        `record` marks the step's entry. No other commit of the pass may take that along: it is not sure yet.
        """

    def receive(self, effect: PeekInbox) -> list[Message]:
        """Look into the run's inbox."""

    def lookup(self, effect: GetRunState) -> str | None:
        """The state of another run, or None."""

    def wait(self, seconds: float) -> None:
        """Wait in memory; less if the pass is evicted meanwhile."""

    async def async_wait(self, seconds: float) -> None:
        """Wait in memory without holding up the event loop."""

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Around the call of a user's function, in the thread or task that calls it."""

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        """Around a function in the thread that it is called in: transactions that it leaves open are an error."""

    def is_evicted(self) -> bool:
        """Whether the pass has to end."""

    def sync_context(self, scope: Scope, driver: Any) -> Any:
        """The context that a synchronous body gets."""

    def async_context(self, scope: Scope, driver: Any) -> Any:
        """The context that an asynchronous body gets."""

    def before_branches(self) -> None:
        """In the pass's own thread, before branches in others have it commit for them: nothing may be open there."""

    def branch_thread(self) -> AbstractContextManager[None]:
        """Around the branches of a fork in a thread of their own: what has to be clean before and after."""

    def branch_thread_ends(self) -> None:
        """In a branch's thread, before it ends: what has to be closed there, such as database connections."""

    def interrupted(self) -> None:
        """A step was interrupted at its timeout, wherever it was: leave nothing half-used, such as a connection."""


def refuse_lazy_body(value: Any, function: Callable[..., Any]) -> None:
    """A body must have run when its value is there. Raises TypeError for a generator or, not awaited, a coroutine."""
    if inspect.iscoroutine(value):
        value.close()
        kind, advice = "a coroutine", "write `def`, or `async def` for the workflow itself to have asynchronous bodies"
    elif inspect.isgenerator(value) or inspect.isasyncgen(value):
        kind, advice = "a generator", "repeat with ctx.loop and wait with ctx.queue.next instead of yielding"
    else:
        return
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(f"the body {name} returned {kind}, so none of its code has run: {advice}")
