"""Run functions in the synchronous thread that started the event loop: it owns the pass's connection and transactions.

Owns how a call gets there, and that it is not cut short: a call that was submitted runs to its end, even if the
awaiting task is cancelled. asgiref calls a user's function there with its context and with the loop that it may call
back into. The engine's own calls need neither, and go straight to the executor that asgiref keeps for the thread, at
half the cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, sync_to_async

__all__ = ["LoopDelegate", "Outcome", "call_there", "finish_before_cancel", "unwrapped"]

T = TypeVar("T")

#: What a function returned or raised, as a value: a future that is given a StopIteration never ends.
Outcome = tuple[T | None, BaseException | None]


class LoopDelegate:
    """The thread that waits for the running loop, for calls of the engine's."""

    def __init__(self) -> None:
        self._executor = _executor()

    def submit(self, function: Callable[..., T], *args: Any) -> asyncio.Future[Outcome[T]]:
        """Call the function in that thread; return a future of its outcome."""
        if self._executor is None:
            return asyncio.ensure_future(_through_asgiref(function, args))
        return asyncio.get_running_loop().run_in_executor(self._executor, _outcome, function, args)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call the function in that thread; return what it returns or raise what it raises."""
        return unwrapped(await finish_before_cancel(self.submit(function, *args)))


def _executor() -> Executor | None:
    """Return asgiref's executor; None if asgiref no longer has it under this undocumented name."""
    found = getattr(getattr(AsyncToSync, "executors", None), "current", None)
    return found if isinstance(found, Executor) else None


async def call_there(function: Callable[..., T], *args: Any) -> T:
    """Call, in the thread that waits for the running loop, a function that calls user code; return or raise its
    outcome.
    """
    return unwrapped(await finish_before_cancel(_through_asgiref(function, args)))


def _outcome(function: Callable[..., T], args: tuple[Any, ...]) -> Outcome[T]:
    try:
        return function(*args), None
    except BaseException as error:
        return None, error


_through_asgiref = sync_to_async(_outcome)


def unwrapped(outcome: Outcome[T]) -> T:
    """Return the outcome's value or raise its error."""
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


async def finish_before_cancel(awaitable: Awaitable[T]) -> T:
    """Await what must not be cut short: a cancellation takes effect when it has ended."""
    future = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        raise cancelled
    return future.result()
