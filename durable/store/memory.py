"""The store in memory: for tests of workflows and of the engine itself that need no database.

Thread-safe, and as strict as the databases: it keeps copies, the engine's data passes through JSON, and the invariants
of a run's row are checked. Nothing outlives the object.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime

from durable.core.control_flow import LeaseLost
from durable.core.errors import KeyConflictError, RunNotFoundError
from durable.core.limits import History, NewRun, RunLimits
from durable.core.location import escape
from durable.core.records import (
    ENDED,
    ActionRecord,
    Activity,
    AskedOfActivity,
    AttemptRecord,
    Batch,
    ChildRecord,
    ChildStart,
    Committed,
    EntryRecord,
    FailureRecord,
    Hold,
    HoldKind,
    KeyRecord,
    Message,
    MessageState,
    OutgoingMessage,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    WhenParentEnds,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import moved, paused_at_once, resumed
from durable.store import row_rules
from durable.store.base import ChildIdTaken, Claimed, DuePoint, Renewed
from durable.store.outline import bare_entry, bare_message

__all__ = ["MemoryStore", "Tables"]

#: The content of a store at one time.
Tables = tuple[
    dict[str, RunRecord],
    dict[str, dict[str, EntryRecord]],
    dict[str, list[AttemptRecord]],
    dict[str, Message],
    dict[str, list[str]],
    list[ActionRecord],
    dict[str, FailureRecord],
    dict[tuple[HoldKind, str], Hold],
    dict[str, datetime],
    dict[str, dict[str, ChildRecord]],
    set[str],
    dict[str, datetime],
    dict[str, RunLimits],
    dict[str, KeyRecord],
    dict[tuple[str, str], str],
    dict[tuple[str, str], SavedDetails],
]


def _size(entries: list[EntryRecord]) -> int:
    return sum(
        len(text.encode(errors="surrogatepass")) for each in entries for text in (each.output, each.arguments) if text
    )


def _copied(entry: EntryRecord) -> EntryRecord:
    return replace(entry, data=json.loads(json.dumps(entry.data)) if entry.data else {})


class MemoryStore:
    """A `Store` in memory."""

    def __init__(self) -> None:
        self._lock: AbstractContextManager[object] = threading.RLock()
        self._runs: dict[str, RunRecord] = {}
        self._entries: dict[str, dict[str, EntryRecord]] = {}
        self._attempts: dict[str, list[AttemptRecord]] = {}
        self._messages: dict[str, Message] = {}
        self._inboxes: dict[str, list[str]] = {}  # message ids in order
        self._actions: list[ActionRecord] = []
        self._failures: dict[str, FailureRecord] = {}
        self._activities: dict[tuple[str, str], Activity] = {}
        self._asked: dict[Activity, AskedOfActivity] = {}
        self._holds: dict[tuple[HoldKind, str], Hold] = {}
        self._held_starts: dict[str, datetime] = {}  # when each was to begin
        self._children: dict[str, dict[str, ChildRecord]] = {}  # by parent and child
        self._dropped: set[str] = set()  # children
        self._keys: dict[str, KeyRecord] = {}  # by run
        self._holders: dict[tuple[str, str], str] = {}  # the run that had a key last, by workflow and key
        self._cascades: dict[str, datetime] = {}  # parents that have children left to be cancelled
        self._limits: dict[str, RunLimits] = {}
        self._saved: dict[tuple[str, str], SavedDetails] = {}

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        with self._lock:
            for run in runs:
                row_rules.check(run)
            return [self._created(run) for run in runs]

    def _created(self, run: RunRecord) -> tuple[RunRecord, bool]:
        new = run.id not in self._runs
        if new:
            hold = self._holds.get((HoldKind.WORKFLOW, run.workflow))
            if hold is not None and run.state == RunState.PENDING:
                self._held_starts[run.id] = run.wake_at or run.created_at
                run = replace(run, **paused_at_once(run, summary=row_rules.held_summary(hold)))
            if isinstance(run, NewRun) and run.limits is not None:
                self._limits[run.id] = run.limits
            self._runs[run.id] = row_rules.copied(run)
            self._entries[run.id] = {}
            self._attempts[run.id] = []
            self._inboxes[run.id] = []
        return row_rules.copied(self._runs[run.id]), new

    def _put(self, run: RunRecord) -> None:
        """Write the row of a run, and do what follows from its end or from its reopening."""
        before = self._runs[run.id]
        if row_rules.is_reopened(before, run):
            self._reopened(before)
        self._runs[run.id] = run
        if row_rules.has_ended(before, run):
            self._ended(run)

    # -- keys

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        with self._lock:
            holder = self._holder(run.workflow, key)
            if run.id not in self._runs and holder is not None:
                return row_rules.copied(holder), False
            created, is_new = self._created(row_rules.check(run))
            if is_new:
                self._keys[run.id] = KeyRecord(run_id=run.id, workflow=run.workflow, key=key, taken_at=run.created_at)
                self._holders[run.workflow, key] = run.id
            return created, is_new

    def key_holder(self, workflow: str, key: str, *, lock: bool = False) -> RunRecord | None:  # noqa: ARG002
        with self._lock:  # a transaction holds it
            holder = self._holder(workflow, key)
            return None if holder is None else row_rules.copied(holder)

    def _holder(self, workflow: str, key: str) -> RunRecord | None:
        """Return the open run that has the key: the end of a run frees it."""
        run = self._runs.get(self._holders.get((workflow, key), ""))
        return run if run is not None and self._holds_key(run) else None

    def _holds_key(self, run: RunRecord) -> bool:
        return run.state not in ENDED and run.id in self._keys and self._keys[run.id].is_open

    def free_key(self, run_id: str, *, for_good: bool) -> None:
        with self._lock:
            if for_good:
                self._keys.pop(run_id, None)
            elif run_id in self._keys:
                self._keys[run_id] = replace(self._keys[run_id], is_open=False)

    def move(self, run: RunRecord, *, now: datetime, wake_at: datetime, input: str | None) -> RunRecord:
        with self._lock:
            key = self._keys[run.id]
            self._put(replace(run, **moved(run, wake_at=wake_at, input=input)))
            if run.id in self._held_starts:
                self._held_starts[run.id] = wake_at
            self._keys[run.id] = replace(key, moves=key.moves + 1, moved_at=now)
            return row_rules.copied(self._runs[run.id])

    def keys(self, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        with self._lock:
            found = [(each, self._keys[each]) for each in run_ids if each in self._keys]
            return {each: replace(key, is_open=self._holds_key(self._runs[each])) for each, key in found}

    def _ended(self, run: RunRecord) -> None:
        if run.parent_id in self._runs and run.id in self._children.get(run.parent_id, ()):
            self._put(row_rules.after_child(self._runs[run.parent_id], run))
        self._end_children(run, row_rules.end_of(run))

    def _reopened(self, run: RunRecord) -> None:
        """Take back what the end of the run has left: its open failure, and its key that is free."""
        if (key := self._keys.get(run.id)) is not None:
            holder = self._holder(key.workflow, key.key)
            if holder is not None and holder.id != run.id:
                raise KeyConflictError(holder.id, key.key)
            self._keys[run.id] = replace(key, is_open=True)
            self._holders[key.workflow, key.key] = run.id
        if run.state == RunState.FAILED and (failure := self._failures.get(run.id)) is not None:
            self._failures[run.id] = replace(failure, is_open=False)

    def _end_children(self, run: RunRecord, at: datetime) -> int:
        """Cancel the children of a run that are to be cancelled, and theirs, a bounded number; return how many."""
        number = 0
        parents = [run]
        while parents:
            parent = parents.pop(0)
            open_ones = self._cancellable(parent)
            for child in open_ones[: row_rules.CASCADED_AT_ONCE - number]:
                number += 1
                self._runs[child.id] = after = row_rules.after_parent(child, parent, at)
                if after.state in ENDED:
                    parents.append(after)
            if self._cancellable(parent):
                self._cascades.setdefault(parent.id, at)
            else:
                self._cascades.pop(parent.id, None)
        return number

    def _cancellable(self, parent: RunRecord) -> list[RunRecord]:
        """Return the children of this parent that are to be cancelled and are not yet."""
        children = sorted(self._children.get(parent.id, {}).values(), key=lambda each: each.position)
        runs = [
            self._runs[each.run_id]
            for each in children
            if each.run_id in self._dropped
            or (parent.state in ENDED and each.when_parent_ends == WhenParentEnds.CANCEL)
        ]
        return [each for each in runs if not row_rules.is_ending(each)]

    def _drop(self, run_id: str, children: Sequence[str], at: datetime, *, every: bool) -> None:
        """Cancel these children of a run that goes on; unless `every`, not those that go on after its end."""
        known = self._children.get(run_id, {})
        own = [known[each] for each in children if each in known]
        self._dropped |= {each.run_id for each in own if every or each.when_parent_ends == WhenParentEnds.CANCEL}
        if children:
            self._end_children(self._runs[run_id], at)

    def cascade(self, after: str, now: datetime) -> tuple[str, int] | None:
        with self._lock:
            found = min((each for each in self._cascades if each > after), default=None)
            return None if found is None else (found, self._end_children(self._runs[found], now))

    def get(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return row_rules.copied(run) if (run := self._runs.get(run_id)) else None

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        with self._lock:
            return {each: row_rules.copied(self._runs[each]) for each in run_ids if each in self._runs}

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        with self._lock:
            return {each: str(self._runs[each].state) for each in run_ids if each in self._runs}

    def history(self, run_id: str) -> list[EntryRecord]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def limits(self, run_id: str) -> RunLimits | None:
        with self._lock:
            return self._limits.get(run_id)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        with self._lock:
            return list(self._attempts.get(run_id, ()))

    def failure(self, run_id: str) -> FailureRecord | None:
        with self._lock:
            return self._failures.get(run_id)

    def messages(self, run_id: str) -> list[Message]:
        with self._lock:
            return [self._messages[each] for each in self._inboxes.get(run_id, ())]

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        with self._lock:
            stored = [self._stored(message) for message in messages]
            queues = set()
            for run_id in sorted({message.to for message in messages if message.to in self._runs}):
                new = [each for each, fresh in filter(None, stored) if fresh and each.run_id == run_id]
                self._runs[run_id] = run = row_rules.after_messages(self._runs[run_id], new)
                if row_rules.should_notify(run, new):
                    queues.add(run.queue)
            return [found and found[0] for found in stored], frozenset(queues)

    def _stored(self, outgoing: OutgoingMessage) -> tuple[Message, bool] | None:
        """Return the message as stored, and True if it is new; None if there is no such run."""
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

    def outline(self, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
        with self._lock:
            return list(map(bare_entry, self.history(run_id))), list(map(bare_message, self.messages(run_id)))

    def message(self, message_id: str) -> Message | None:
        with self._lock:
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
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            change = decide(row_rules.copied(run), lambda: self.history(run_id))
            after = row_rules.after_change(run, change)
            self._put(row_rules.copied(after))
            limits = self._limits.get(run_id)
            if row_rules.is_reopened(run, after) and limits is not None and after.wake_at is not None:
                self._limits[run_id] = limits.renewed(after.wake_at)
            self._drop(run_id, change.dropped_children, after.wake_at or after.created_at, every=True)
            for location in change.deleted:
                self._saved.pop((run_id, location), None)
            for saved in change.saved:
                self._saved[run_id, saved.location] = saved
            self._delete(run_id, change.deleted)
            self._write(run_id, change.entries)
            self._return(run_id, change.unreceive)
            for message_id in set(change.retracted).intersection(self._inboxes[run_id]):
                del self._messages[message_id]
                self._inboxes[run_id].remove(message_id)
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
    ) -> None:
        with self._lock:
            self._write(run_id, entries)
            self._attempts[run_id] += attempts
            self._messages |= {each.id: each for each in messages}
            self._inboxes[run_id] += [each.id for each in sorted(messages, key=lambda each: each.order)]
            newest = max((each.order for each in messages), default=0)
            self._runs[run_id] = replace(self._runs[run_id], message_count=newest)

    # -- holds

    def held(self, kind: HoldKind, name: str) -> Hold | None:
        with self._lock:
            return self._holds.get((kind, name))

    def hold(self, hold: Hold) -> bool:
        with self._lock:
            return self._holds.setdefault((hold.kind, hold.name), hold) is hold

    def lift(self, kind: HoldKind, name: str) -> bool:
        with self._lock:
            return self._holds.pop((kind, name), None) is not None

    def release_starts(self, now: datetime, most: int) -> list[RunRecord]:
        with self._lock:
            released: list[RunRecord] = []
            for run_id, due_at in list(self._held_starts.items()):
                run = self._runs[run_id]
                if (HoldKind.WORKFLOW, run.workflow) in self._holds:
                    continue
                if len(released) == most:
                    break
                del self._held_starts[run_id]
                if row_rules.is_held_start(run):
                    patch = resumed(run, now=max(now, due_at), summary=Summary(SummaryKind.RESUMED))
                    self._runs[run_id] = row_rules.after_change(run, RunChange(run=patch))
                    released.append(row_rules.copied(self._runs[run_id]))
            return released

    # -- the audit log

    def log(self, actions: Sequence[ActionRecord]) -> None:
        with self._lock:
            self._actions += actions

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        with self._lock:
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
        queues: Sequence[str],
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
    ) -> Claimed:
        with self._lock:
            due = sorted(
                (run.wake_at, run.id)
                for run in self._runs.values()
                if run.queue in queues
                and not self._is_paused(run.queue)
                and run.wake_at is not None
                and run.wake_at <= now
                and row_rules.claimable(run, now)
            )
            chosen = due if since is None else [point for point in due if point >= since]
            return Claimed(self._taken(run_id, now, lease_until, worker) for _, run_id in chosen[:limit])

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or not row_rules.claimable(run, now) or self._is_paused(run.queue):
                return None
            return self._taken(run_id, now, lease_until, worker)

    def _is_paused(self, queue: str) -> bool:
        return (HoldKind.QUEUE, queue) in self._holds

    def _taken(self, run_id: str, now: datetime, lease_until: datetime, worker: str) -> RunRecord:
        run = row_rules.claimed(self._runs[run_id], now=now, lease_until=lease_until, worker=worker)
        self._runs[run_id] = run
        return row_rules.copied(run)

    def load(self, run_id: str) -> History:
        with self._lock:
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
            if each.state == MessageState.PENDING
            and (not names or each.queue in names)
            and (before is None or each.sent_at < before)
        ]
        return found[:limit]

    def commit(self, batch: Batch) -> Committed:
        with self._lock:
            run = self._runs.get(batch.run_id)
            if run is None or run.fence != batch.fence:
                raise LeaseLost
            consumed = row_rules.consumed(batch)
            own = [each for each in batch.sends if each.to == run.id and self._seen(each) is None]
            pending = self._pending_after(run.id, consumed, batch.returned)
            after, overruled = row_rules.after_commit(run, batch, own, pending)
            self._put(row_rules.copied(replace(after, message_count=run.message_count)))
            self._delete(run.id, batch.deleted)
            self._write(run.id, batch.entries)
            self._attempts[run.id] += batch.attempts
            self._consume(run.id, consumed)
            self._return(run.id, batch.returned)
            if batch.failure is not None:
                self._failures[run.id] = batch.failure
            for each in batch.saved:
                self._saved[run.id, each.location] = each
            for location in batch.forgotten:
                self._saved.pop((run.id, location), None)
            if batch.worked is not None and run.id in self._limits:
                self._limits[run.id] = replace(self._limits[run.id], worked=batch.worked)
            queues = self._send_from(run.id, batch.sends) | self._start(batch.starts) | self._woken_parent(batch)
            overruled |= self._has_ended_child(batch)
            self._drop(run.id, batch.dropped_children, batch.now, every=False)
            return Committed(
                request=after.pending_request, queues_to_notify=queues | {run.queue} if overruled else queues
            )

    def _start(self, starts: Sequence[ChildStart]) -> frozenset[str]:
        """Create the children of a commit; return the queues to notify."""
        queues = set()
        for run, child in starts:
            created, is_new = self._created(row_rules.check(run))
            children = self._children.setdefault(child.parent_id, {})
            if not is_new and run.id not in children:
                raise ChildIdTaken(run.id)
            children.setdefault(run.id, child)
            if is_new and created.wake_at is not None and created.wake_at <= run.created_at:
                queues.add(run.queue)
        return frozenset(queues)

    def _has_ended_child(self, batch: Batch) -> bool:
        """Make a run due that parks for a child which has ended or is gone; return True if it does."""
        run = self._runs[batch.run_id]
        found = (self._runs.get(each) for each in batch.awaited_children)
        is_due = run.state not in ENDED and any(child is None or child.state in ENDED for child in found)
        if is_due:
            self._runs[run.id] = replace(run, wake_at=batch.now)
        return is_due

    def _woken_parent(self, batch: Batch) -> frozenset[str]:
        """Return the queue of the parent that this end of a child has made due."""
        parent = self._runs.get(batch.parent_id) if batch.parent_id is not None else None
        return frozenset({parent.queue} if parent is not None and row_rules.is_due(parent, batch.now) else ())

    def children(self, run_ids: Sequence[str]) -> dict[str, ChildRecord]:
        with self._lock:
            found = (self._children.get(run.parent_id or "", {}).get(run.id) for run in self._known(run_ids))
            return {each.run_id: each for each in found if each is not None}

    def children_of(self, parent_id: str, state: str | None, group: str | None) -> list[str]:
        with self._lock:
            return [
                each.run_id
                for each in sorted(self._children.get(parent_id, {}).values(), key=lambda each: each.position)
                if state in (None, self._runs[each.run_id].state) and group in (None, each.group)
            ]

    def _known(self, run_ids: Sequence[str]) -> list[RunRecord]:
        return [self._runs[each] for each in run_ids if each in self._runs]

    def _pending_after(
        self, run_id: str, consumed: Mapping[str, row_rules.Consumed], returned: Sequence[str]
    ) -> list[Message]:
        """Return the messages that are pending once these were consumed, and what these waits received is returned."""
        found = []
        for each in self.messages(run_id):
            change = consumed.get(each.id)
            received_by = each.received_by if change is None or change.received_by is None else change.received_by
            if received_by in returned or (change is None and each.state == MessageState.PENDING):
                found.append(each)
        return found

    def _send_from(self, run_id: str, sends: Sequence[OutgoingMessage]) -> frozenset[str]:
        """Put a commit's messages into inboxes.

        Those of the run to itself are counted; `after_commit` has made it due.
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
        """Put the messages that these waits received back into the inbox."""
        gone = set(waits)
        for each in self.messages(run_id) if gone else ():
            if each.received_by in gone:
                self._messages[each.id] = replace(each, state=str(MessageState.PENDING), received_by="", response=None)

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
        with self._lock:
            kept = self._held(held)
            for run in kept:
                self._runs[run.id] = row_rules.renewed(run, lease_until)
            return Renewed({run.id: run.pending_request for run in kept})

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        with self._lock:
            return {
                each: self._runs[each].pending_request
                for each in run_ids
                if each in self._runs and self._runs[each].pending_request
            }

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str]
    ) -> tuple[dict[str, str], list[AskedOfActivity]]:
        with self._lock:
            for each in ended:
                noted = self._activities.get((each.run_id, each.location))
                if noted is not None and noted.fence == each.fence:
                    del self._activities[each.run_id, each.location]
            held = {(run.id, run.fence) for run in self._held([(each.run_id, each.fence) for each in begun])}
            for each in begun:
                noted = self._activities.get((each.run_id, each.location))
                if (each.run_id, each.fence) in held and (noted is None or noted.fence <= each.fence):
                    self._activities[each.run_id, each.location] = each
            noted_now = set(self._activities.values())
            self._asked = {each: asked for each, asked in self._asked.items() if each in noted_now}
            asked = [each for each in self._asked.values() if each.run_id in watched and (each.stack or each.abandon)]
            return self.requests(watched), asked

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        with self._lock:
            held = {(run.id, run.fence) for run in self._held([(each.run_id, each.fence) for each in saved])}
            for each in saved:
                before = self._saved.get((each.run_id, each.location))
                if (each.run_id, each.fence) in held and (before is None or before.order < each.order):
                    self._saved[each.run_id, each.location] = each

    def ask_activities(
        self,
        run: RunRecord,
        location: str,
        now: datetime,  # noqa: ARG002  # no page shows it
        *,
        stack: bool = False,
        abandon: bool = False,
    ) -> list[str]:
        with self._lock:
            found = [
                each
                for each in sorted(self._activities.values(), key=lambda each: each.began_at)
                if (each.run_id, each.fence) == (run.id, run.fence) and location in ("", each.location)
            ]
            for each in found:
                before = self._asked.get(each)
                self._asked[each] = AskedOfActivity(
                    run_id=each.run_id,
                    location=each.location,
                    attempt=each.attempt,
                    fence=each.fence,
                    stack=stack or (before is not None and before.stack),
                    abandon=abandon or (before is not None and before.abandon),
                )
            return [each.location for each in found]

    def answer_stack(self, asked: AskedOfActivity, stack: str, now: datetime) -> None:  # noqa: ARG002  # no page shows it
        with self._lock:
            for each, wish in self._asked.items():
                if (wish.run_id, wish.location, wish.fence) == (asked.run_id, asked.location, asked.fence):
                    self._asked[each] = replace(wish, stack=False)

    def forget_activities(self) -> None:
        with self._lock:
            held = {(run.id, run.fence) for run in self._runs.values() if run.lease_expires_at is not None}
            self._activities = {
                key: each for key, each in self._activities.items() if (each.run_id, each.fence) in held
            }

    def release(
        self, held: Sequence[tuple[str, int]], now: datetime, *, due_at: datetime | None = None
    ) -> frozenset[str]:
        with self._lock:
            for run in self._held(held):
                self._runs[run.id] = row_rules.released(run, now, due_at)
            return frozenset()

    def _held(self, held: Sequence[tuple[str, int]]) -> list[RunRecord]:
        runs = ((self._runs.get(run_id), fence) for run_id, fence in held)
        return [run for run, fence in runs if run and run.fence == fence and run.lease_expires_at is not None]

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        with self._lock:
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
        with self._lock:
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
                    and not self._is_paused(run.queue)
                }
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Lock the store until the block ends; undo what it wrote if the block raises."""
        with self._lock:
            tables = self._tables()
            try:
                yield
            except BaseException:
                self._put_back(tables)
                raise

    def _tables(self) -> Tables:
        # records are replaced, never changed, so copies of the tables are enough
        return (
            dict(self._runs),
            {run_id: dict(entries) for run_id, entries in self._entries.items()},
            {run_id: list(attempts) for run_id, attempts in self._attempts.items()},
            dict(self._messages),
            {run_id: list(inbox) for run_id, inbox in self._inboxes.items()},
            list(self._actions),
            dict(self._failures),
            dict(self._holds),
            dict(self._held_starts),
            {parent: dict(children) for parent, children in self._children.items()},
            set(self._dropped),
            dict(self._cascades),
            dict(self._limits),
            dict(self._keys),
            dict(self._holders),
            dict(self._saved),
        )

    def _put_back(self, tables: Tables) -> None:
        (
            self._runs,
            self._entries,
            self._attempts,
            self._messages,
            self._inboxes,
            self._actions,
            self._failures,
            self._holds,
            self._held_starts,
            self._children,
            self._dropped,
            self._cascades,
            self._limits,
            self._keys,
            self._holders,
            self._saved,
        ) = tables
