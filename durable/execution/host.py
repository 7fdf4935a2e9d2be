"""The host of one pass: it connects a driver with the pass's environment, commits, queries, events and threads.

Composes the parts of a pass, and owns what a pass does to its threads. Must not decide anything by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import connections

from durable.conf import conf
from durable.context import AsyncContext, Context
from durable.core.control_flow import Evicted
from durable.core.effects import Ask, Call, Operation, Save
from durable.core.journal import Journal
from durable.core.records import RunRecord
from durable.core.scope import Scope
from durable.drivers.threads import ThreadDelegate
from durable.execution.commits import CHANGES, CommitSession
from durable.execution.connections import (
    Origin,
    abandon_transactions,
    close_broken_connections,
    close_stale_connections,
    restore_sessions,
)
from durable.execution.environment import Eviction, PassEnvironment
from durable.execution.events import PassEvents
from durable.execution.open_transactions import OpenTransactions
from durable.execution.queries import PassQueries
from durable.runtime import Runtime
from durable.store import Store


class PassHost:
    """The `durable.drivers.host.Host` of one pass of `run`."""

    #: What notes the changes of the pass.
    journal_class: type[Journal] = Journal

    def __init__(
        self, run: RunRecord, store: Store, eviction: Eviction, at: Runtime, mistakes: tuple[type[Exception], ...]
    ) -> None:
        self.sequential_branches = at.sequential_branches
        self.max_threads = conf.MAX_BRANCH_THREADS
        self.delegate = ThreadDelegate()
        self.events = PassEvents(run, at.on_call)
        self._eviction = eviction
        self._sleep = at.sleep
        self._on_operation = at.on_operation
        self._origin = Origin(run.id)
        self._transactions = OpenTransactions(self._origin.end_forked_child, at.roll_back_inside)
        self._queries = PassQueries(run, store, self.delegate)
        self.environment = PassEnvironment(
            run, at, eviction=eviction, transactions=self._transactions, events=self.events, mistakes=mistakes
        )
        history = self._queries.history()
        self.journal = self.journal_class(run, history, self.environment, history.limits, history.saved)
        self._commits = CommitSession(
            self.journal,
            store,
            eviction=eviction,
            transactions=self._transactions,
            events=self.events,
            delegate=self.delegate,
            notify=at.notify,
            copied=at.copied,
        )

    # -- the store

    @property
    def left_to_notify(self) -> frozenset[str]:
        """The queues of the runs that the commit which has ended the pass has made due."""
        return self._commits.left_to_notify

    def save(self, effect: Save) -> None:
        self._origin.end_forked_child()
        self._commits.save(effect)

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        self._commits.save_atomically(effect, call, record)

    def ask(self, question: Ask) -> Any:
        self._origin.end_forked_child()
        return self._commits.ask(question) if type(question) in CHANGES else self._queries.ask(question)

    # -- time

    def is_evicted(self) -> bool:
        return self._eviction.requested

    def wait(self, seconds: float) -> None:
        (self._sleep or self._eviction.wait)(seconds)

    async def async_wait(self, seconds: float) -> None:
        if self._sleep is None:
            await asyncio.sleep(seconds)
        else:
            self._sleep(seconds)

    # -- calls of users' functions

    def sync_context(self, scope: Scope, driver: Any) -> Context:
        return Context(scope, self._telling(driver))

    def async_context(self, scope: Scope, driver: Any) -> AsyncContext:
        return AsyncContext(scope, self._telling(driver))

    def _telling(self, driver: Any) -> Any:
        return driver if self._on_operation is None else _Telling(driver, self._on_operation)

    def calling(self, call: Call) -> AbstractContextManager[None]:
        self._origin.end_forked_child()
        if self._eviction.is_lost:  # the last chance to notice: another worker would do the same work again
            raise Evicted
        self.events.before_call(call)
        if self.events.observation.is_idle:
            return self._transactions.step
        return self._observed(call)

    @contextmanager
    def _observed(self, call: Call) -> Iterator[None]:
        with self._transactions.step, self.events.observation.calling(call):
            try:
                yield
            finally:
                self._origin.end_forked_child()

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        around = self._transactions.function(f'step "{call.name}"', is_atomic=call.record is not None)
        if call.record is not None or self.delegate.is_owner():  # its commit, in this thread, restores the session
            return around
        return _restoring_after(around)

    def interrupted(self) -> None:
        close_broken_connections()

    # -- threads of branches

    def before_branches(self) -> None:
        self._commits.rollback_leftovers(already_failing=False)

    @contextmanager
    def branch_thread(self) -> Iterator[None]:
        self._transactions.enter_branch_thread()
        # the thread may have waited for long, see `durable.drivers.threads`
        close_stale_connections(all_connections=True)
        try:
            yield
        finally:
            abandon_transactions()
            restore_sessions()

    def branch_thread_ends(self) -> None:
        connections.close_all()  # a connection belongs to its thread


@contextmanager
def _restoring_after(around: AbstractContextManager[None]) -> Iterator[None]:
    """Restore the sessions after a step in a branch's thread: another thread commits it, and more steps follow here."""
    try:
        with around:
            yield
    finally:
        restore_sessions()


class _Telling:
    """A driver that tells of each operation before it begins."""

    __slots__ = ("_driver", "_tell")

    def __init__(self, driver: Any, tell: Callable[[Scope, str, Operation], None]) -> None:
        self._driver = driver
        self._tell = tell

    def operate(self, scope: Scope, label: str, operation: Operation) -> Any:
        self._tell(scope, label, operation)
        return self._driver.operate(scope, label, operation)
