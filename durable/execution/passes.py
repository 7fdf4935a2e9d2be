"""One pass of a run: load its history, drive the engine through it, return the outcome.

Owns the assembly of a pass (its environment, commits, queries, events and threads), and its effects on threads. Must
not decide what a workflow does next: the engine does.

The second replay of the test harness and the check of histories against new code are passes over a run's records alone:
they call no function, query no store, write nothing, and end at the first operation that is not recorded.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NoReturn, cast

from django.db import Error, connections

from durable import carriers, guard, link_tokens, runtime
from durable.conf import conf
from durable.context import AsyncContext, Context
from durable.core import registry
from durable.core.compatibility import unreadable
from durable.core.control_flow import ControlFlow, Evicted, NotRestored
from durable.core.current import leave_code_around, running_workflow
from durable.core.divergences import OperationAt
from durable.core.effects import Ask, Call, Operation, Save
from durable.core.errors import CarrierError, HistoryDivergedError, PayloadError
from durable.core.garbage import without_collections
from durable.core.journal import Event, Journal, Node
from durable.core.links import PeekAddress
from durable.core.records import LONG_HISTORY, TOO_LONG_HISTORY, EntryKind, EntryRecord, Request, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.run_pass import PassOutcome, PassPolicy, PassWants, Slots, run_pass
from durable.core.scope import Scope
from durable.core.simple_operations import PeekTags
from durable.core.time_limits import History
from durable.drivers.aio import AsyncDriver
from durable.drivers.host import SentSaves
from durable.drivers.sync import SyncDriver
from durable.drivers.threads import ThreadDelegate
from durable.execution.commits import CHANGES, CommitSession
from durable.execution.connections import (
    OpenTransactions,
    Origin,
    abandon_transactions,
    close_broken_connections,
    close_stale_connections,
    restore_sessions,
)
from durable.execution.environment import Eviction, PassEnvironment, PassEvents
from durable.execution.queries import PassQueries
from durable.instrumentation import observers
from durable.mistakes import mistakes_of
from durable.runtime import Runtime
from durable.store import Store

__all__ = ["PassOutcome", "execute_pass"]


class PassHost:
    """The `durable.drivers.host.Host` of one pass of `run`."""

    #: Holds the history and the changes of the pass.
    journal_class: type[Journal] = Journal

    def __init__(
        self,
        run: RunRecord,
        store: Store,
        eviction: Eviction,
        at: Runtime,
        mistakes: tuple[type[Exception], ...],
        definition: WorkflowDefinition | None = None,
    ) -> None:
        self.sequential_branches = at.sequential_branches
        self.max_threads = conf.MAX_BRANCH_THREADS
        self.delegate = ThreadDelegate()
        self.events = PassEvents(run, at.on_call)
        self._eviction = eviction
        self._sleep = at.sleep
        self._on_operation = at.on_operation
        self._run = run
        self._origin = Origin(run.id)
        self._transactions = OpenTransactions(self._origin.end_forked_child, at.roll_back_inside)
        self._queries = PassQueries(run, store, self.delegate)
        self.environment = PassEnvironment(
            run, at, eviction=eviction, transactions=self._transactions, events=self.events, mistakes=mistakes
        )
        history = self._queries.history()
        with without_collections():
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
            definition=definition,
        )

    @property
    def is_observed(self) -> bool:
        return not self.events.observation.is_idle

    # -- the store

    @property
    def left_to_notify(self) -> frozenset[str]:
        """The queues of the runs made due by the commit that ended the pass."""
        return self._commits.left_to_notify

    def save(self, effect: Save) -> None:
        self._origin.end_forked_child()
        self._commits.save(effect)

    def sent_saves(self) -> SentSaves | None:
        return self._commits.sent_saves(self._origin.end_forked_child)

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
        around = self._transactions.step if self.events.observation.is_idle else self._observed(call)
        if self._run.carried is not None and inspect.iscoroutinefunction(call.function):
            return _both(around, self._restored())
        return around

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Put in force what travels with the run; end the pass if that fails."""
        with ExitStack() as around:
            try:
                around.enter_context(carriers.restored(self._run))
            except CarrierError as error:
                if self.journal.poison is None:
                    self.journal.poison = error
                raise NotRestored(error) from error
            yield

    @contextmanager
    def _observed(self, call: Call) -> Iterator[None]:
        with self._transactions.step, self.events.observation.calling(call):
            try:
                yield
            finally:
                self._origin.end_forked_child()

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        around = self._transactions.function(f'step "{call.name}"', is_atomic=call.record is not None)
        if self._run.carried is not None:
            around = _both(around, self._restored())
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
    """Restore the sessions after a step in a branch's thread: another thread commits the step, and more steps follow
    here.
    """
    try:
        with around:
            yield
    finally:
        restore_sessions()


@contextmanager
def _both(outer: AbstractContextManager[None], inner: AbstractContextManager[None]) -> Iterator[None]:
    with outer, inner:
        yield


class _Telling:
    """A driver that reports each operation before it begins."""

    __slots__ = ("_driver", "_tell")

    def __init__(self, driver: Any, tell: Callable[[Scope, str, Operation], None]) -> None:
        self._driver = driver
        self._tell = tell

    def operate(self, scope: Scope, label: str, operation: Operation) -> Any:
        self._tell(scope, label, operation)
        return self._driver.operate(scope, label, operation)


logger = logging.getLogger("durable.pass")


def execute_pass(record: RunRecord, *, store: Store, eviction: Eviction, at: Runtime | None = None) -> PassOutcome:
    """Execute one pass of a claimed run. Raises LeaseLost or PassAborted if nothing more may or can be written.

    The caller notifies the queues that the outcome names: a worker may claim their runs itself.
    """
    at = at or runtime.current()
    definition = _definition(record, store, at)
    host = PassHost(record, store, eviction, at, mistakes_of(definition), definition)
    if definition is not None:
        host.journal.when_exhausted = definition.when_exhausted
    policy = PassPolicy(
        max_crashes=conf.MAX_CRASHES,
        divergence_grace=conf.DIVERGENCE_GRACE if at.divergence_grace is None else at.divergence_grace,
    )
    operation = run_pass(host.journal, _call_of(definition, host), policy, _slots_of(definition, host))
    if definition is not None and definition.is_async:
        operation = AsyncDriver(host).with_loops(operation)

    def drive() -> PassOutcome:
        leave_code_around()
        with running_workflow(record.id, record.workflow), observers.observe_pass(record, at.now) as observation:
            host.events.observation = observation
            outcome: PassOutcome = _driven(host, record, operation)
            observation.outcome = outcome
            return outcome

    # in a context of its own: context variables of a workflow reach no other run, and the caller's context does not
    # grow
    try:
        outcome = contextvars.copy_context().run(drive)
    except BaseException:
        at.notify(host.left_to_notify)
        raise
    if isinstance(host.journal.poison, HistoryDivergedError):
        _learn_names(store)
    queues = host.left_to_notify | {record.queue} if outcome.due_now else host.left_to_notify
    is_long = host.journal.has_more_entries_than(LONG_HISTORY)
    if is_long and host.journal.has_more_entries_than(TOO_LONG_HISTORY):
        host.events.history_too_long()
    return replace(outcome, queues_to_notify=queues, is_long=is_long) if queues or is_long else outcome


def _driven(host: PassHost, record: RunRecord, operation: Operation) -> PassOutcome:
    """Drive the pass with what travels with the run in force. If that fails, the pass calls nothing of the run."""
    with ExitStack() as around:
        try:
            around.enter_context(carriers.restored(record))
        except CarrierError as error:
            host.journal.not_restored = error
        outcome: PassOutcome = SyncDriver(host).drive(operation)
        return outcome


def _learn_names(store: Store) -> None:
    """Read renamed operations again for the next try: a migration may have renamed what did not fit."""
    try:
        store.learn_names()
    except Error as error:
        logger.warning("cannot read what was renamed: %s: %s", type(error).__name__, error)


def _definition(record: RunRecord, store: Store, at: Runtime) -> WorkflowDefinition | None:
    try:
        return registry.get(record.workflow)
    except registry.UnknownWorkflowError as error:
        if (found := _found(record.workflow, store, at)) is not None:
            return found
        if record.state != RunState.ROLLING_BACK:
            about = {"run_id": record.id, "workflow": record.workflow}
            logger.error("run %s waits for a worker that knows its workflow: %s", record.id, error, extra=about)
        return None


def _found(workflow: str, store: Store, at: Runtime) -> WorkflowDefinition | None:
    """Return the definition that this process has outside of the registry or under another name; None without one."""
    if at.find_workflow is not None and (found := at.find_workflow(workflow)) is not None:
        return found
    _learn_names(store)
    try:
        return registry.get(workflow)
    except registry.UnknownWorkflowError:
        return None


def _slots_of(definition: WorkflowDefinition | None, host: PassHost) -> Slots | None:
    """Return the slots that the workflow's limits require for a pass of the run; None for a workflow without limits."""
    if definition is None or definition.limits is None:
        return None
    limits = definition.limits

    def wanted() -> PassWants:
        args, kwargs, _ = _arguments(host)
        return PassWants(rates=limits.rates(args, kwargs), slots=limits.wants(args, kwargs))

    return wanted


def _arguments(host: PassHost) -> tuple[list[Any], dict[str, Any], Any]:
    """Return a fresh copy of the workflow's arguments, and the moment of the schedule's tick, or None."""
    try:
        given = host.environment.decode_input()
    except PayloadError as error:
        # whatever the history goes on with: the code has not begun
        host.journal.poison = unreadable("", "the input", error)
        raise host.journal.poison from error
    return given["args"], given["kwargs"], given.get("scheduled_for")


def _call_of(definition: WorkflowDefinition | None, host: PassHost) -> Callable[[Any], Any] | None:
    """Return the workflow's function, bound to a fresh copy of its input; None without a definition."""
    if definition is None:
        return None

    is_watched = guard.begin_pass()

    def call(context: Any) -> Any:
        args, kwargs, host.journal.scheduled_for = _arguments(host)
        if is_watched:
            return guard.with_unchanged_input(
                context._scope, definition.function, context, args, kwargs, is_async=definition.is_async
            )
        return definition.function(context, *args, **kwargs)

    call.__qualname__ = getattr(definition.function, "__qualname__", definition.name)
    return call


class NotRecorded(ControlFlow):
    """The records do not say how the code continues."""


class RecordedHost(PassHost):
    """The host of a pass over the records of one run: each effect ends the pass with `NotRecorded`."""

    def __init__(self, run: RunRecord, history: History, at: Runtime) -> None:
        store = cast("Store", _Records(history))
        super().__init__(run, store, Eviction(), at, ())
        self.environment.emit = _ignore
        self.journal.limits = None  # a deadline that has passed now had not passed when it was recorded
        self.journal.request = Request.NONE

    def _end(self, *_args: Any, **_options: Any) -> NoReturn:
        raise NotRecorded

    calling = calling_here = save = save_atomically = wait = _end

    def ask(self, question: Ask) -> Any:
        if isinstance(question, PeekAddress):
            found = link_tokens.address(in_test=True)
            return found._replace(is_recorded=True)
        # the creation of the tags' entry is refused
        return {} if isinstance(question, PeekTags) else self._end()

    async def async_wait(self, _seconds: float) -> None:
        self._end()

    def sent_saves(self) -> None:
        return None


class RefusingJournal(Journal):
    """A journal that ends the pass at the first operation that is not recorded.

    Operations that may be inserted before recorded ones are excepted. In a fork, an unrecorded operation ends only its
    branch; the other branches continue.
    """

    _INSERTED = frozenset({EntryKind.REMOVED, EntryKind.VERSION_CHECK})
    _FORKS = frozenset({EntryKind.JOIN, EntryKind.RACE})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The operations that the code has come to and that are not recorded completely; one for each branch.
        self.not_answered: list[OperationAt] = []

    def create(self, scope: Node, segment: str, node: Node, kind: EntryKind, **columns: Any) -> EntryRecord:
        if kind not in self._INSERTED:
            self._refuse(kind, node.location)
        return super().create(scope, segment, node, kind, **columns)

    def update(self, entry: EntryRecord, **columns: Any) -> None:
        if entry.kind not in self._INSERTED and not (entry.kind in self._FORKS and "status" not in columns):
            self._refuse(entry.kind, entry.location)
        super().update(entry, **columns)

    def _refuse(self, kind: str, location: str) -> NoReturn:
        self.not_answered.append(OperationAt(kind, location))
        raise NotRecorded


def _ignore(event: Event) -> None:
    """Do nothing: the operation is not part of a worker's pass."""


class _Records:
    """The part of a store that this host needs: the records of one run."""

    def __init__(self, history: History) -> None:
        self._history = history

    def load(self, _run_id: str) -> History:
        return self._history
