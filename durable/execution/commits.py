"""The commits of one pass: what is written when, and what happens if a commit is refused or not answered.

Owns every write of a pass. A pass that has lost its lease, or cannot reach the store, writes nothing more: the database
is the truth. Must not decide what is written: the engine does, in its journal.

If a run completes without receiving everything that `start_or_send` sent to its key, another run of the workflow gets
these messages and the key, in the transaction that completes the first run. It is started with the input that came with
the first of the messages, and otherwise like the earlier run. A run that began with such a message and has received
none at all leaves it, because its workflow does not wait for it. So each of these runs has received at least one
message, and the chain ends.

A run that has failed or was cancelled keeps its messages: a recovery continues with them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import InternalError, connections
from django.db.transaction import TransactionManagementError

from durable import declared_limits
from durable.conf import conf
from durable.core import clock
from durable.core.children import operations as children
from durable.core.children import rollback as child_rollback
from durable.core.children.questions import RecoverChild, Supersede, UndoChild
from durable.core.control_flow import CommitsLost, ControlFlow, EndUnknown, LeaseLost, PassAborted
from durable.core.effects import Ask, Call, Save
from durable.core.errors import (
    EndRefusedError,
    KeyConflictError,
    PayloadError,
    RateUnitsError,
    RunNotFoundError,
    UnknownLimitError,
)
from durable.core.events import TakeEvent, delivery
from durable.core.ids import new_id
from durable.core.journal import Event, Journal
from durable.core.limits.rates import LimitClosing, Reservation
from durable.core.limits.slot_records import Admission
from durable.core.limits.slots import Acquire, CloseLimit, Reserve
from durable.core.new_runs import NewRun
from durable.core.places import Place, of_message, of_start
from durable.core.records import (
    ENDED,
    TOO_LONG_HISTORY,
    ActionRecord,
    Batch,
    ChildStart,
    Committed,
    EntryRecord,
    GroupChange,
    KeyedSend,
    Message,
    MessageReceived,
    OutgoingMessage,
    RunChange,
    RunRecord,
    RunState,
)
from durable.core.registry import WorkflowDefinition
from durable.core.transitions import started
from durable.drivers.host import SentSaves
from durable.drivers.threads import ThreadDelegate
from durable.execution.commit_retry import retry_commit
from durable.execution.connections import DATABASE_TROUBLE, SESSION_TROUBLE, OpenTransactions, in_transaction
from durable.execution.environment import COMMITS_LOST, LEASE_LOST, Eviction, PassEvents
from durable.execution.queries import pass_aborted
from durable.store import Store, sessions
from durable.store.base import MessagesLeft, inherited
from durable.store.ends import has_function
from durable.store.recovery import Decide, recover_with_children
from durable.store.transactions import BROKEN, LOST, has_ended, kept_open

if TYPE_CHECKING:
    from durable.store.postgres.sending import PostgresCommit, PostgresCommits

# Entries of a pass after which its history is measured: a walk over it, a hundredth of a step's time for each entry.
LOOK_EVERY: Final = 10_000

#: Re-encodes codec text of the first place for the second.
Copied = Callable[[str, Place, Place], str]


def complete_and_pass_on(
    store: Store, batch: Batch, now: datetime, copied: Copied
) -> tuple[Committed, RunRecord | None]:
    """Commit `batch`, which completes the run, and give its unreceived messages to another run, in one transaction.

    Return the other run too, if there is one. Raises LeaseLost.
    """
    with store.transaction():
        run, left = _taken(store, batch)
        key = store.keys([run.id])[run.id].key
        store.free_key(run.id, for_good=False)  # as at the end: messages still in the inbox stay there
        following = _started(store, run, key, left, now, copied) if left else None
        committed = store.commit(batch)
    if following is None or following.wake_at is None:
        return committed, following
    return replace(committed, queues_to_notify=committed.queues_to_notify | {following.queue}), following


def _taken(store: Store, batch: Batch) -> tuple[RunRecord, list[tuple[Message, KeyedSend]]]:
    """Lock the run, and take the messages for another run out of its inbox; return both."""
    taken: list[tuple[Message, KeyedSend]] = []

    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        if run.fence != batch.fence:
            raise LeaseLost
        received = {each.message_id for each in batch.of(MessageReceived)}
        pending = {each.id: each for each in store.inbox(run.id, [], run.message_count, None)}
        is_any_received = bool(received) or len(pending) < run.message_count
        sends = [each for each in store.keyed_sends(run.id) if each.message_id not in received]
        taken.extend((pending[each.message_id], each) for each in sends if is_any_received or not each.was_first)
        return RunChange(run={"change_seq": run.change_seq}, retracted=[message.id for message, _ in taken])

    return store.change(batch.run_id, decide), taken


def _started(
    store: Store,
    run: RunRecord,
    key: str,
    taken: Sequence[tuple[Message, KeyedSend]],
    now: datetime,
    copied: Copied,
) -> RunRecord:
    """Start a run with the key of `run`, and put the messages into its inbox."""
    chosen, (first, sent) = new_id(), taken[0]
    given, place = run.input, Place(run.id, "input")
    if sent.input is not None:
        given, place = sent.input, of_start(sent.run_id, first.id)
    wanted = NewRun(
        id=chosen,
        workflow=run.workflow,
        queue=run.queue,
        input=copied(given, place, Place(chosen, "input")),
        created_at=now,
        carried=run.carried,
        **inherited(store, run.id, now),
        **started(now),
    )
    following, is_new = store.start_keyed(wanted, key)
    assert is_new, "this transaction has the key"
    store.send([_sent_again(message, chosen, copied) for message, _ in taken])
    store.note_keyed_sends([_noted_again(each, run, chosen, copied) for _, each in taken])
    store.note_follower(chosen, run.id)
    return following


def _sent_again(message: Message, run_id: str, copied: Copied) -> OutgoingMessage:
    old, new = (of_message(each, "message", message.id, message.queue) for each in (message.run_id, run_id))
    body = copied(message.body, old, new)
    return OutgoingMessage(id=message.id, to=run_id, queue=message.queue, body=body, sent_at=message.sent_at)


def _noted_again(sent: KeyedSend, run: RunRecord, run_id: str, copied: Copied) -> KeyedSend:
    given, old = run.input, Place(run.id, "input")
    if sent.input is not None:
        given, old = sent.input, of_start(run.id, sent.message_id)
    return KeyedSend(
        message_id=sent.message_id,
        run_id=run_id,
        input=copied(given, old, of_start(run_id, sent.message_id)),
        was_first=True,
    )


#: The errors of Django and PostgreSQL for a statement after an error that code in the same transaction has caught.
_BROKEN_TRANSACTION = (TransactionManagementError, InternalError, sessions.ReadOnlyDatabaseError)


def _failure_of_step(error: Exception) -> str:
    """Return why the record of an atomic step cannot be written, if its function is the cause, or the session ended
    while that was called; else "". Nothing of the transaction is committed then, for certain.
    """
    if not isinstance(error, TransactionManagementError) and has_ended(connections[conf.DATABASE]):
        return LOST
    return BROKEN if isinstance(error, _BROKEN_TRANSACTION) else ""


class CommitSession:
    """Commits the changes in `journal`, one batch after the other, until the pass ends.

    `notify` notifies workers that these queues have due runs. `copied` re-encodes codec text for another place.
    `definition` is the workflow of the run, None if this process does not know it. In branch threads, commits are
    delegated to the pass's own thread, except those of atomic steps.
    """

    def __init__(
        self,
        journal: Journal,
        store: Store,
        *,
        eviction: Eviction,
        transactions: OpenTransactions,
        events: PassEvents,
        delegate: ThreadDelegate,
        notify: Callable[[Iterable[str]], None],
        copied: Copied,
        definition: WorkflowDefinition | None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._eviction = eviction
        self._transactions = transactions
        self._events = events
        self._delegate = delegate
        self._notify = notify
        self._copied = copied
        self._definition = definition
        self._lock = threading.Lock()
        self._until_look = LOOK_EVERY  # entries
        self._generation = 0  # the journal's count of taken changes that are committed
        self._started: deque[RunRecord] = deque()  # children whose starts are committed but not reported yet
        #: The queues of the runs made due by the commit that ended the pass.
        self.left_to_notify: frozenset[str] = frozenset()

    def save(self, effect: Save) -> None:
        """Commit what the journal holds; return when it is committed."""
        ends_unfinished = effect.run is not None and effect.run.get("state") != RunState.COMPLETED
        self.rollback_leftovers(already_failing=effect.is_failure or ends_unfinished)
        due = self._journal.generation_due()
        is_over = effect.run is not None and "lease_expires_at" in effect.run
        self._answered(self._delegate.call(lambda: self._save(effect, due)), is_over=is_over)

    def _save(self, effect: Save, due: int) -> Committed | None:
        with self._lock, self.settling():
            if effect.run is None and effect.park_change_seq is None and self._generation >= due:
                return None  # while this branch waited, another one has committed for both
            ends_with_call = effect.run is not None and effect.run.get("state") in ENDED and self._calls_at_end()
            batch = self._journal.take_batch(
                effect.run,
                effect.park_change_seq,
                awaited_children=effect.awaited_children,
                awaited_slots=effect.awaited_slots,
                awaited_groups=effect.awaited_groups,
            )
            if batch is None:
                return None
            if ends_with_call and batch.run is not None:
                batch = replace(batch, ended=replace(self._journal.run, **batch.run))
            return self._save_batch(batch, self._journal.taken)

    def _save_batch(self, batch: Batch, generation: int, sent: PostgresCommit | None = None) -> Committed:
        committed = self._write(batch, sent=sent)
        self._generation = generation
        self._journal.mark_committed(batch)
        return committed

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Let the pass go on after a save only if it is known what became of the batch."""
        try:
            yield
        except (ControlFlow, PassAborted, EndRefusedError):
            raise
        except BaseException:  # raised by a signal handler; code may swallow it
            self._journal.is_lost = True
            raise

    # -- saves that an event loop sends

    def sent_saves(self, end_forked_child: Callable[[], None]) -> SentSaves | None:
        """Return the saves that an event loop sends, None if it sends none; called in the pass's own thread."""
        commits = self._store.sent_commits()
        return None if commits is None else _SentSaves(self, self._journal, commits, end_forked_child)

    def finish(self, batch: Batch, generation: int, sent: PostgresCommit) -> None:
        """Do what follows a commit that was sent, as `save` does."""
        with self._lock, self.settling():
            committed = self._save_batch(batch, generation, sent)
        self._answered(committed)

    def _calls_at_end(self) -> bool:
        """Return whether the workflow has an `on_end`. Raises EndUnknown if it has one that this process lacks."""
        if self._definition is not None:
            return self._definition.on_end is not None
        if self._store.calls_at_end(self._journal.run.workflow):
            raise EndUnknown
        return False

    def ask(self, question: Ask) -> Any:
        """Make the requested change (`CHANGES`), in a transaction of its own; return the answer.

        A change may be repeated: a finished part stays as it is, and slots taken belong to the run, whose next pass
        finds them.
        """
        # the attempt that closes a limit has failed, and its record follows
        self.rollback_leftovers(already_failing=type(question) is CloseLimit)
        change, tell = CHANGES[type(question)]
        answer = self._delegate.call(lambda: change(self, question))
        if tell is not None:  # in the asking thread, so that a slow receiver does not delay other branches
            tell(self, question, answer)
        return answer

    def _take_event(self, asked: TakeEvent) -> bool | None:
        """Give a wait of the run the event that is there for it; see `TakeEvent`. Raises PayloadError."""
        with self._answering(PayloadError):
            wait = self._store.event_wait(asked.wait_id)
            if wait is None:
                return None
            event = self._store.due_event(wait, asked.before)
            if event is None:
                return False
            number, _ = self._store.deliver(event, 1, partial(delivery, copied=self._copied), asked.wait_id)
            return bool(number)

    def _acquire(self, asked: Acquire) -> Admission:
        """Take slots for the run, or a place in the line of one."""
        run, now = self._journal.run, self._journal.environment.now()
        with self._answering(UnknownLimitError):
            wants = [declared_limits.defined(want) for want in asked.wants]
            return self._store.acquire(run.id, run.fence, asked.location, wants, now)

    def _tell_of_slots(self, asked: Acquire, answer: Admission) -> None:
        limits = [want.limit for want in asked.wants] if answer.is_granted else [answer.limit]
        self._events.emit(Event("slots_asked", {"limits": limits, "is_granted": answer.is_granted}))
        if answer.queues_to_notify:
            self._notify(answer.queues_to_notify)

    def _reserve(self, asked: Reserve) -> Reservation:
        """Give an attempt its moment in a limit's rate."""
        run, environment = self._journal.run, self._journal.environment
        with self._answering(UnknownLimitError, RateUnitsError):
            return self._store.reserve(
                run.id,
                run.fence,
                asked.location,
                declared_limits.with_rate(asked.want),
                environment.now(),
                may_begin=asked.may_begin,
                patience=environment.short_sleep,
            )

    def _tell_of_units(self, asked: Reserve, answer: Reservation) -> None:
        if asked.may_begin or not answer.begins:  # otherwise it asks again, when it has its slot
            wait = max(0.0, (answer.at - self._journal.environment.now()).total_seconds())
            details = {"limit": asked.want.limit, "units": asked.want.units, "begins": answer.begins, "wait": wait}
            self._events.emit(Event("units_asked", details))

    def _close_limit(self, asked: CloseLimit) -> None:
        closing = LimitClosing(until=asked.until, by=f"run {self._journal.run.id}", reason=asked.reason)
        with self._answering(UnknownLimitError):
            if declared_limits.with_rate(asked.want).rate is None and not self._store.has_rate(asked.want.limit):
                raise UnknownLimitError(asked.want.limit, is_rate=True)
            self._store.close_rate(asked.want.limit, asked.want.key, closing, is_longer=True)

    @contextmanager
    def _answering(self, *refusals: type[Exception]) -> Iterator[None]:
        """Call the store for a limit. Raises LeaseLost, the errors in `refusals`, and PassAborted without an answer."""
        try:
            sessions.restore_used(conf.DATABASE)
            yield
        except refusals as refusal:
            if isinstance(refusal, UnknownLimitError):
                raise declared_limits.with_known(refusal) from None
            raise
        except LeaseLost:
            self._lose_lease()
            raise
        except Exception as error:  # the next pass finds again what was taken, or it is lost
            raise pass_aborted(self._journal.run, error) from error

    def _lose_lease(self) -> None:
        self._eviction.request(LEASE_LOST)
        self._events.lease_lost()

    def _undo_child(self, asked: UndoChild) -> RunRecord | None:
        """Begin the compensation of a child, as long as this worker may write the run.

        Return the child's run then, None if it is gone.
        """
        run, now = self._journal.run, self._journal.environment.now()
        previous = ""

        def decide(child: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
            nonlocal previous
            previous = child.state
            self._check_is_ours()
            return child_rollback.change_of(
                child,
                entries,
                run.id,
                now,
                only_open=asked.only_open,
                is_replaced=asked.is_replaced,
                hands_over=has_function(self._store, child.workflow),
            )

        try:
            with self._changing():
                child = self._store.change(asked.run_id, decide)
        except RunNotFoundError:
            return None
        if child.wake_at is not None and child.wake_at <= now:
            self._notify({child.queue})
        self._events.other_changed(child, previous)
        return child

    def _recover_child(self, asked: RecoverChild) -> None:
        """Recover a failed child, with those that made it fail, as long as this worker may write the pass's run.

        A child that is gone, is open, or whose key another run has, stays as it is.
        """
        now = self._journal.environment.now()
        changed: list[tuple[RunRecord, str]] = []

        def change(run_id: str, decide: Decide, _is_consequence: bool) -> None:
            previous = ""

            def deciding(child: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
                nonlocal previous
                previous = child.state
                self._check_is_ours()
                if child.state != RunState.FAILED:
                    return RunChange(run={"change_seq": child.change_seq})
                decided = decide(child, entries)
                after = str(decided.run.get("state", child.state))
                row = {"action": "recover", "outcome": "done", "created_at": now, "source": "", **asked.by}
                decided.action = ActionRecord(run_id=run_id, before=str(previous), after=after, **row)
                return decided

            changed.append((self._store.change(run_id, deciding), previous))

        try:
            with self._changing():
                recover_with_children(self._store, asked.run_id, now, asked.by, change)
        except (RunNotFoundError, KeyConflictError):
            return
        self._notify({child.queue for child, _ in changed if child.wake_at is not None and child.wake_at <= now})
        for child, previous in changed:
            self._events.other_changed(child, previous)

    def _supersede(self, asked: Supersede) -> bool:
        """Cancel the run that has a key, and free the key, as long as this worker may write the pass's run.

        Return False if that run is being compensated. A run that no longer has the key stays as it is.
        """
        now = self._journal.environment.now()
        is_free, previous = True, ""

        def decide(owner: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
            nonlocal is_free, previous
            previous = owner.state
            self._check_is_ours()
            nothing = RunChange(run={"change_seq": owner.change_seq})
            holder = self._store.key_holder(asked.workflow, asked.key)
            if holder is None or holder.id != owner.id:
                return nothing
            change = children.change_of(owner, asked.reason, now, hands_over=has_function(self._store, owner.workflow))
            if change is None:
                is_free = False
                return nothing
            self._store.free_key(owner.id, for_good=False)
            return change

        with suppress(RunNotFoundError), self._changing():
            owner = self._store.change(asked.run_id, decide)
            if owner.wake_at is not None and owner.wake_at <= now:
                self._notify({owner.queue})
            if owner.parent_id is not None and owner.state in ENDED:  # its parent may wait for it, or a sibling
                parents = [each.queue for each in [self._store.get(owner.parent_id)] if each is not None]
                self._notify({owner.queue, *parents})
            self._events.other_changed(owner, previous)
        return is_free

    def _check_is_ours(self) -> None:
        """Raise LeaseLost if another worker has claimed the run."""
        found = self._store.get(self._journal.run.id)
        if found is None or found.fence != self._journal.run.fence:
            raise LeaseLost

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change another run. Raises LeaseLost, RunNotFoundError, and PassAborted if the store does not answer."""
        try:
            sessions.prepare_commit(conf.DATABASE)
            yield
        except (RunNotFoundError, KeyConflictError):
            raise
        except LeaseLost:
            self._lose_lease()
            raise
        except Exception as error:
            self._journal.is_lost = True
            raise pass_aborted(self._journal.run, error) from error

    def rollback_leftovers(self, *, already_failing: bool) -> None:
        """Roll back transactions that user code has left open, so that no commit is made inside one.

        Raises OpenTransactionError if there were any, unless the pass is already failing.
        """
        if not self._transactions.rollback_leftovers(already_failing=already_failing):
            self._journal.is_lost = True
            raise PassAborted("an async step holds a transaction open, which could take this commit back")

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        """Run `call`, `record` and the commit of the step's entry in one transaction of the store's database."""
        # The lock cannot be used here beside other branches: its owner may be waiting for a row that this very
        # transaction has locked. So the record is taken before another save can see it, and nothing else with it.
        # A transaction left open would contain this one, which would end with it.
        self.rollback_leftovers(already_failing=False)
        location = effect.info.location
        committed: Committed | None = None
        batch: Batch | None = None
        has_begun = has_returned = False
        try:
            with self._store.transaction():
                has_begun = True
                with kept_open(conf.DATABASE):
                    call()
                has_returned = True
                with self._journal.lock:
                    record()
                    batch = self._journal.take_batch(None, None, only=location if effect.is_concurrent else None)
                assert batch is not None, "a call that records leaves something to commit"
                committed = self._write(batch, in_step_transaction=True)
                lease_ends_at = self._prolonged()
        except (ControlFlow, PassAborted):
            raise
        except Exception as error:
            if not has_begun:  # the store did not answer: that is not a failure of the step
                raise pass_aborted(self._journal.run, error) from error
            if batch is None:  # the function failed: its transaction is rolled back, nothing was taken
                raise
            self._commit_failed(batch, location, error)
            raise
        except BaseException:  # as in `_save`, unless the function has raised it
            self._journal.is_lost |= has_returned
            raise
        self._eviction.lease_ends_at = lease_ends_at
        with self.settling():
            self._journal.mark_committed(batch)
            self._answered(committed)

    def _prolonged(self) -> float:
        """Renew a lease that is overdue for renewal, in the transaction of an atomic step.

        Return when the lease ends (monotonic). The worker cannot renew it while this transaction locks the run's row,
        because the step has sent to its own run. If the lease ended meanwhile, another worker could claim the run as
        soon as this commits, and count a crash.
        """
        now, ends_at = time.monotonic(), self._eviction.lease_ends_at
        if ends_at - now > conf.LEASE / 2:  # the worker renews it after a third
            return ends_at
        run = self._journal.run
        self._store.renew([(run.id, run.fence)], clock.now() + timedelta(seconds=conf.LEASE))
        return now + conf.LEASE

    def _commit_failed(self, batch: Batch, location: str, error: Exception) -> None:
        """Handle a failed commit: a failure of the step, unless it is unknown whether the transaction committed."""
        if isinstance(error, DATABASE_TROUBLE):
            self._journal.is_lost = True
            raise PassAborted(f"the commit was not answered: {error}") from error
        self._journal.restore_batch(batch, without=location)

    def _write(
        self, batch: Batch, *, in_step_transaction: bool = False, sent: PostgresCommit | None = None
    ) -> Committed:
        run = self._journal.run
        try:
            try:
                committed = self._commit(batch, may_retry=not in_step_transaction, sent=sent)
            except MessagesLeft:
                now = self._journal.environment.now()
                owned = replace(batch, fence=run.fence)  # a retry has raised it
                committed, following = complete_and_pass_on(self._store, owned, now, self._copied)
                self._started.extend([] if following is None else [following])
        except CommitsLost:
            self._eviction.request(COMMITS_LOST)
            self._events.commits_lost()
            raise
        except LeaseLost:
            self._lose_lease()
            raise
        except EndRefusedError:
            self._journal.restore_batch(batch)
            raise
        except Exception as error:
            if in_step_transaction and (found := _failure_of_step(error)):
                raise TransactionManagementError(found) from error
            self._journal.is_lost = True
            raise pass_aborted(run, error) from error
        self._started.extend(each.run for each in batch.of(ChildStart))
        for group in batch.of(GroupChange):
            self._started.extend(each.run for each in group.starts)
        self._until_look -= len(batch.entries)
        if self._until_look <= 0:  # a pass may last for hours
            self._until_look = LOOK_EVERY
            if self._journal.has_more_entries_than(TOO_LONG_HISTORY):
                self._events.history_too_long()
        return committed

    def _commit(self, batch: Batch, *, may_retry: bool, sent: PostgresCommit | None) -> Committed:
        try:
            if sent is not None:
                return sent.committed()
            sessions.prepare_commit(conf.DATABASE)
            return self._store.commit(batch)
        except SESSION_TROUBLE as trouble:
            if not may_retry or in_transaction():
                raise
            run, now = self._journal.run, self._journal.environment.now
            return retry_commit(batch, trouble, run=run, store=self._store, eviction=self._eviction, now=now)

    def _answered(self, committed: Committed | None, *, is_over: bool = False) -> None:
        """Record the operator's request returned by a commit, and notify the queues that it has made due.

        If the commit ends the pass (`is_over`), the pass itself notifies, as its last act.
        """
        if committed is None:
            return
        self._journal.request = self._eviction.asked = committed.request
        if is_over:
            self.left_to_notify = committed.queues_to_notify
        elif committed.queues_to_notify:
            self._notify(committed.queues_to_notify)
        if self._started:
            self._tell_of_starts()

    def _tell_of_starts(self) -> None:
        """Report the children that commits have started, each once, whichever branch does it."""
        children: list[RunRecord] = []
        with suppress(IndexError):
            while True:
                children.append(self._started.popleft())
        self._events.children_started(children, lambda ids: self._delegate.call(lambda: self._states(ids)))

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        sessions.restore_used(conf.DATABASE)
        return self._store.states(ids)


class _SentSaves:
    """The `durable.drivers.host.SentSaves` of a pass."""

    def __init__(
        self, session: CommitSession, journal: Journal, commits: PostgresCommits, end_forked_child: Callable[[], None]
    ) -> None:
        self.session = session
        self.journal = journal
        self.end_forked_child = end_forked_child
        self._commits = commits

    def open(self) -> _SentSave | None:
        self.end_forked_child()
        if not self.journal.has_only_entries() or (commit := self._commits.open()) is None:
            return None
        return _SentSave(self, commit)

    def close(self) -> None:
        self._commits.close()


class _SentSave:
    """The `durable.drivers.host.SentSave` of a pass."""

    __slots__ = ("_batch", "_commit", "_generation", "_of", "close", "fileno")

    def __init__(self, of: _SentSaves, commit: PostgresCommit) -> None:
        self._of = of
        self._commit = commit
        self._batch: Batch
        self._generation = 0
        self.fileno = commit.fileno
        self.close = commit.close

    @property
    def is_flushed(self) -> bool:
        return self._commit.is_flushed

    @property
    def is_plain(self) -> bool:
        return self._commit.is_plain

    def send(self) -> bool:
        journal = self._of.journal
        with self._of.session.settling():
            with journal.lock:
                if not journal.has_only_entries():  # any more: another thread has set a status, for example
                    return False
                batch = journal.take_batch(None, None)
                assert batch is not None, "the journal holds entries"
                self._batch, self._generation = batch, journal.taken
            try:
                is_sent = self._commit.send(batch)
            except Exception as error:  # the batch cannot be written down
                journal.is_lost = True
                raise pass_aborted(journal.run, error) from error
            if not is_sent:
                journal.restore_batch(batch)
            return is_sent

    def proceed(self) -> bool:
        self._of.end_forked_child()
        is_answered = self._commit.proceed()
        if is_answered and not self.is_plain:  # until the pass's own thread has found out what that means
            self._of.journal.is_lost = True
        return is_answered

    def finish(self) -> None:
        if not self.is_plain:
            self._of.journal.is_lost = False
        self._of.session.finish(self._batch, self._generation, self._commit)


class _Change(NamedTuple):
    """How to make a requested change, and how to report its answer."""

    make: Callable[[CommitSession, Any], Any]
    tell: Callable[[CommitSession, Any, Any], None] | None = None


#: The questions that make changes, each in a transaction of its own.
CHANGES: Final[dict[type[Ask], _Change]] = {
    Acquire: _Change(CommitSession._acquire, CommitSession._tell_of_slots),
    Reserve: _Change(CommitSession._reserve, CommitSession._tell_of_units),
    CloseLimit: _Change(CommitSession._close_limit),
    UndoChild: _Change(CommitSession._undo_child),
    RecoverChild: _Change(CommitSession._recover_child),
    Supersede: _Change(CommitSession._supersede),
    TakeEvent: _Change(CommitSession._take_event),
}
