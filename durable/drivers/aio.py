"""The asynchronous driver: branches are tasks, an async step is cancelled at its timeout.

Commits and synchronous functions run in the thread that called the driver (`thread_sensitive`), so that the ORM and
transactions of that thread are at hand; the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from durable.core.current import running_step
from durable.core.effects import Body, Call, Effect, Fork, Lookup, Operation, Pause, Receive, Save
from durable.core.errors import ControlFlow, Evicted
from durable.core.scope import Scope
from durable.drivers.host import Host, refuse_lazy_body
from durable.drivers.sync import call_atomically, call_unawaited, exited, within_timeout

__all__ = ["AsyncDriver"]

T = TypeVar("T")


class AsyncDriver:
    """Performs effects on the running event loop."""

    def __init__(self, host: Host) -> None:
        self.host = host

    # -- operations

    def operate(self, scope: Scope, label: str, operation: Operation) -> Coroutine[Any, Any, Any]:
        """One operation of a scope, to be awaited; the scope notices if it is not."""
        return _Operation(self._operate(scope, label, operation), scope, label)

    async def _operate(self, scope: Scope, label: str, operation: Operation) -> Any:
        scope.begin(label)
        try:
            return await self.drive(operation)
        except ControlFlow as signal:
            scope.signal = signal
            raise
        except asyncio.CancelledError:
            scope.cancelled(label)
            raise
        finally:
            scope.busy = None

    async def drive(self, operation: Operation) -> Any:
        """Perform the operation's effects until it returns."""
        try:
            effect = next(operation)
            while True:
                try:
                    outcome = await self._perform(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(outcome)
        except StopIteration as stop:
            return stop.value

    async def _perform(self, effect: Effect) -> Any:
        return await _PERFORMERS[type(effect)](self, effect)

    # -- effects

    async def _save(self, effect: Save) -> None:
        await _in_thread(self.host.save, effect)

    async def _call(self, effect: Call) -> Any:
        if effect.record is not None:
            return await self._call_atomically(effect)
        if not inspect.iscoroutinefunction(effect.function):
            return await self._call_sync(effect)
        with self.host.calling(effect), running_step(effect.info):
            return await within_timeout(effect, effect.function(*effect.args))

    async def _call_sync(self, effect: Call) -> Any:
        # A function may also be plain and return an awaitable, such as a lambda or a partial.
        with self.host.calling(effect):
            value = await _in_thread(call_unawaited, effect, self.host)
            if not inspect.isawaitable(value):
                return value
            with running_step(effect.info):
                return await within_timeout(effect, value)

    async def _call_atomically(self, effect: Call) -> Any:
        if inspect.iscoroutinefunction(effect.function):
            raise TypeError(
                f'step "{effect.name}" is atomic, so its function must be synchronous: a database transaction stays in '
                "one thread. Write it with def; it may be called from an async workflow"
            )
        return await _in_thread(call_atomically, effect, self.host)

    async def _body(self, effect: Body) -> Any:
        context = self.host.async_context(effect.scope, self)
        try:
            value = effect.function(context, *effect.args)
            if inspect.isawaitable(value):
                return await value
        except SystemExit as error:
            raise exited(effect, error) from error
        refuse_lazy_body(value, effect.function)
        return value

    async def _receive(self, effect: Receive) -> Any:
        return await _in_thread(self.host.receive, effect)

    async def _lookup(self, effect: Lookup) -> Any:
        return await _in_thread(self.host.lookup, effect)

    async def _pause(self, effect: Pause) -> None:
        await self.host.async_wait(effect.seconds)
        if self.host.is_evicted():
            raise Evicted

    # -- branches

    async def _fork(self, effect: Fork) -> None:
        if self.host.runs_in_turn:
            for branch in effect.branches:
                if effect.is_decided():
                    return
                await self.drive(branch)
            return
        tasks: set[asyncio.Future[Any]] = {asyncio.ensure_future(self.drive(each)) for each in effect.branches}
        try:
            await _until_decided(tasks, effect.is_decided)
        finally:
            await _cancelled(tasks)


class _Operation(Coroutine[Any, Any, Any]):
    """An operation's coroutine; its scope knows of it until it is begun."""

    __slots__ = ("_coroutine", "_has_begun", "_scope", "_token")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: Scope, label: str) -> None:
        self._coroutine = coroutine
        self._scope = scope
        self._token = scope.announce(label)
        self._has_begun = False

    def _begin(self) -> Coroutine[Any, Any, Any]:
        self._has_begun = True
        self._scope.unawaited.pop(self._token, None)
        return self._coroutine

    def __await__(self) -> Any:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begin().throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __del__(self) -> None:
        if not self._has_begun:  # the scope says so as an error, Python need not warn of it as well
            self._coroutine.close()


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a synchronous function in the thread that called the driver; whole, whatever happens meanwhile."""
    value, error = await _whole(sync_to_async(_outcome)(function, args))
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


def _outcome(function: Callable[..., T], args: tuple[Any, ...]) -> tuple[T | None, BaseException | None]:
    """What it returned or raised, as a value: a future that is given a StopIteration never ends."""
    try:
        return function(*args), None
    except BaseException as error:
        return None, error


async def _until_decided(tasks: set[asyncio.Future[Any]], is_decided: Callable[[], bool]) -> None:
    pending = set(tasks)
    while pending and not is_decided():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _cancelled(tasks: set[asyncio.Future[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


async def _whole(awaitable: Awaitable[T]) -> T:
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


_PERFORMERS: dict[type, Callable[[AsyncDriver, Any], Awaitable[Any]]] = {
    Save: AsyncDriver._save,
    Call: AsyncDriver._call,
    Body: AsyncDriver._body,
    Receive: AsyncDriver._receive,
    Lookup: AsyncDriver._lookup,
    Pause: AsyncDriver._pause,
    Fork: AsyncDriver._fork,
}
