"""The asynchronous driver: branches are tasks, and an async step is cancelled at its timeout.

Commits and synchronous functions run in the thread that waits for the loop, so that they use the ORM and the
transactions of that thread (`durable.drivers.threads`); the event loop runs in another thread meanwhile. Most commits
of a body without branches are sent from the loop itself (`durable.drivers.loop_commits`). The synchronous functions of
branches run in threads of their own, as in a synchronous workflow, except for atomic steps. Branches that commit at the
same time share a commit. What the code awaits on another loop, in a thread of its own, is handed over alone: tasks of
different loops cannot wait for each other. Must not decide anything: operations do.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from durable.core.control_flow import ControlFlow, Evicted
from durable.core.current import running_scope, running_step
from durable.core.effects import SAVE, Ask, Body, Call, Effect, Fork, Operation, Save, ShortSleep
from durable.core.scope import Scope
from durable.core.words import is_readable, kind_of
from durable.drivers import loop_threads
from durable.drivers.host import (
    Host,
    SentSaves,
    body_failure,
    call_atomically,
    call_unawaited,
    refuse_lazy_body,
    within_timeout,
)
from durable.drivers.threads import LoopDelegate, Outcome, call_in_branch_thread, unwrapped

if TYPE_CHECKING:
    from durable.drivers.loop_commits import LoopCommits


class AsyncDriver:
    """Performs effects on an event loop."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._owner: LoopDelegate
        self._loop: asyncio.AbstractEventLoop  # of the newest body; its code may await operations on another one
        self._commits: LoopCommits | None = None  # of the newest body
        self._spare_threads: asyncio.Semaphore
        self._forks = 0  # under way: then other branches wait for the owner's thread
        self._gathering: _Gathering | None = None
        self._passing: list[BaseException] = []

    def with_loops(self, operation: Operation) -> Operation:
        """Return `operation` for the synchronous driver, with its bodies performed here.

        The bodies run one after the other, each on an event loop that nothing else uses meanwhile.
        """
        effect, value = _resumed(operation.send, None)
        while effect is not None:
            if isinstance(effect, Body):
                effect, value = self._looped(operation, effect)
                continue
            try:
                outcome = yield effect
            except BaseException as error:
                effect, value = _resumed(operation.throw, error)
            else:
                effect, value = _resumed(operation.send, outcome)
        return value

    def _looped(self, operation: Operation, effect: Body) -> tuple[Effect | None, Any]:
        try:
            return loop_threads.run(self._run_body, operation, effect, self.host.sent_saves())
        finally:
            if self._commits is not None:  # an interruption may have come before the body
                self._commits.end()

    async def _run_body(self, operation: Operation, effect: Body, saves: SentSaves | None) -> tuple[Effect | None, Any]:
        """Return the operation's next effect, which it may reach while tasks left by the body still run."""
        from durable.drivers.loop_commits import LoopCommits

        self._owner = LoopDelegate()
        self._loop = asyncio.get_running_loop()
        self._commits = LoopCommits(self._owner, saves)
        self._spare_threads = asyncio.Semaphore(max(1, self.host.max_threads))
        self._forks = 0
        try:
            outcome = await self._body(effect)
        except BaseException as error:
            return _resumed(operation.throw, error)
        finally:
            self._commits.leave()
        return _resumed(operation.send, outcome)

    # -- operations

    def operate(self, scope: Scope, label: str, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of one operation of a scope; the scope notices if it is not awaited."""
        return _Operation(self._operate(scope, label, operation), scope, label)

    async def _operate(self, scope: Scope, label: str, operation: Operation) -> Any:
        scope.guard.begin(label)
        try:
            return await self.drive(operation)
        except ControlFlow as ending:
            scope.guard.ended_by = ending
            if (task := asyncio.current_task()) is not None:
                task.add_done_callback(_note_end)
            raise
        except asyncio.CancelledError:
            scope.guard.note_cancelled(label)
            raise
        except Exception:
            raise
        # not raised by the body's code: it passes through the body from the engine below
        except BaseException as error:
            self._passing.append(error)
            raise
        finally:
            scope.guard.busy = None

    async def drive(self, operation: Operation) -> Any:
        """Perform the operation's effects until it returns."""
        effect: Effect | _Unawaited | None
        effect, value = _resumed(operation.send, None)
        while effect is not None:
            if isinstance(effect, Save) and effect.is_failure:
                effect, value = await self._owner.call_user_code(self._save_and_go_on, operation, effect)
                continue
            if isinstance(effect, Call) and self._is_done_there(effect):
                effect, value = await self._owner.call_user_code(self._call_and_go_on, operation, effect)
                continue
            try:
                outcome = await _PERFORMERS[type(effect)](self, effect)
            except BaseException as error:
                effect, value = _resumed(operation.throw, error)
            else:
                effect, value = _resumed(operation.send, outcome)
        return value

    # In the owner's thread. What is cancelled there takes effect when all of it has ended.

    def _save_and_go_on(self, operation: Operation, effect: Save) -> tuple[Effect | None, Any]:
        """Save, and return the operation's next effect that is not a save.

        Meanwhile a failure is sent to receivers, which may use the ORM.
        """
        following: Effect | None = effect
        value = None
        while isinstance(following, Save):
            try:
                self.host.save(following)
            except BaseException as error:
                following, value = _resumed(operation.throw, error)
            else:
                following, value = _resumed(operation.send, None)
        return following, value

    def _is_done_there(self, effect: Call) -> bool:
        """Return whether the call, its record and the commit are one hand-over: a plain function, without branches."""
        is_plain = effect.record is None and not inspect.iscoroutinefunction(effect.function)
        return is_plain and not self._forks and not self.host.is_observed

    def _call_and_go_on(self, operation: Operation, effect: Call) -> tuple[Effect | _Unawaited | None, Any]:
        """Call a step's plain function, save, and return the operation's next effect that is not a save."""
        try:
            with (calling := self.host.calling(effect)):
                value = call_unawaited(effect, self.host)
            if inspect.isawaitable(value):
                return _Unawaited(effect, value, calling), None
        except BaseException as error:
            following, value = _resumed(operation.throw, error)
        else:
            following, value = _resumed(operation.send, value)
        if isinstance(following, Save):
            return self._save_and_go_on(operation, following)
        return following, value

    # -- effects

    def _is_here(self) -> bool:
        """Return whether the running loop is the body's."""
        return asyncio.get_running_loop() is self._loop

    async def _save(self, effect: Save) -> None:
        if effect == SAVE and self._is_here():
            await self._save_gathered()
        else:
            await self._owner.call(self.host.save, effect)

    async def _save_gathered(self) -> None:
        """Save the journal, together with the branches that ask for it before the save begins."""
        gathering = self._gathering
        if gathering is None or gathering.has_begun:
            if not self._forks and self._commits is not None and (ended := self._commits.begin()) is not None:
                unwrapped(await ended)
                return
            gathering = self._gathering = _Gathering()
            gathering.save = self._owner.submit(gathering.begin, self.host)
            unwrapped(await gathering.save)
            return
        _, error = await gathering.save
        if error is not None:  # the error may concern the other branch only
            await self._owner.call(self.host.save, SAVE)

    async def _call(self, effect: Call) -> Any:
        if effect.record is not None:
            return await self._call_atomically(effect)
        if not inspect.iscoroutinefunction(effect.function):
            return await self._call_sync(effect)
        with self.host.calling(effect), running_step(effect.info):
            return await within_timeout(effect, effect.function(*effect.args), self.host)

    async def _call_sync(self, effect: Call) -> Any:
        # A plain function may also return an awaitable: a lambda or a partial, for example.
        with self.host.calling(effect):
            value = await self._call_unawaited(effect)
            if not inspect.isawaitable(value):
                return value
            with running_step(effect.info):
                return await within_timeout(effect, value, self.host)

    async def _await(self, effect: _Unawaited) -> Any:
        with effect.calling, running_step(effect.call.info):
            return await within_timeout(effect.call, effect.value, self.host)

    async def _call_unawaited(self, effect: Call) -> Any:
        """Call a step's function in the owner's thread; in a thread of its own while there are branches."""
        if not self._forks or self.host.max_threads <= 1 or not self._is_here():
            return await self._owner.call_user_code(call_unawaited, effect, self.host)
        async with self._spare_threads:
            call = partial(call_unawaited, effect, self.host)
            return await call_in_branch_thread(call, self.host.branch_thread, self.host.branch_thread_ends)

    async def _call_atomically(self, effect: Call) -> Any:
        if inspect.iscoroutinefunction(effect.function):
            raise TypeError(
                f'step "{effect.name}" is atomic, so its function must be synchronous: a database transaction stays in '
                "one thread. Write it with def; it may be called from an async workflow"
            )
        return await self._owner.call_user_code(call_atomically, effect, self.host)

    async def _body(self, effect: Body) -> Any:
        context = self.host.async_context(effect.scope, self)
        try:
            with running_scope(effect.scope):
                value = effect.function(context, *effect.args)
                if inspect.isawaitable(value):
                    effect.scope.awaited = value
                    return await value
        except BaseException as error:
            if is_readable(error):
                failure = None if self._is_ours(error) else body_failure(effect, error, self.host)
                if failure is None:
                    raise
                raise failure from error
            kind = kind_of(error)
        else:
            kind = ""
        if kind:  # outside the handler, so that it does not become the error's context
            raise RuntimeError(f"{kind} was raised, an exception whose attributes cannot be read")
        refuse_lazy_body(value, effect.function)
        return value

    def _is_ours(self, error: BaseException) -> bool:
        """Return True if the error does not come from the body's code.

        It comes from the engine below, or the body's task is cancelled or closed.
        """
        if any(error is each for each in self._passing):
            return True
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            return False
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs: the coroutine is closed
            return True
        return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0

    async def _ask(self, effect: Ask) -> Any:
        return await self._owner.call(self.host.ask, effect)

    async def _short_sleep(self, effect: ShortSleep) -> None:
        await self.host.async_wait(effect.seconds)
        if self.host.is_evicted():
            raise Evicted

    # -- branches

    async def _fork(self, effect: Fork) -> None:
        if self.host.sequential_branches:
            for branch in effect.branches:
                if effect.is_decided():
                    return
                await self.drive(branch)
            return
        self._forks += len(effect.branches) > 1
        tasks: set[asyncio.Future[Any]] = {asyncio.ensure_future(self.drive(each)) for each in effect.branches}
        try:
            await _until_decided(tasks, effect.is_decided)
        finally:
            try:
                await _cancelled(tasks)
            finally:
                self._forks -= len(effect.branches) > 1


class _Operation(Coroutine[Any, Any, Any]):
    """An operation's coroutine; its scope lists it as unawaited until it begins."""

    __slots__ = ("_coroutine", "_has_begun", "_scope", "_token")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: Scope, label: str) -> None:
        self._coroutine = coroutine
        self._scope = scope
        self._token = scope.guard.expect_await(label)
        self._has_begun = False

    def _begin(self) -> Coroutine[Any, Any, Any]:
        self._has_begun = True
        guard = self._scope.guard
        guard.unawaited.pop(self._token, None)
        guard.begun = self._token
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
        if not self._has_begun:  # the scope reports it as an error, so Python need not warn too
            self._coroutine.close()


@dataclass(frozen=True, slots=True)
class _Unawaited:
    """What a plain function has returned, to be awaited within `calling`, which is entered again."""

    call: Call
    value: Awaitable[Any]
    calling: AbstractContextManager[None]


class _Gathering:
    """A save that includes all changes that branches make before it begins."""

    __slots__ = ("has_begun", "save")

    def __init__(self) -> None:
        self.has_begun = False
        self.save: asyncio.Future[Outcome[None]]

    def begin(self, host: Host) -> None:
        self.has_begun = True
        host.save(SAVE)


def _note_end(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task ended by the end of the pass: asyncio would log an exception that nobody
    awaits.
    """
    if not task.cancelled():
        task.exception()


def _resumed(resume: Callable[[Any], Effect], value: Any) -> tuple[Effect | None, Any]:
    """Send or throw `value` into an operation; return its next effect, or None and its return value."""
    try:
        return resume(value), None
    except StopIteration as stop:
        return None, stop.value


async def _until_decided(tasks: set[asyncio.Future[Any]], is_decided: Callable[[], bool]) -> None:
    ended: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    for _ in tasks:
        if is_decided():
            return
        (await ended.get()).result()


async def _cancelled(tasks: set[asyncio.Future[Any]]) -> None:
    """Cancel the tasks that still run, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


_PERFORMERS: defaultdict[type, Callable[[AsyncDriver, Any], Awaitable[Any]]] = defaultdict(
    lambda: AsyncDriver._ask,  # every other class is a question
    {
        Save: AsyncDriver._save,
        Call: AsyncDriver._call,
        Body: AsyncDriver._body,
        ShortSleep: AsyncDriver._short_sleep,
        Fork: AsyncDriver._fork,
        _Unawaited: AsyncDriver._await,
    },
)
