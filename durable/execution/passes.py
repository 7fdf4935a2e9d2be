"""One pass of a run: the host of the engine while it executes a workflow once.

Owns the commits of a pass, the threads' connections, and turning the engine's events into signals and log messages. A
pass that cannot reach the store, or has lost its lease, ends without writing anything more: the database is the truth.
Must not decide what a workflow does next: the engine does.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import Any

from django.db import InternalError, connections
from django.db.transaction import TransactionManagementError

from durable import runtime, signals
from durable.codec.binding import binding
from durable.conf import conf
from durable.context import AsyncContext, Context
from durable.core import registry
from durable.core.compatibility import unreadable
from durable.core.control_flow import ControlFlow, Evicted, LeaseLost, PassAborted
from durable.core.current import running_workflow
from durable.core.effects import Call, GetRunState, PeekInbox, Save
from durable.core.errors import STOPPED, PayloadError
from durable.core.ids import new_id
from durable.core.journal import Event, Journal
from durable.core.places import Place
from durable.core.records import Batch, Committed, Entry, Message, RunPatch, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.run_pass import PassOutcome, PassPolicy, run_pass
from durable.core.scope import Scope
from durable.drivers.aio import AsyncDriver
from durable.drivers.errands import ThreadDelegate
from durable.drivers.sync import SyncDriver
from durable.execution.commit_retry import retry_commit
from durable.execution.connections import (
    DATABASE_TROUBLE,
    SESSION_TROUBLE,
    abandon_transactions,
    close_stale_connections,
    restore_sessions,
)
from durable.execution.eviction import LEASE_LOST, Eviction
from durable.execution.forks import Origin
from durable.execution.open_transactions import OpenTransactions, in_transaction
from durable.instrumentation import observers
from durable.mistakes import mistakes_of
from durable.runtime import Runtime
from durable.store import Store, sessions
from durable.store.atomic import BROKEN

__all__ = ["PassOutcome", "execute_pass", "may_have_history"]

logger = logging.getLogger("durable.pass")

#: What Django and PostgreSQL raise for a statement after an error that code in the same transaction has caught.
_BROKEN_TRANSACTION = (TransactionManagementError, InternalError)


def execute_pass(record: RunRecord, *, store: Store, eviction: Eviction, at: Runtime | None = None) -> PassOutcome:
    """Execute one pass of a claimed run. Raises LeaseLost or PassAborted if nothing more may or can be written."""
    at = at or runtime.current()
    definition = _definition(record, at)
    surroundings = PassHost(record, store, eviction, at, mistakes_of(definition))
    policy = PassPolicy(
        max_crashes=conf.MAX_CRASHES,
        divergence_grace=conf.DIVERGENCE_GRACE if at.divergence_grace is None else at.divergence_grace,
    )
    operation = run_pass(surroundings.journal, surroundings.call_of(definition), policy)
    if definition is not None and definition.is_async:
        operation = AsyncDriver(surroundings).with_loops(operation)

    def drive() -> PassOutcome:
        with running_workflow(record.id, record.workflow), observers.observe_pass(record, at.now) as surroundings.watch:
            outcome: PassOutcome = SyncDriver(surroundings).drive(operation)
            surroundings.watch.outcome = outcome
            return outcome

    # in a context of its own: context variables of a workflow reach no other run, and the caller's context does not
    # grow
    return surroundings.finished(contextvars.copy_context().run(drive))


def _definition(record: RunRecord, at: Runtime) -> WorkflowDefinition | None:
    try:
        return registry.get(record.workflow)
    except registry.UnknownWorkflowError as error:
        if at.find_workflow is not None and (found := at.find_workflow(record.workflow)) is not None:
            return found
        if record.state != RunState.ROLLING_BACK:
            about = {"run_id": record.id, "workflow": record.workflow}
            logger.error("run %s waits for a worker that knows its workflow: %s", record.id, error, extra=about)
        return None


class PassHost:
    """The host of the drivers and the environment of the engine, for one pass."""

    def __init__(
        self, record: RunRecord, store: Store, eviction: Eviction, at: Runtime, mistakes: tuple[type[Exception], ...]
    ) -> None:
        self.run = record
        self.store = store
        self.eviction = eviction
        self.codec = at.codec
        self._binding = binding(at.codec)
        self.now: Callable[[], datetime] = at.now
        self.notify = at.notify
        self.rest = at.sleep or eviction.wait
        self.observe = at.on_call
        self.watch = observers.NO_OBSERVATION
        self.worker = record.worker
        self.short_sleep = conf.SHORT_SLEEP if at.short_sleep is None else at.short_sleep
        self.step_timeout = conf.STEP_TIMEOUT
        self.mistakes = mistakes
        self.sequential_branches = at.sequential_branches
        self.max_threads = conf.MAX_BRANCH_THREADS
        self.delegate = ThreadDelegate()
        self._origin = Origin(record.id)
        self._transactions = OpenTransactions(self._origin.end_strays)
        self._commit_lock = threading.Lock()
        self._written = 0  # the journal's count of taken changes that are committed
        self._state = str(record.state)
        self.journal = Journal(record, self._history(), self)

    def _history(self) -> list[Entry]:
        if not may_have_history(self.run):
            return []
        with self._reaching_the_store():
            return self.store.load(self.run.id)

    def call_of(self, definition: WorkflowDefinition | None) -> Callable[[Any], Any] | None:
        """Return the workflow's function, bound to a fresh copy of its input; None without a definition."""
        if definition is None:
            return None

        def call(context: Any) -> Any:
            try:
                what = f"the input of {self.run.workflow}"
                if self._binding is None:
                    given = self.codec.decode(self.run.input, what=what)
                else:
                    given = self._binding.decode(self.run.input, what=what, place=Place(self.run.id, "input"))
            except PayloadError as error:
                # whatever the history goes on with: the code has not begun
                self.journal.poison = unreadable("", "the input", error)
                raise self.journal.poison from error
            return definition.function(context, *given["args"], **given["kwargs"])

        call.__qualname__ = getattr(definition.function, "__qualname__", definition.name)
        return call

    def finished(self, outcome: PassOutcome) -> PassOutcome:
        """Notify a worker if the run is due again at once, then return the outcome."""
        if outcome.due_now:
            self.notify({self.run.queue})
        return outcome

    # -- the engine's environment

    def encode(self, value: Any, what: str, field: str, where: str, of_run: str | None = None) -> str:
        if self._binding is None:
            return self.codec.encode(value, what=what)
        return self._binding.encode(value, what=what, place=Place(of_run or self.run.id, field, where))

    def decode(self, text: str | None, field: str, where: str) -> Any:
        if text is None:
            return None
        if self._binding is None:
            return self.codec.decode(text)
        return self._binding.decode(text, place=Place(self.run.id, field, where))

    def is_evicted(self) -> bool:
        return self.eviction.requested

    def is_asked(self) -> bool:
        return bool(self.eviction.asked)

    def new_id(self) -> str:
        return new_id()

    def emit(self, event: Event) -> None:
        details: dict[str, Any] = {"run": self.run.id, "workflow": self.run.workflow, **event.details}
        if event.name == "run_changed":
            previous, self._state = self._state, details["state"]
            details["previous"] = previous
        if event.name in _LOGGED:
            _log(event, details)
        if not self.watch.is_idle:
            self.watch.event_happened(event)
        signal = signals.BY_NAME.get(event.name)
        if signal is not None and signal.receivers:
            with running_workflow(None):  # a receiver is not workflow code
                signals.send(signal, **details)

    def is_in_transaction(self) -> bool:
        return self._transactions.is_open()

    # -- the drivers' host

    def save(self, effect: Save) -> None:
        self._origin.end_strays()
        self._rollback_leftovers(is_told=effect.is_failure or _ends_unfinished(effect.run))
        due = self.journal.generation_due()
        self._after(self.delegate.do(lambda: self._save(effect, due)))

    def _save(self, effect: Save, due: int) -> Committed | None:
        with self._commit_lock:
            if effect.run is None and effect.park_change_seq is None and self._written >= due:
                return None  # while this branch waited, another one has committed for both
            return self._commit(effect)

    def _rollback_leftovers(self, *, is_told: bool) -> None:
        if not self._transactions.rollback_leftovers(is_told=is_told):
            self.journal.is_lost = True
            raise PassAborted("an async step holds a transaction open, which could take this commit back")

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        # The commit lock cannot be used here beside other branches: its owner may be waiting for a row that this very
        # transaction has locked. So the record is taken before another save can see it, and nothing else with it.
        # otherwise the transaction would be nested in what is open, and end with that
        self._rollback_leftovers(is_told=False)
        location = effect.info.location
        committed: Committed | None = None
        batch: Batch | None = None
        has_begun = False
        try:
            with self.store.transaction():
                has_begun = True
                call()
                with self.journal.lock:
                    record()
                    batch = self.journal.take_batch(None, None, only=location if effect.is_concurrent else None)
                assert batch is not None, "a call that records leaves something to commit"
                committed = self._write(batch, in_step_transaction=True)
        except (ControlFlow, PassAborted):
            raise
        except Exception as error:
            if not has_begun:  # the store did not answer: that is no failure of the step
                raise self._aborted(error) from error
            if batch is None:  # the function failed: its transaction is rolled back, nothing was taken
                raise
            self._commit_failed(batch, location, error)
            raise
        self.journal.mark_committed(batch)
        self._after(committed)

    def _commit_failed(self, batch: Batch, location: str, error: Exception) -> None:
        """Handle a failed commit: a failure of the step, unless it is unknown whether the transaction committed."""
        if isinstance(error, DATABASE_TROUBLE):
            self.journal.is_lost = True
            raise PassAborted(f"the commit was not answered: {error}") from error
        self.journal.restore_batch(batch, without=location)

    def receive(self, effect: PeekInbox) -> list[Message]:
        def look() -> list[Message]:
            sessions.restore_used(conf.DATABASE)
            return self.store.inbox(self.run.id, effect.names, effect.count, effect.before)

        self._origin.end_strays()
        with self._reaching_the_store():
            return self.delegate.do(look)

    def lookup(self, effect: GetRunState) -> str | None:
        def look() -> RunRecord | None:
            sessions.restore_used(conf.DATABASE)
            return self.store.get(effect.run_id)

        self._origin.end_strays()
        with self._reaching_the_store():
            found = self.delegate.do(look)
        return None if found is None else str(found.state)

    def wait(self, seconds: float) -> None:
        self.rest(seconds)

    async def async_wait(self, seconds: float) -> None:
        if self.rest == self.eviction.wait:
            await asyncio.sleep(seconds)
        else:
            self.rest(seconds)

    def calling(self, call: Call) -> AbstractContextManager[None]:
        self._origin.end_strays()
        if self.eviction.is_lost:  # the last chance to notice: another worker would do the same work again
            raise Evicted
        if self.observe is not None:
            self.observe(call)
        if self.watch.is_idle:
            return self._transactions.step
        return self._watched(call)

    @contextmanager
    def _watched(self, call: Call) -> Iterator[None]:
        with self._transactions.step, self.watch.calling(call):
            try:
                yield
            finally:
                self._origin.end_strays()

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        return self._transactions.function(f'step "{call.name}"')

    def sync_context(self, scope: Scope, driver: Any) -> Context:
        return Context(scope, driver)

    def async_context(self, scope: Scope, driver: Any) -> AsyncContext:
        return AsyncContext(scope, driver)

    def before_branches(self) -> None:
        self._rollback_leftovers(is_told=False)

    @contextmanager
    def branch_thread(self) -> Iterator[None]:
        self._transactions.enter_branch_thread()
        close_stale_connections(
            all_connections=True
        )  # perhaps the thread has waited for long, see durable.drivers.branch_threads
        try:
            yield
        finally:
            abandon_transactions()
            restore_sessions()

    def branch_thread_ends(self) -> None:
        connections.close_all()  # a connection belongs to its thread

    def interrupted(self) -> None:
        for connection in connections.all(initialized_only=True):
            if connection.connection is None or connection.in_atomic_block:
                continue
            if not connection.is_usable():
                connection.close()

    # -- commits

    def _commit(self, effect: Save) -> Committed | None:
        batch = self.journal.take_batch(effect.run, effect.park_change_seq)
        if batch is None:
            return None
        taken = self.journal.taken
        committed = self._write(batch)
        self._written = taken
        self.journal.mark_committed(batch)
        return committed

    def _write(self, batch: Batch, *, in_step_transaction: bool = False) -> Committed:
        try:
            try:
                sessions.prepare_commit(conf.DATABASE)
                return self.store.commit(batch)
            except SESSION_TROUBLE as trouble:
                if in_step_transaction or in_transaction():
                    raise
                return retry_commit(
                    batch, trouble, run=self.run, store=self.store, eviction=self.eviction, now=self.now
                )
        except LeaseLost:
            self.eviction.request(LEASE_LOST)
            logger.warning(
                "run %s was taken over by another worker (fence %d is no longer the newest): nothing was written",
                self.run.id,
                self.run.fence,
            )
            raise
        except Exception as error:
            if in_step_transaction and isinstance(error, _BROKEN_TRANSACTION):
                # caused by the step's function, so it is the step's failure
                raise TransactionManagementError(BROKEN) from error
            self.journal.is_lost = True
            raise self._aborted(error) from error

    def _after(self, committed: Committed | None) -> None:
        if committed is None:
            return
        self.journal.request = self.eviction.asked = committed.request
        if committed.queues_to_notify:
            self.notify(committed.queues_to_notify)

    @contextmanager
    def _reaching_the_store(self) -> Iterator[None]:
        """End the pass if the store fails: the next pass reads what was really committed."""
        try:
            yield
        except Exception as error:
            raise self._aborted(error) from error

    def _aborted(self, error: Exception) -> PassAborted:
        with suppress(Exception):
            logger.warning("run %s: the store did not answer: %s", self.run.id, error)
        return PassAborted(f"the store did not answer: {error}")


def may_have_history(run: RunRecord) -> bool:
    """Return True if a run that was just claimed may have entries. At the first claim none can have been written."""
    return run.fence > 1 or run.replay_of_id is not None


def _ends_unfinished(patch: RunPatch | None) -> bool:
    """Return True if a commit ends the pass with another state than completed."""
    return patch is not None and patch.get("state") != RunState.COMPLETED


_LOGGED = frozenset({"run_failed", "run_diverged", "run_mistaken", "step_failed", "rollback_failed"})


def _log(event: Event, details: Mapping[str, Any]) -> None:
    """Log what operators look for in the log without connecting a signal receiver."""
    run, workflow, error = details["run"], details["workflow"], details.get("error")
    where = details.get("location", "")
    extra = {"run_id": run, "workflow": workflow, "location": where}  # as `durable.logs.RunFilter` names them
    if event.name == "run_failed":
        if details["is_mistake"]:
            logger.error("run %s of %s stopped: %s: %s", run, workflow, STOPPED, error, extra=extra)
        else:
            logger.error("run %s of %s failed: %s", run, workflow, error, extra=extra)
    elif event.name == "run_diverged":
        logger.error("run %s of %s: this code does not fit its history: %s", run, workflow, error, extra=extra)
    elif event.name == "run_mistaken":
        text = "run %s of %s: a mistake in the code, tried again at %s: %s"
        logger.error(text, run, workflow, f"{details['retry_at']:%H:%M:%S}", error, extra=extra)
    else:
        what = "step" if event.name == "step_failed" else "rollback handler of"
        then = f"tried again at {details['retry_at']:%H:%M:%S}" if details["will_retry"] else "not tried again"
        level = _level(details)
        text = "run %s: %s %s failed, attempt %d: %s; %s"
        logger.log(level, text, run, what, where, details["attempt"], error, then, extra=extra)


def _level(details: Mapping[str, Any]) -> int:
    """Return the log level of a failed attempt: low for one that the code expects."""
    if details["will_retry"]:
        return logging.WARNING
    return logging.INFO if details.get("is_caught") else logging.ERROR
