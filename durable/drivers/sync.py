"""The synchronous driver: branches are threads, and a step is interrupted at its timeout.

Must not decide anything: operations do.
"""

from __future__ import annotations

import contextvars
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from durable.core.control_flow import ControlFlow, Evicted
from durable.core.current import running_scope
from durable.core.effects import Ask, Body, Call, Effect, Fork, Operation, Save, ShortSleep
from durable.core.scope import Scope
from durable.drivers import threads
from durable.drivers.host import Host, body_failure, call_atomically, call_readably, call_step, refuse_lazy_body


class SyncDriver:
    """Performs effects in the calling thread, and branches in a few more."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._passing: list[BaseException] = []
        # tokens, not a semaphore: the main thread may be interrupted while a semaphore's lock is held
        self._spare_threads: list[None] = [None] * (host.max_threads if host.max_threads > 1 else 0)

    # -- operations

    def operate(self, scope: Scope, label: str, operation: Operation) -> Any:
        scope.guard.begin(label)
        try:
            return self.drive(operation)
        except ControlFlow as ending:
            scope.guard.ended_by = ending
            raise
        except Exception:
            raise
        # not raised by the body's code: it passes through the body from the engine below
        except BaseException as error:
            self._passing.append(error)
            raise
        finally:
            scope.guard.busy = None

    def drive(self, operation: Operation) -> Any:
        """Perform the operation's effects until it returns."""
        try:
            effect = next(operation)
            while True:
                try:
                    outcome = self._perform(effect)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(outcome)
        except StopIteration as stop:
            return stop.value

    def _perform(self, effect: Effect) -> Any:
        return _PERFORMERS[type(effect)](self, effect)

    # -- effects

    def _save(self, effect: Save) -> None:
        self.host.save(effect)

    def _call(self, effect: Call) -> Any:
        if effect.record is None:
            return call_step(effect, self.host)
        return call_atomically(effect, self.host)

    def _body(self, effect: Body) -> Any:
        context = self.host.sync_context(effect.scope, self)
        try:
            with running_scope(effect.scope):
                value = call_readably(effect.function, context, *effect.args)
        except BaseException as error:
            failure = None if any(error is each for each in self._passing) else body_failure(effect, error, self.host)
            if failure is None:
                raise
            raise failure from error
        refuse_lazy_body(value, effect.function)
        return value

    def _ask(self, effect: Ask) -> Any:
        return self.host.ask(effect)

    def _short_sleep(self, effect: ShortSleep) -> None:
        self.host.wait(effect.seconds)
        if self.host.is_evicted():
            raise Evicted

    # -- branches

    def _fork(self, effect: Fork) -> None:
        branches = _Branches(effect, self.drive)
        if self.host.sequential_branches:
            branches.drive()
        elif self.host.delegate.is_owner():
            self._serve(branches)
        else:
            self._share(branches)
        if branches.errors:
            raise branches.errors[0]

    def _serve(self, branches: _Branches) -> None:
        """Serve the other threads: the pass's own thread commits for them."""
        self.host.before_branches()
        helpers: list[Callable[[], object]] = []
        try:
            with self.host.delegate.served() as serving:
                if len(branches.waiting) > 1:
                    helpers += self._helpers(branches, len(branches.waiting), serving.leave)
                serving.serve(len(helpers))
        # raised by a signal handler: it must not end the fork before the branches have ended
        except Exception as error:
            branches.errors.append(error)
        branches.drive()  # those that no helper has begun
        for wait_for_helper in helpers:
            wait_for_helper()

    def _share(self, branches: _Branches) -> None:
        """Execute branches in the calling thread too, so that a fork within a branch needs no spare thread."""
        helpers = list(self._helpers(branches, len(branches.waiting) - 1))
        branches.drive()
        for wait_for_helper in helpers:
            wait_for_helper()

    def _helpers(
        self, branches: _Branches, count: int, leave: Callable[[], object] = lambda: None
    ) -> Iterator[Callable[[], object]]:
        """Start up to `count` threads that drive branches and call `leave`; yield the functions that wait for them."""
        for _ in range(count):
            try:
                self._spare_threads.pop()
            except IndexError:
                return
            work = partial(contextvars.copy_context().run, self._help, branches, leave)
            yield threads.run(work, self.host.branch_thread_ends)

    def _help(self, branches: _Branches, leave: Callable[[], object]) -> None:
        try:
            with self.host.branch_thread():
                branches.drive()
        finally:
            self._spare_threads.append(None)
            leave()


class _Branches:
    """The branches of one fork that no thread has begun yet, and the errors raised by the others."""

    def __init__(self, effect: Fork, drive: Callable[[Operation], object]) -> None:
        self.waiting = deque(effect.branches)
        self.errors: list[BaseException] = []
        self._is_decided = effect.is_decided
        self._drive = drive

    def drive(self) -> None:
        """Drive one branch after the other in this thread, until none waits or the fork is decided."""
        while not self._is_decided():
            try:
                branch = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._drive(branch)
            except BaseException as error:  # raised again in the forking thread
                self.errors.append(error)
                return


_PERFORMERS: defaultdict[type, Callable[[SyncDriver, Any], Any]] = defaultdict(
    lambda: SyncDriver._ask,  # every other class is a question
    {
        Save: SyncDriver._save,
        Call: SyncDriver._call,
        Body: SyncDriver._body,
        ShortSleep: SyncDriver._short_sleep,
        Fork: SyncDriver._fork,
    },
)
