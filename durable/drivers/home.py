"""From an event loop to the thread that waits for it, where the connection and the transactions of a pass are.

Owns how a call gets there and that it is whole: one that has been given stays until it has ended, even if who awaits it is
cancelled. asgiref takes a user's function there with its context and with the loop that it may call back into. The
engine's own calls need neither, and go straight to the executor that asgiref keeps for the thread, at half the price.
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
        """Have it called there; its outcome."""
        if self._executor is None:
            return asyncio.ensure_future(_through_asgiref(function, args))
        return asyncio.get_running_loop().run_in_executor(self._executor, _outcome, function, args)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call it there; what it returns or raises."""
        return unwrapped(await finish_before_cancel(self.submit(function, *args)))


def _executor() -> Executor | None:
    """None if asgiref keeps it no longer under this name, which it does not document."""
    found = getattr(getattr(AsyncToSync, "executors", None), "current", None)
    return found if isinstance(found, Executor) else None


async def call_there(function: Callable[..., T], *args: Any) -> T:
    """Call what calls a user's function in the thread that waits for the running loop; what it returns or raises."""
    return unwrapped(await finish_before_cancel(_through_asgiref(function, args)))


def _outcome(function: Callable[..., T], args: tuple[Any, ...]) -> Outcome[T]:
    try:
        return function(*args), None
    except BaseException as error:
        return None, error


_through_asgiref = sync_to_async(_outcome)


def unwrapped(outcome: Outcome[T]) -> T:
    """Return or raise it."""
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


async def finish_before_cancel(awaitable: Awaitable[T]) -> T:
    """Await what must not be left half-done: a cancellation waits until it has ended."""
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
