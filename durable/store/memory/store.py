"""The store in memory: for tests of workflows and of the engine itself that need no database.

Thread-safe, and as strict as the databases: it keeps copies, the engine's data passes through JSON, and the invariants
of a run's row are checked. Nothing outlives the object.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from datetime import datetime
from functools import wraps
from inspect import isfunction
from operator import attrgetter
from typing import Any, Final, TypeVar

from durable.core import question_rules
from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.errors import KeyConflictError, RunNotFoundError
from durable.core.limits.ranks import Ranking
from durable.core.limits.slot_records import Admission, SlotKind, SlotRow, SlotWant
from durable.core.links import is_of_link
from durable.core.location import escape, value_name
from durable.core.new_runs import LOADED, NewRun, Subject, key_of
from durable.core.people import STARTER
from durable.core.records import (
    ENDED,
    ActionOutcome,
    ActionRecord,
    Activity,
    AskedOfActivity,
    AttemptRecord,
    AwaitedEvent,
    Batch,
    ChildRecord,
    ChildrenDropped,
    ChildStart,
    Committed,
    DoubtOver,
    EntryKind,
    EntryRecord,
    EntryStatus,
    EventRecord,
    EventsDropped,
    FailureRecord,
    GroupChange,
    HeldOver,
    Hold,
    HoldKind,
    KeyedSend,
    KeyRecord,
    LinkClosed,
    LinkOpened,
    LinkRecord,
    Message,
    MessagesReturned,
    MessageState,
    OutgoingMessage,
    QuestionAsked,
    QuestionClosed,
    QuestionRecord,
    QuestionsSought,
    ReservationDropped,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    SavesForgotten,
    Status,
    StatusRecord,
    TagChange,
    Witness,
)
from durable.core.time_limits import History, RunLimits
from durable.core.transitions import moved
from durable.link_tokens import hash_of
from durable.store import ends
from durable.store.base import ChildIdTaken, ChildKeyTaken, Claimed, DuePoint, MessagesLeft, Released, Renewed, Store
from durable.store.memory.children import MemoryChildren
from durable.store.memory.limits import MemoryRates, MemorySlots, MemorySlotTable, sweep
from durable.store.memory.tables import MemoryActivities, MemoryHolds, MemoryRanks, copied
from durable.store.rules import child_rules, lines, row_rules
from durable.store.surveys import bare_entry, bare_message

_Store = TypeVar("_Store")
#: A snapshot of a store's content: its tables by the names of the attributes.
Tables = dict[str, Any]


def _size(entries: list[EntryRecord]) -> int:
    return sum(
        len(text.encode(errors="surrogatepass")) for each in entries for text in (each.output, each.arguments) if text
    )


_PENDING: Final = str(MessageState.PENDING)
_VALUES: Final = attrgetter(*(each.name for each in fields(EntryRecord)))


def _copied(entry: EntryRecord) -> EntryRecord:
    """Return a copy of `entry` that later changes of the original do not affect."""
    copy = EntryRecord(*_VALUES(entry))  # replace() takes three times as long
    copy.data = json.loads(json.dumps(entry.data)) if entry.data else {}
    return copy


def _under_the_lock(store: type[_Store]) -> type[_Store]:
    """Let each public method of the class, inherited ones included, hold the store's lock while it runs."""

    def holding(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return method(self, *args, **kwargs)

        return call

    for name in dir(store):
        if not name.startswith("_") and isfunction(method := getattr(store, name)):
            setattr(store, name, holding(method))
    return store


@_under_the_lock
class MemoryStore(Store):
    """A `Store` in memory. Each public method holds the lock."""

    def __init__(self) -> None:
        self._lock: AbstractContextManager[object] = threading.RLock()
        self._runs: dict[str, RunRecord] = {}
        self._entries: dict[str, dict[str, EntryRecord]] = {}
        self._attempts: dict[str, list[AttemptRecord]] = {}
        self._messages: dict[str, Message] = {}
        self._inboxes: dict[str, list[str]] = {}  # message ids in order
        self._actions: list[ActionRecord] = []
        self._failures: dict[str, FailureRecord] = {}
        self._activities = MemoryActivities()
        self._holds = MemoryHolds()
        self._children: MemoryChildren = MemoryChildren(self._runs, self._free, self.calls_at_end, self._is_held)
        self._with_end: set[str] = set()
        self._keys: dict[str, KeyRecord] = {}  # by run; the end of a run does not write its key
        self._key_holders: dict[tuple[str, str], str] = {}  # the run that had a key last
        self._keyed_sends: dict[str, KeyedSend] = {}  # by message
        self._limits: dict[str, RunLimits] = {}
        self._saved: dict[tuple[str, str], SavedDetails] = {}
        self._slots = MemorySlots()
        self._rates: MemoryRates = MemoryRates(self._runs)
        self._ranks = MemoryRanks()
        self._tags: dict[str, dict[str, str]] = {}
        self._tags_at_start: dict[str, dict[str, str]] = {}
        self._statuses: dict[str, StatusRecord] = {}
        self._subjects: dict[str, tuple[Subject, ...]] = {}
        self._links: dict[str, LinkRecord] = {}  # by the hash of the token
        self._events: list[EventRecord] = []  # by number, the oldest first
        self._event_waits: dict[str, AwaitedEvent] = {}
        self._newest_event = 0
        self._questions: dict[str, QuestionRecord] = {}  # by their ids

    def _writing(self) -> AbstractContextManager[object]:
        return self._lock

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        for run in runs:
            row_rules.check(run)
        return [self._created(run) for run in runs]

    def _created(self, run: RunRecord) -> tuple[RunRecord, bool]:
        new = run.id not in self._runs
        if new:
            run = self._holds.on_start(run)
            if isinstance(run, NewRun) and run.limits is not None:
                self._limits[run.id] = run.limits
            self._runs[run.id] = row_rules.copied(run)
            self._entries[run.id] = {}
            self._attempts[run.id] = []
            self._inboxes[run.id] = []
            if isinstance(run, NewRun) and run.ranking is not None:
                self._ranks.put(self._runs[run.id], run.ranking)
            if isinstance(run, NewRun) and run.tags:
                self._tags[run.id] = self._tags_at_start[run.id] = dict(run.tags)
            if isinstance(run, NewRun) and run.subjects:
                self._subjects[run.id] = tuple(run.subjects)
        return row_rules.copied(self._runs[run.id]), new

    def _put(self, run: RunRecord) -> None:
        """Write the row of a run, and apply what follows from its end or its reopening."""
        before = self._runs[run.id]
        if row_rules.is_reopened(before, run):
            self._open_key_again(run.id)
            for each in self.questions([run.id]):
                if each.outcome == question_rules.ENDED:
                    self._questions[each.question_id] = question_rules.opened_again(each)
        if row_rules.is_failure_over(before, run) and (failure := self._failures.get(run.id)) is not None:
            self._failures[run.id] = replace(failure, is_open=False)
        self._runs[run.id] = run
        if row_rules.has_ended(before, run):
            self._ended(run)

    def _held_no_more(self, run_id: str) -> None:
        """Note that no step of the run waits for a person."""
        failure = self._failures.get(run_id)
        if failure is not None and failure.is_held:
            self._failures[run_id] = replace(failure, is_open=False, is_held=False)

    # -- keys

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        holder = self._key_holder(run.workflow, key)
        if run.id not in self._runs and holder is not None:
            return row_rules.copied(holder), False
        created, is_new = self._created(row_rules.check(run))
        if is_new:
            self._give_key(run, run.workflow, key)
        return created, is_new

    def _give_key(self, run: RunRecord, workflow: str, key: str) -> None:
        self._keys[run.id] = KeyRecord(run_id=run.id, workflow=workflow, key=key, taken_at=run.created_at)
        self._key_holders[workflow, key] = run.id

    def _key_holder(self, workflow: str, key: str) -> RunRecord | None:
        run = self._runs.get(self._key_holders.get((workflow, key), ""))
        return run if run is not None and self._has_key(run) else None

    def _has_key(self, run: RunRecord) -> bool:
        return run.state not in ENDED and run.id in self._keys and self._keys[run.id].is_open

    def _open_key_again(self, run_id: str) -> None:
        if (key := self._keys.get(run_id)) is None:
            return
        holder = self._key_holder(key.workflow, key.key)
        if holder is not None and holder.id != run_id:
            raise KeyConflictError(holder.id, key.key)
        self._keys[run_id] = replace(key, is_open=True)
        self._key_holders[key.workflow, key.key] = run_id

    def key_holder(self, workflow: str, key: str, *, lock: bool = False) -> RunRecord | None:  # noqa: ARG002
        holder = self._key_holder(workflow, key)
        return None if holder is None else row_rules.copied(holder)

    def free_key(self, run_id: str, *, for_good: bool) -> None:
        if for_good:
            self._keys.pop(run_id, None)
        elif (key := self._keys.get(run_id)) is not None:
            self._keys[run_id] = replace(key, is_open=False)

    def move(self, run: RunRecord, *, now: datetime, wake_at: datetime, input: str | None) -> RunRecord:
        key = self._keys[run.id]
        self._keys[run.id] = replace(key, moves=key.moves + 1, moved_at=now)
        self._holds.move(run.id, wake_at)
        self._put(replace(run, **moved(run, wake_at=wake_at, input=input)))
        return row_rules.copied(self._runs[run.id])

    def keys(self, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        found = [(self._runs[each], self._keys[each]) for each in run_ids if each in self._keys]
        return {run.id: replace(key, is_open=self._has_key(run)) for run, key in found}

    def note_keyed_sends(self, sends: Sequence[KeyedSend]) -> None:
        self._keyed_sends |= {each.message_id: each for each in sends}

    def keyed_sends(self, run_id: str) -> list[KeyedSend]:
        return self._sends_among(run_id, [each for each in self.messages(run_id) if each.state == _PENDING])

    def _sends_among(self, run_id: str, messages: Sequence[Message]) -> list[KeyedSend]:
        """Return those of these messages that `start_or_send` has sent to the run."""
        found = [self._keyed_sends[each.id] for each in messages if each.id in self._keyed_sends]
        return [each for each in found if each.run_id == run_id]

    def note_follower(self, run_id: str, before: str) -> None:
        self._keys[run_id] = replace(self._keys[run_id], follows=before)

    def followed_by(self, run_id: str) -> str | None:
        return next((each for each, key in reversed(self._keys.items()) if key.follows == run_id), None)

    def _free(self, run_id: str) -> None:
        self._rates.forget(run_id)
        self._held_no_more(run_id)

    def _ended(self, run: RunRecord) -> None:
        self._free(run.id)
        child_rules.ended(self._children, run)

    def parents_among(self, run_ids: Sequence[str]) -> set[str]:
        kinds = (EntryKind.CHILD, EntryKind.MAP)
        return {
            each
            for each in run_ids
            if self._children.has_any(each)
            or any(entry.kind in kinds for entry in self._entries.get(each, {}).values())
        }

    def note_reader(self, run_id: str, children: Sequence[str]) -> list[str]:
        found = [each for each in children if each in self._runs]
        self._children.note_reader(run_id, found)
        return found

    def readers_of(self, child_id: str) -> list[str]:
        return self._children.readers_of(child_id)

    def get(self, run_id: str) -> RunRecord | None:
        return row_rules.copied(run) if (run := self._runs.get(run_id)) else None

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        return {each: row_rules.copied(self._runs[each]) for each in run_ids if each in self._runs}

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        return {each: str(self._runs[each].state) for each in run_ids if each in self._runs}

    def history(self, run_id: str) -> list[EntryRecord]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def published(self, run_id: str, name: str = "") -> list[EntryRecord]:
        values = (each for each in self.history(run_id) if each.kind == EntryKind.PUBLISH)
        newest = {value_name(each.location): each for each in values}
        return [each for of, each in newest.items() if name in ("", of)]

    def held_steps(self, run_id: str) -> list[EntryRecord]:
        return [each for each in self.history(run_id) if each.status == EntryStatus.HELD]

    def held_among(self, run_ids: Sequence[str]) -> set[str]:
        found = ((each, self._failures.get(each)) for each in run_ids)
        return {each for each, failure in found if failure is not None and failure.is_held}

    def limits(self, run_id: str) -> RunLimits | None:
        return self._limits.get(run_id)

    def put_in_doubt(self, since: datetime, most: int) -> int:
        marked = {run_id for run_id, limits in self._limits.items() if limits.in_doubt == since}
        left = [each for each in self._runs.values() if each.state not in ENDED and each.id not in marked][:most]
        for run in left:
            self._limits[run.id] = replace(self._limits.get(run.id) or RunLimits(), in_doubt=since)
            self._put(replace(run, fence=max(run.fence, LOADED)))
        return len(left)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        return list(self._attempts.get(run_id, ()))

    def failure(self, run_id: str) -> FailureRecord | None:
        return self._failures.get(run_id)

    def messages(self, run_id: str) -> list[Message]:
        return [self._messages[each] for each in self._inboxes.get(run_id, ())]

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        stored = [self._stored(message) for message in messages]
        queues = set()
        for run_id in sorted({message.to for message in messages if message.to in self._runs}):
            new = [each for each, fresh in filter(None, stored) if fresh and each.run_id == run_id]
            self._runs[run_id] = run = row_rules.after_messages(self._runs[run_id], new)
            if row_rules.should_notify(run, new):
                queues.add(run.queue)
        return [found and found[0] for found in stored], frozenset(queues)

    def _stored(self, outgoing: OutgoingMessage) -> tuple[Message, bool] | None:
        """Return the stored message, and True if it is new; None if there is no such run."""
        inbox = self._inboxes.get(outgoing.to)
        if inbox is None:
            return None
        escape(outgoing.queue)  # raises for text that no database could hold
        seen = self._seen(outgoing)
        if seen is not None:
            return seen, False
        message = row_rules.stored(outgoing, self._newest_order(outgoing.to) + 1)
        if message.id in self._messages:
            raise ValueError(f"there is a message {message.id} already")
        self._messages[message.id] = message
        inbox.append(message.id)
        return message, True

    def _newest_order(self, run_id: str) -> int:
        """Return the highest order of the messages ever sent to the run; a retracted one leaves a gap."""
        inbox = self._inboxes[run_id]
        return max(self._runs[run_id].message_count, self._messages[inbox[-1]].order if inbox else 0)

    def _seen(self, outgoing: OutgoingMessage) -> Message | None:
        return self.sent_before(outgoing.to, outgoing.idempotency_id) if outgoing.idempotency_id is not None else None

    def surveyor(self, run_id: str) -> None:
        """Return None: no history is too long to be read."""

    def outline(self, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
        return list(map(bare_entry, self.history(run_id))), list(map(bare_message, self.messages(run_id)))

    def message(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        return next((each for each in self.messages(run_id) if each.idempotency_id == idempotency_id), None)

    def change(
        self,
        run_id: str,
        decide: Callable[[RunRecord, Callable[[], list[EntryRecord]]], RunChange],
        *,
        wait: bool = True,  # noqa: ARG002  # no row is locked without the lock of all
    ) -> RunRecord:
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFoundError(run_id)
        change = decide(row_rules.copied(run), lambda: self.history(run_id))
        after = row_rules.after_change(run, change)
        function = ends.function_of(run.workflow) if row_rules.has_ended(run, after) else None
        if function is None:
            return self._changed(run, after, change)
        with self._taken_back_if_refused() as alias:
            changed = self._changed(run, after, change)
            ends.call(alias, function, row_rules.copied(changed))
        return changed

    def _changed(self, run: RunRecord, after: RunRecord, change: RunChange) -> RunRecord:
        """Write what a verb has decided; return the changed row."""
        run_id = run.id
        at = after.wake_at or after.created_at
        if run.parent_id is not None:
            after = child_rules.held_back(self._children, run, after, after.created_at, self.limits)
        self._put(row_rules.copied(after))
        limits = self._limits.get(run_id)
        if row_rules.is_reopened(run, after) and limits is not None:
            self._limits[run_id] = limits.renewed(at)
        if change.dropped_children:
            child_rules.drop(self._children, after, change.dropped_children, at, every=True)
        for group_change in row_rules.group_changes(change):
            child_rules.record_decisions(self._children, run_id, group_change)
        if change.dropped_groups:
            child_rules.end_children(self._children, after, at)
        for location in change.deleted:
            self._saved.pop((run_id, location), None)
        is_over = after.state in ENDED or after.state == RunState.ROLLING_BACK
        self._drop_waits(run_id, lambda each: is_over or each.location in change.deleted)
        if change.deleted:
            self._slot_table.give_up(run_id, locations=change.deleted)
        if after.state == RunState.PAUSED:
            self._slot_table.leave_all(run_id, keeping=())
        if after.queue != run.queue:
            self._ranks.requeue(run_id)
        if change.tags is not None:
            self._change_tags(run_id, change.tags)
        for saved in change.saved:
            self._saved[run_id, saved.location] = saved
        self._delete(run_id, change.deleted)
        self._write(run_id, change.entries)
        self._return(run_id, change.unreceive)
        for message_id in set(change.retracted).intersection(self._inboxes[run_id]):
            del self._messages[message_id]
            self._inboxes[run_id].remove(message_id)
        if change.is_status_over:
            self._statuses.pop(run_id, None)
        if change.is_held_over:
            self._held_no_more(run_id)
        if change.action is not None:
            self.log([change.action])
        return row_rules.copied(self._runs[run_id])

    def import_history(
        self,
        run_id: str,
        *,
        entries: Sequence[EntryRecord],
        attempts: Sequence[AttemptRecord],
        messages: Sequence[Message],
        tags: TagChange | None = None,
    ) -> None:
        if tags is not None:
            self._change_tags(run_id, tags)
        self._write(run_id, entries)
        self._attempts[run_id] += attempts
        self._messages |= {each.id: each for each in messages}
        self._inboxes[run_id] += [each.id for each in sorted(messages, key=lambda each: each.order)]
        newest = max((each.order for each in messages), default=0)
        self._runs[run_id] = replace(self._runs[run_id], message_count=newest)

    # -- holds

    def held(self, kind: HoldKind, name: str) -> Hold | None:
        return self._holds.find(kind, name)

    def hold(self, hold: Hold) -> bool:
        return self._holds.put(hold)

    def lift(self, kind: HoldKind, name: str) -> bool:
        return self._holds.lift(kind, name)

    def release_starts(self, now: datetime, most: int) -> list[RunRecord]:
        def released_at(run: RunRecord, due_at: datetime) -> datetime:
            return child_rules.released_at(self._children, run, due_at, now, self.limits)

        released = []
        for run in self._holds.release(self._runs, most, released_at):
            if run.parent_id is not None:
                run = child_rules.held_back(self._children, self._runs[run.id], run, now, self.limits)
            self._runs[run.id] = run
            released.append(row_rules.copied(run))
        return released

    # -- ranks

    def rankings(self, run_ids: Sequence[str]) -> dict[str, Ranking]:
        return {run_id: found for run_id in run_ids if (found := self._ranks.rankings.get(run_id)) is not None}

    def tags(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        tables = self._tags_at_start if at_start else self._tags
        return {each: dict(sorted(tables[each].items())) for each in run_ids if tables.get(each)}

    def _change_tags(self, run_id: str, change: TagChange) -> None:
        changed = {**self._tags.get(run_id, {}), **change.tags}
        self._tags[run_id] = {name: value for name, value in changed.items() if value is not None}

    def subjects(self, run_ids: Sequence[str]) -> dict[str, list[Subject]]:
        return {each: list(self._subjects[each]) for each in run_ids if each in self._subjects}

    def to_cancel(self, model: str, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for run in sorted(self._runs.values(), key=lambda run: (run.created_at, run.id)):
            for each in self._subjects.get(run.id, ()) if run.state not in ENDED else ():
                if each.cancels and each.model == model and each.key in keys:
                    found.setdefault(each.key, []).append(run.id)
        return found

    def learn_names(self) -> None:
        """Do nothing: a migration has not renamed anything in memory."""

    def learn_queues(self) -> None:
        """Do nothing, for the same reason."""

    # -- events

    def put_event(self, event: EventRecord) -> tuple[EventRecord, bool]:
        for each in self._events:
            if (each.name, each.id) == (event.name, event.id):
                return each, False
        self._newest_event += 1
        self._events.append(replace(event, number=self._newest_event))
        return self._events[-1], True

    def _change_event(self, event: EventRecord, **changed: Any) -> None:
        self._events = [replace(each, **changed) if each.number == event.number else each for each in self._events]

    def _events_of(self, name: str, key: str) -> list[EventRecord]:
        return [each for each in self._events if (each.name, each.key) == (name, key)]

    def newest_event(self, name: str, key: str) -> int:
        return max((each.number for each in self._events_of(name, key)), default=0)

    def event_wait(self, wait_id: str) -> AwaitedEvent | None:
        return self._event_waits.get(wait_id)

    def due_event(self, wait: AwaitedEvent, before: datetime | None = None) -> EventRecord | None:
        due = (each for each in self._events_of(wait.name, wait.key) if wait.takes(each))
        return next((each for each in due if before is None or each.published_at < before), None)

    def _waits_for(self, event: EventRecord) -> list[AwaitedEvent]:
        of_key = (each for each in self._event_waits.values() if (each.name, each.key) == (event.name, event.key))
        return sorted((each for each in of_key if each.after < event.number), key=lambda each: (each.after, each.id))

    def deliver(
        self,
        event: EventRecord,
        most: int,
        message_of: Callable[[EventRecord, AwaitedEvent], OutgoingMessage],
        wait_id: str | None = None,
    ) -> tuple[int, frozenset[str]]:
        waits = filter(None, [self._event_waits.get(wait_id)]) if wait_id else self._waits_for(event)[:most]
        found = [self._event_waits.pop(each.id) for each in waits]
        taken = [each for each in found if self._runs[each.run_id].state not in ENDED]
        known = [event] if wait_id else self._events_of(event.name, event.key)
        given = [(next(first for first in known if wait_id or each.takes(first)), each) for each in taken]
        for number, delivered in Counter(first.number for first, _ in given).items():
            for first in [each for each in self._events if each.number == number]:  # the caller's may be older
                self._change_event(first, delivered=first.delivered + delivered)
        _, queues = self.send([message_of(first, each) for first, each in given])
        return len(taken), queues

    def close_event(self, event: EventRecord) -> bool:
        if self._waits_for(event):
            return False
        self._change_event(event, is_open=False)
        return True

    def open_events(self, most: int) -> list[EventRecord]:
        return [each for each in self._events if each.is_open][:most]

    def forget_events(self, before: datetime, most: int) -> int:
        ended = [each.id for each in self._event_waits.values() if self._runs[each.run_id].state in ENDED]
        for wait_id in ended[:most]:
            del self._event_waits[wait_id]
        old = [each for each in self._events if each.published_at < before and not each.is_open][:most]
        self._events = [each for each in self._events if each not in old]
        return len(old)

    def _drop_waits(self, run_id: str, is_dropped: Callable[[AwaitedEvent], bool]) -> None:
        gone = [each.id for each in self._event_waits.values() if each.run_id == run_id and is_dropped(each)]
        for wait_id in gone:
            del self._event_waits[wait_id]

    # -- the audit log

    def log(self, actions: Sequence[ActionRecord]) -> None:
        self._actions += actions

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        for place, each in reversed(list(enumerate(self._actions))):
            if each.created_at >= since and row_rules.is_repeat(each, action):
                detail = row_rules.repeated(each.detail, action.created_at)
                self._actions[place] = replace(each, detail=detail)
                return True
        return False

    @property
    def actions(self) -> list[ActionRecord]:
        """The audit log, oldest first."""
        with self._lock:
            return list(self._actions)

    # -- passes

    def claim(
        self,
        *,
        queue: str,
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
        since_ranked: datetime | None = None,
    ) -> Claimed:
        if self._holds.is_paused(queue):
            return Claimed()
        due = [run for run in self._runs.values() if run.queue == queue and row_rules.is_due(run, now)]
        found = self._ranks.candidates(due, now)
        chosen = found if since is None else self._ranks.behind(found, since, since_ranked)
        taken, left = chosen[:limit], chosen[limit:]
        runs = Claimed(self._taken(each.run_id, now, lease_until, worker) for each in taken)
        if taken:
            self._ranks.note_served(queue, taken, is_one_left=any(each.tag is not None for each in left))
        return runs

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        run = self._runs.get(run_id)
        if run is None or not row_rules.claimable(run, now) or self._holds.is_paused(run.queue):
            return None
        return self._taken(run_id, now, lease_until, worker)

    def _taken(self, run_id: str, now: datetime, lease_until: datetime, worker: str) -> RunRecord:
        run = row_rules.claimed(self._runs[run_id], now=now, lease_until=lease_until, worker=worker)
        self._runs[run_id] = run
        self._ranks.note_claimed(run_id)
        return row_rules.copied(run)

    def load(self, run_id: str) -> History:
        entries = (_copied(entry) for entry in self._entries.get(run_id, {}).values())
        saved = [each for each in self._saved.values() if each.run_id == run_id] if self._saved else ()
        return History(entries, self._limits.get(run_id), saved)

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, History]:
        histories = {run_id: self.load(run_id) for run_id in run_ids}
        return {run_id: found for run_id, found in histories.items() if len(found) <= most and _size(found) <= size}

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        found = [
            each
            for each in self.messages(run_id)
            if each.state == _PENDING
            and (each.queue in names if names else not is_of_link(each.queue))
            and (before is None or each.sent_at < before)
        ]
        return found[:limit]

    def sent_commits(self) -> None:
        return None

    def commit(self, batch: Batch) -> Committed:
        function = None if batch.ended is None else ends.function_of(batch.ended.workflow)
        if batch.ended is None or function is None:
            return self._commit(batch)
        with self._taken_back_if_refused() as alias:
            committed = self._commit(batch)
            ends.call(alias, function, batch.ended)
        return committed

    @contextmanager
    def _taken_back_if_refused(self) -> Iterator[str | None]:
        """Undo what the block does if it raises. Yields the database whose transaction is open around it; None here."""
        before = self._tables()
        try:
            yield None
        except BaseException:
            self._put_back(before)
            raise

    def declare_ends(self, workflows: Sequence[str], gone: Sequence[str] = ()) -> None:
        self._with_end = (self._with_end - set(gone)) | set(workflows)

    def calls_at_end(self, workflow: str) -> bool:
        return workflow in self._with_end or ends.function_of(workflow) is not None

    def _is_held(self, run_id: str) -> bool:
        failure = self._failures.get(run_id)
        return failure is not None and failure.is_held

    def _commit(self, batch: Batch) -> Committed:
        run = self._runs.get(batch.run_id)
        if run is None or run.fence != batch.fence:
            raise LeaseLost
        if not all(self._is_there(run, each) for each in batch.witnesses):
            raise CommitsLost
        starts, sends, groups = batch.of(ChildStart), batch.of(OutgoingMessage), batch.of(GroupChange)
        returned = [each.location for each in batch.of(MessagesReturned)]
        self._check_keys(starts)
        consumed = row_rules.consumed(batch)
        own = [each for each in sends if each.to == run.id and self._seen(each) is None]
        pending = self._pending_after(run.id, consumed, returned)
        after, overruled = row_rules.after_commit(run, batch, own, pending)
        if after.state == RunState.COMPLETED and self._has_key(run) and self._sends_among(run.id, pending):
            raise MessagesLeft
        written = row_rules.copied(after)
        written.message_count = run.message_count
        self._put(written)
        self._delete(run.id, batch.deleted)
        self._write(run.id, batch.entries)
        self._attempts[run.id] += batch.of(AttemptRecord)
        self._consume(run.id, consumed)
        self._return(run.id, returned)
        if batch.failure is not None:
            self._failures[run.id] = batch.failure
        if batch.of(DoubtOver) and run.id in self._limits:
            self._limits[run.id] = replace(self._limits[run.id], in_doubt=None)
        if batch.of(HeldOver):
            self._held_no_more(run.id)
        for change in batch.of(TagChange):
            self._change_tags(run.id, change)
        if batch.status is not None:
            self._show(batch.status)
        for saved in batch.of(SavedDetails):
            self._saved[run.id, saved.location] = saved
        for forgotten in batch.of(SavesForgotten):
            self._saved.pop((run.id, forgotten.location), None)
        for dropped_at in batch.of(ReservationDropped):
            self._rates.drop(run.id, dropped_at.location)
        for opened in batch.of(LinkOpened):
            self._open_link(run.id, opened, batch.now)
        for closed in batch.of(LinkClosed):
            self._close_link(run.id, closed, batch.now)
        for awaited in batch.of(AwaitedEvent):
            self._event_waits.setdefault(awaited.id, awaited)
        for gone in batch.of(EventsDropped):
            self._drop_waits(run.id, lambda each, ids=gone.ids: not ids or each.id in ids)  # type: ignore[misc]
        for asked in batch.of(QuestionAsked):
            self._ask(run.id, asked, batch.now)
        for over in batch.of(QuestionClosed):
            if over.question_id in self._questions:
                question = self._questions[over.question_id]
                self._questions[over.question_id] = question_rules.closed(question, question_rules.CLOSED, batch.now)
        if batch.worked is not None and run.id in self._limits:
            self._limits[run.id] = replace(self._limits[run.id], worked=batch.worked)
        queues = self._send_from(run.id, sends) | self._start(starts) | self._woken_parent(batch)
        if batch.failure is not None and batch.failure.is_held:
            queues |= child_rules.freed(self._children, run.id, batch.now)
        for group in groups:
            queues |= child_rules.apply(self._children, run.id, group, self._create_members, batch.now)
        if any(group.is_dropped for group in groups):
            child_rules.end_children(self._children, self._runs[run.id], batch.now)
        due = self._children.due(batch)
        if due is not None:
            overruled = True
            self._runs[run.id] = due
        if dropped := [each.child for each in batch.of(ChildrenDropped)]:
            child_rules.drop(self._children, self._runs[run.id], dropped, batch.now, every=False)
        queues |= self._change_slots(batch)
        return Committed(request=after.pending_request, queues_to_notify=queues | {run.queue} if overruled else queues)

    def _open_link(self, run_id: str, opened: LinkOpened, now: datetime) -> None:
        before = [each for each in self.links(run_id) if each.location == opened.location]
        row = LinkRecord(
            token_hash=hash_of(opened.token),
            run_id=run_id,
            link_id=opened.link_id,
            location=opened.location,
            queue=opened.queue,
            generation=len(before),
            verify=opened.verify,
            opened_at=now,
            expires_at=opened.expires_at,
        )
        self._links.setdefault(row.token_hash, row)

    def _close_link(self, run_id: str, closed: LinkClosed, now: datetime) -> None:
        for each in self.links(run_id):
            if each.link_id == closed.link_id and each.closed_at is None:
                self._links[each.token_hash] = replace(each, closed_at=now)

    def link(self, token_hash: str) -> LinkRecord | None:
        return self._links.get(token_hash)

    def links(self, run_id: str) -> list[LinkRecord]:
        return [each for each in self._links.values() if each.run_id == run_id]

    def is_link_open(self, link: LinkRecord) -> bool:
        entry = self._entries.get(link.run_id, {}).get(link.location)
        return entry is not None and entry.kind == EntryKind.LINK and entry.data.get("id") == link.link_id

    def use_link(self, link: LinkRecord, message_id: str, now: datetime) -> None:
        self._links[link.token_hash] = replace(self._links[link.token_hash], used_at=now, message_id=message_id)

    def _ask(self, run_id: str, asked: QuestionAsked, now: datetime) -> None:
        before = self._questions.get(asked.question_id)
        if before is not None and before.run_id != run_id:  # an imported history may name the question of any run
            return
        if before is None:
            for each in self.questions([run_id]):
                if each.location == asked.location:
                    self._questions[each.question_id] = question_rules.closed(each, question_rules.REPLACED, now)
        starters = self._starters_of(run_id) if STARTER in asked.spec["not_by"] else []
        self._questions[asked.question_id] = question_rules.asked(before, run_id, asked, now, starters)

    def question(self, question_id: str) -> QuestionRecord | None:
        return self._questions.get(question_id)

    def questions(self, run_ids: Sequence[str]) -> list[QuestionRecord]:
        return [each for each in self._questions.values() if each.run_id in run_ids]

    def open_questions(self, sought: QuestionsSought, most: int) -> list[QuestionRecord]:
        still = [each for each in self._questions.values() if each.closed_at is None]
        found = [each for each in still if question_rules.is_sought(each, sought)]
        return sorted(found, key=lambda each: (each.asked_at, each.question_id))[:most]

    def _is_over(self, question: QuestionRecord) -> bool:
        run = self._runs.get(question.run_id)
        return run is None or run.state in ENDED or run.state == RunState.ROLLING_BACK

    def awaited_questions(self, questions: Sequence[QuestionRecord]) -> set[str]:
        return {each.question_id for each in questions if self._is_awaited(each)}

    def _is_awaited(self, question: QuestionRecord) -> bool:
        if self._is_over(question):
            return False
        entry = self._entries.get(question.run_id, {}).get(question.location)
        if entry is None or entry.kind != EntryKind.MESSAGE or entry.status != EntryStatus.PENDING:
            return False
        return bool(entry.data.get("ask", {}).get("id") == question.question_id)

    def put_question(self, question: QuestionRecord) -> None:
        self._questions[question.question_id] = question

    def due_questions(self, now: datetime, most: int) -> list[QuestionRecord]:
        found = [
            (each.next_at, each)
            for each in self._questions.values()
            if each.closed_at is None and each.next_at is not None and each.next_at <= now
        ]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])][:most]

    def _starters_of(self, run_id: str) -> list[str]:
        def origin_of(run_id: str) -> tuple[list[str], str | None]:
            run = self._runs.get(run_id)
            if run is None:
                return [], None
            original = run.replay_of_id
            done = (
                each
                for each in self._actions
                if each.outcome == ActionOutcome.DONE and each.created_at >= run.created_at
            )
            if original is None:
                by = [
                    each.actor_key
                    for each in done
                    if (each.run_id, each.action) == (run_id, "start")
                    and question_rules.has_given_input(each.before, each.detail)
                ]
            else:
                by = [
                    each.actor_key
                    for each in done
                    if each.run_id == original
                    and each.action in question_rules.BEGINNING_AGAIN
                    and question_rules.has_begun(run_id, each.detail)
                ][:1]
            child = self.children([run_id]).get(run_id)
            return by, original if child is None else child.parent_id

        return question_rules.starters_of(run_id, origin_of)

    def close_questions(self, now: datetime, most: int) -> int:
        still = [each for each in self._questions.values() if each.closed_at is None]
        over = [each for each in still if each.run_id in self._runs and self._runs[each.run_id].state in ENDED]
        for each in (over := over[:most]):
            self._questions[each.question_id] = question_rules.closed(each, question_rules.ENDED, now)
        return len(over)

    def _is_there(self, run: RunRecord, witness: Witness) -> bool:
        if witness.state is not None:
            return row_rules.is_in_state(run, [witness])
        if witness.version is not None:
            witness = witness._replace(version=_copied(witness.version))
        return row_rules.is_there(self._entries[run.id].get(witness.location), witness)

    @property
    def _slot_table(self) -> MemorySlotTable:
        return MemorySlotTable(self._slots, self._runs, self._holds)

    def acquire(self, run_id: str, fence: int, location: str, wants: Sequence[SlotWant], now: datetime) -> Admission:
        self._check_fence(run_id, fence)
        answer, queues = lines.acquire(self._slot_table, run_id, location, wants, now)
        return replace(answer, queues_to_notify=frozenset(queues))

    def sweep_slots(self, now: datetime, most: int) -> tuple[frozenset[str], int]:  # noqa: ARG002  # nothing is noted here
        queues, number = sweep(self._slot_table, now)
        return frozenset(queues), number

    def give_up_idle_slots(self, now: datetime, most: int) -> list[RunRecord]:
        held = [row for row in self._slots.held.values() if row.kind is not SlotKind.OPEN]
        ids = sorted({row.run_id for row in held if row.since < now - lines.IDLE})
        asleep = [run_id for run_id in ids if run_id in self._runs and lines.is_asleep(self._runs[run_id], now)]
        for run_id in asleep[:most]:
            self._slot_table.leave_all(run_id, keeping=())
            self._runs[run_id] = replace(self._runs[run_id], wake_at=now)
        return [row_rules.copied(self._runs[run_id]) for run_id in asleep[:most]]

    def forget_limit_keys(self, before: datetime, most: int) -> int:
        return self._rates.forget_keys(before, most)

    def set_limit(self, name: str, override: int | None) -> int | None:
        return self._slots.set_limit(name, override)

    def at_once(self, limit: str) -> int | None:
        return self._slot_table.at_once(limit)

    def declare_limit(self, name: str, at_once: int) -> bool:
        before = self._slots.limits.get(name)
        self._slots.limits[name] = at_once
        return before != at_once

    def _check_fence(self, run_id: str, fence: int) -> None:
        run = self._runs.get(run_id)
        if run is None or run.fence != fence:
            raise LeaseLost

    def slots(self, run_ids: Sequence[str]) -> list[SlotRow]:
        return [each for each in self._slots.of_runs(run_ids) if self._runs[each.run_id].state not in ENDED]

    def _change_slots(self, batch: Batch) -> frozenset[str]:
        """Apply a commit's changes of its run's slots; return the queues to notify."""
        if batch.slots is None:
            return frozenset()
        table, run = self._slot_table, self._runs[batch.run_id]
        queues, is_due = lines.change(table, run.id, batch.slots, batch.now)
        if run.state in ENDED:
            for limit, key in sorted(table.give_up(run.id, locations=None)):
                queues |= lines.hand_on(table, limit, key, batch.now)
        elif is_due and run.state != RunState.PAUSED:
            self._runs[run.id] = replace(self._runs[run.id], wake_at=batch.now)
            queues.add(run.queue)
        return frozenset(queues)

    def _create_members(self, starts: Sequence[ChildStart]) -> list[RunRecord]:
        """Create the children of a group. Raises ChildIdTaken, with nothing created."""
        for start in starts:
            if start.run.id in self._runs:
                raise ChildIdTaken(start.run.id)
        self._start(starts)
        return [start.run for start in starts]

    def _start(self, starts: Sequence[ChildStart]) -> frozenset[str]:
        queues = set()
        for run, child in starts:
            wanted = replace(run, ranking=self._ranks.of_child(run)) if isinstance(run, NewRun) else run
            created, is_new = self._created(row_rules.check(wanted))
            self._children.add(child, is_new=is_new)
            if is_new and (with_key := key_of(ChildStart(run, child))) is not None:
                self._give_key(run, *with_key)
            if is_new and created.wake_at is not None and created.wake_at <= run.created_at:
                queues.add(run.queue)
        return frozenset(queues)

    def _check_keys(self, starts: Sequence[ChildStart]) -> None:
        """Raise ChildKeyTaken if another open run has the key of one of these children."""
        for start in starts:
            with_key = key_of(start)
            if with_key is None or start.run.id in self._runs:  # the latter by an earlier try of the commit
                continue
            if self._key_holder(*with_key) is not None:
                raise ChildKeyTaken(start.run.id)

    def children(self, run_ids: Sequence[str]) -> dict[str, ChildRecord]:
        return self._children.of_runs(run_ids)

    def give_turns(self, after: str, now: datetime) -> None:
        """Do nothing: in memory, no row can be locked when a child's turn comes."""

    def children_of(self, parent_id: str, state: str | None, group: str | None) -> list[str]:
        return self._children.children_of(parent_id, state, group)

    def count_children(self, parent_id: str, group: str | None) -> dict[str, int]:
        return self._children.count(parent_id, group)

    def _pending_after(
        self, run_id: str, consumed: Mapping[str, row_rules.Consumed], returned: Sequence[str]
    ) -> list[Message]:
        """Return the messages that are pending after these were consumed and those received by these waits were
        returned.
        """
        found = []
        for each in self.messages(run_id):
            change = consumed.get(each.id)
            received_by = each.received_by if change is None or change.received_by is None else change.received_by
            if received_by in returned or (change is None and each.state == _PENDING):
                found.append(each)
        return found

    def _send_from(self, run_id: str, sends: Sequence[OutgoingMessage]) -> frozenset[str]:
        """Put a commit's messages into inboxes.

        A message of the run to itself is only counted; `after_commit` has made the run due.
        """
        own = [found for each in sends if each.to == run_id and (found := self._stored(each))]
        run = self._runs[run_id]
        self._runs[run_id] = replace(run, message_count=run.message_count + sum(new for _, new in own))
        queues = {run.queue} if row_rules.should_notify(run, [each for each, new in own if new]) else set()
        return self.send([each for each in sends if each.to != run_id])[1] | queues

    def _consume(self, run_id: str, consumed: dict[str, row_rules.Consumed]) -> None:
        for message_id, (state, location, response) in consumed.items():
            message = self._messages.get(message_id)
            if message is None or message.run_id != run_id:
                continue
            received_by = message.received_by if location is None else location
            self._messages[message_id] = replace(message, state=state, received_by=received_by, response=response)

    def _return(self, run_id: str, waits: Sequence[str]) -> None:
        gone = set(waits)
        for each in self.messages(run_id) if gone else ():
            if each.received_by in gone:
                self._messages[each.id] = replace(each, state=_PENDING, received_by="", response=None)

    def _delete(self, run_id: str, locations: Sequence[str]) -> None:
        if not locations:
            return
        gone = set(locations)
        for location in gone:
            self._entries[run_id].pop(location, None)
        self._attempts[run_id] = [each for each in self._attempts[run_id] if each.location not in gone]

    def _write(self, run_id: str, entries: Sequence[EntryRecord]) -> None:
        for entry in entries:
            self._entries[run_id][entry.location] = _copied(entry)

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> Renewed:
        kept = self._held(held)
        for run in kept:
            self._runs[run.id] = row_rules.renewed(run, lease_until)
        return Renewed({run.id: run.pending_request for run in kept})

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        return {
            each: self._runs[each].pending_request
            for each in run_ids
            if each in self._runs and self._runs[each].pending_request
        }

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str]
    ) -> tuple[dict[str, str], list[AskedOfActivity]]:
        asked = self._activities.report(begun, ended, watched, self._live(begun))
        return self.requests(watched), asked

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        held = self._live(saved)
        for each in saved:
            before = self._saved.get((each.run_id, each.location))
            if (each.run_id, each.fence) in held and (before is None or before.order < each.order):
                self._saved[each.run_id, each.location] = each

    def show(self, statuses: Sequence[StatusRecord]) -> None:
        held = {run.id for run in self._held([(each.run_id, each.fence) for each in statuses])}
        for each in statuses:
            if each.run_id in held:
                self._show(each)

    def _show(self, status: StatusRecord) -> None:
        before = self._statuses.get(status.run_id)
        if before is None or before.order < status.order:
            self._statuses[status.run_id] = status

    def statuses(self, run_ids: Sequence[str]) -> dict[str, Status]:
        return {each: self._statuses[each].status for each in run_ids if each in self._statuses}

    def get_shown(self, run_ids: Sequence[str]) -> dict[str, tuple[RunRecord, Status | None]]:
        shown = self.statuses(run_ids)
        return {run_id: (run, shown.get(run_id)) for run_id, run in self.get_many(run_ids).items()}

    def ask_activities(
        self,
        run: RunRecord,
        location: str,
        now: datetime,  # noqa: ARG002  # no page shows it
        *,
        stack: bool = False,
        abandon: bool = False,
    ) -> list[str]:
        return self._activities.ask(run, location, stack=stack, abandon=abandon)

    def answer_stack(self, asked: AskedOfActivity, stack: str, now: datetime) -> None:  # noqa: ARG002  # no page shows it
        self._activities.answer_stack(asked)

    def forget_activities(self) -> None:
        leases = {(run.id, run.fence) for run in self._runs.values() if run.lease_expires_at is not None}
        self._activities.forget(leases)

    def release(self, held: Sequence[tuple[str, int]], now: datetime, *, due_at: datetime | None = None) -> Released:
        runs = self._held(held)
        for run in runs:
            self._runs[run.id] = row_rules.released(run, now, due_at)
        return Released(frozenset(), frozenset(run.queue for run in runs))

    def _live(self, noted: Sequence[Activity | SavedDetails]) -> set[tuple[str, int]]:
        """Return the ids and fences of those of these runs whose leases are live."""
        return {(run.id, run.fence) for run in self._held([(each.run_id, each.fence) for each in noted])}

    def _held(self, held: Sequence[tuple[str, int]]) -> list[RunRecord]:
        runs = ((self._runs.get(run_id), fence) for run_id, fence in held)
        return [run for run, fence in runs if run and run.fence == fence and run.lease_expires_at is not None]

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        deadlines = (
            run.wake_at
            for run in self._runs.values()
            if run.queue in queues and run.state != RunState.PAUSED and run.state not in ENDED
        )
        later = [each for each in deadlines if each is not None and each > after]
        return min((each for each in later if until is None or each <= until), default=None)

    def due_queues(
        self, now: datetime, *, queues: Sequence[str] | None = None, since: datetime | None = None
    ) -> list[str]:
        runs = self._runs.values()
        return sorted(
            {
                run.queue
                for run in runs
                if run.wake_at is not None
                and run.wake_at <= now
                and (since is None or run.wake_at >= since)
                and (queues is None or run.queue in queues)
                and row_rules.claimable(run, now)
                and not self._holds.is_paused(run.queue)
            }
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Lock the store for the block; undo its writes if the block raises."""
        with self._lock:
            tables = self._tables()
            try:
                yield
            except BaseException:
                self._put_back(tables)
                raise

    def _tables(self) -> Tables:
        return {name: copied(getattr(self, name)) for name in _CONTENT}

    def _put_back(self, tables: Tables) -> None:
        for name, table in tables.items():
            if name != "_runs":
                setattr(self, name, table)
        self._runs.clear()  # other tables refer to this mapping
        self._runs.update(tables["_runs"])


#: The tables of a snapshot. Activities are written outside of transactions, and ends are declared for good.
_CONTENT: Final = (
    *("_runs", "_entries", "_attempts", "_messages", "_inboxes", "_actions", "_failures", "_holds", "_children"),
    *("_limits", "_keys", "_key_holders", "_keyed_sends", "_saved", "_slots", "_rates", "_ranks", "_tags"),
    *("_tags_at_start", "_statuses", "_subjects", "_links", "_events", "_event_waits", "_questions"),
)
