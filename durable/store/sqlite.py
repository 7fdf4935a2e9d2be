"""The store for SQLite: ordinary ORM statements in one short transaction.

SQLite has one lock, for the whole database, and no row locks. Every writing transaction begins with a write, because
one that first reads and then writes fails beside another writer. From then on no other transaction writes. Must not
decide what happens to a run's row: `durable.store.rules.row_rules` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Count, Exists, F, Min, OuterRef, Sum, TextField, Value
from django.db.models.functions import Cast, Coalesce, Length

from durable.core import witnesses
from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.limits.slot_records import Admission, SlotWant
from durable.core.location import LINK_QUEUES
from durable.core.new_runs import NewRun
from durable.core.records import (
    ENDED,
    Activity,
    AskedOfActivity,
    AttemptRecord,
    Batch,
    ChildrenDropped,
    ChildStart,
    Committed,
    EntryRecord,
    FailureRecord,
    GroupChange,
    HoldKind,
    Message,
    MessagesReturned,
    MessageState,
    OutgoingMessage,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    StatusRecord,
    Witness,
)
from durable.core.time_limits import History, RunLimits
from durable.core.transitions import paused_at_once
from durable.core.witnesses import columns_of
from durable.models import (
    Attempt,
    Cause,
    CauseBuild,
    Child,
    Entry,
    EntryMetadata,
    Failure,
    HeldStart,
    Hold,
    QueueMessage,
    Run,
    RunLimit,
    RunStatus,
    StepSave,
)
from durable.models.causes import names_of
from durable.models.run import RunQuerySet
from durable.store.base import ChildIdTaken, Claimed, DuePoint, MessagesLeft, Released, Renewed
from durable.store.database import DatabaseStore, entry_keys
from durable.store.rules import child_rules, lines, row_rules
from durable.store.tables import keys, ranks, rates, slots
from durable.store.tables.rows import (
    ATTEMPT,
    CHILD,
    ENTRY,
    ENTRY_LOOKUPS,
    FAILURE_NAMES,
    LIMITS,
    MESSAGE,
    METADATA,
    OF_LIMITS,
    OF_SAVED,
    RUN,
    SAVED,
    STATUS,
    cause_row,
    run_records,
)


def _limits_column(name: str) -> Any:
    if name in _LIMITS_AT:
        limit = _LIMITS_AT[name]
        return F(limit) if limit in ("deadline", "in_doubt") else Cast(limit, TextField())
    text = {"kind": OF_LIMITS, "data": "{}"}.get(name)
    return Value(text, output_field=TextField())


#: The limits of a run in the form of `ENTRY_LOOKUPS`: time columns have the moments, text columns the lengths.
_LIMITS_AT: Final = {
    "metadata__created_at": "deadline",
    "metadata__completed_at": "in_doubt",
    "output": "length",
    "arguments": "work_limit",
    "location": "worked",
}
_LIMITS_AS_ENTRY: Final[list[Any]] = [_limits_column(name) for name in ENTRY_LOOKUPS]
_AT_KIND: Final = ENTRY_LOOKUPS.index("kind")


def _limits_of(row: Sequence[Any]) -> RunLimits:
    found = {limit: row[ENTRY_LOOKUPS.index(name)] for name, limit in _LIMITS_AT.items()}
    moments = {name: found.pop(name) for name in ("deadline", "in_doubt")}
    lengths = {name: None if text is None else float(text) for name, text in found.items()}
    return RunLimits(**moments, **lengths)  # type: ignore[arg-type]  # `worked` is never None


#: A step's saved details in the form of `ENTRY_LOOKUPS`, in columns of matching types.
_SAVED_AT: Final = {
    "location": "location",
    "ordinal": "fence",
    "metadata__attempts": "attempt",
    "metadata__finished_ordinal": "number",
    "output": "details",
}


def _saved_column(name: str) -> Any:
    if name in _SAVED_AT:
        return F(_SAVED_AT[name])
    if name == "arguments":
        return Cast("generation", TextField())
    return Value({"kind": OF_SAVED, "data": "{}"}.get(name), output_field=TextField())


_SAVED_AS_ENTRY: Final[list[Any]] = [_saved_column(name) for name in ENTRY_LOOKUPS]


def _saved_of(run_id: str, row: Sequence[Any]) -> SavedDetails:
    found = {name: row[ENTRY_LOOKUPS.index(at)] for at, name in _SAVED_AT.items()}
    return SavedDetails(run_id=run_id, generation=int(row[ENTRY_LOOKUPS.index("arguments")]), **found)


class SQLiteStore(DatabaseStore):
    """A `Store` on SQLite."""

    @property
    def _runs(self) -> RunQuerySet:
        return Run.objects.using(self.alias)

    def _begin_to_write(self) -> None:
        self._runs.lock_table()

    def _concerned(self, batch: Batch) -> dict[str, RunRecord]:
        """Return the rows that a commit may change.

        Raises LeaseLost if the batch's run has another fence, and CommitsLost if a witness is missing.
        """
        sends = batch.of(OutgoingMessage)
        parent = [batch.parent_id] if sends and batch.parent_id is not None else []
        found = self._runs.with_ids(list({batch.run_id, *(each.to for each in sends), *parent}))
        entries = [each for each in batch.witnesses if each.state is None]
        there = {f"witness_{n}": Exists(self._witness(batch.run_id, each)) for n, each in enumerate(entries)}
        rows = list(found.annotate(**there).values(*there, *RUN.names))
        runs = {row["id"]: RunRecord(**{name: row[name] for name in RUN.names}) for row in rows}
        run = runs.get(batch.run_id)
        if run is None or run.fence != batch.fence:
            raise LeaseLost
        if not all(row[each] for row in rows for each in there) or not row_rules.is_in_state(run, batch.witnesses):
            raise CommitsLost
        return runs

    def _witness(self, run_id: str, witness: Witness) -> Any:
        columns = columns_of(witness)
        where = {name if name in ENTRY.names else f"metadata__{name}": value for name, value in columns.items()}
        if witness.has_output:
            where["output__isnull"] = False
        return Entry.objects.using(self.alias).filter(run_id=run_id, location=witness.location, **where)

    def _update(self, before: RunRecord, after: RunRecord) -> frozenset[str]:
        """Write what has changed; return the queues to notify because of the run's end."""
        changed = row_rules.changed_columns(before, after)
        if changed:
            self._runs.held_with(before.id, before.fence).update(**changed)
        if not row_rules.has_ended(before, after):
            return frozenset()
        if keys.close(self.alias, after.id) and after.state == RunState.COMPLETED and self.keyed_sends(after.id):
            raise MessagesLeft
        Failure.held_no_more(self.alias, after.id)
        slots.note_end(self.alias, after.id)
        rates.forget(self.alias, after.id)
        return child_rules.ended(self._children, after)

    def _drop(self, run: RunRecord, children: Sequence[str], at: datetime) -> None:
        child_rules.drop(self._children, run, children, at, every=True)

    def _end_dropped(self, run: RunRecord, at: datetime) -> None:
        child_rules.end_children(self._children, run, at)

    # -- verbs, from outside a pass

    def _insert(self, runs: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
        taken: dict[str, RunRecord] = {}
        with transaction.atomic(using=self.alias):
            while not self._inserted(free := [run for run in runs if run.id not in taken]):
                found = self.get_many([run.id for run in free])
                if not found:
                    raise IntegrityError(f"the runs {[run.id for run in free]} break a constraint")
                taken |= found
            new = [run for run in runs if run.id not in taken]
            limited = [(run.id, run.limits) for run in new if isinstance(run, NewRun) and run.limits is not None]
            rows = [RunLimit(run_id=run_id, **LIMITS.attributes(limits)) for run_id, limits in limited]
            RunLimit.objects.using(self.alias).bulk_create(rows)
            return taken, self._hold_starts(new)

    def _hold_starts(self, runs: Sequence[RunRecord]) -> dict[str, str]:
        """Pause the new runs whose workflows are held; return their summaries by id.

        The holds are read after the insert: a transaction that reads first could no longer write.
        """
        pending = [run for run in runs if run.state == RunState.PENDING]
        holds = Hold.objects.using(self.alias).filter(
            kind=HoldKind.WORKFLOW.value, name__in=sorted({run.workflow for run in pending})
        )
        summaries = dict(holds.order_by("name").values_list("name", "summary")) if pending else {}
        held = [run for run in pending if run.workflow in summaries]
        for run in held:
            self._update(run, replace(run, **paused_at_once(run, summary=summaries[run.workflow])))
        HeldStart.objects.using(self.alias).bulk_create(
            HeldStart(run_id=run.id, workflow=run.workflow, due_at=run.wake_at or run.created_at) for run in held
        )
        return {run.id: summaries[run.workflow] for run in held}

    def _inserted(self, runs: Sequence[RunRecord]) -> bool:
        """Insert all of the runs, or none if one id is taken. Return True if they were inserted."""
        rows = [Run(**RUN.attributes(run)) for run in runs]
        try:
            with transaction.atomic(using=self.alias):
                self._runs.bulk_create(rows)
        except IntegrityError:
            return False
        return True

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        return {run.id: run for run in run_records(self._runs.filter(id__in=run_ids).order_by())}

    def messages(self, run_id: str) -> list[Message]:
        return self._messages(run_id=run_id)

    def _messages(self, **conditions: Any) -> list[Message]:
        found = QueueMessage.objects.using(self.alias).filter(**conditions).order_by("run_id", "order")
        return [Message(**row) for row in found.values(*MESSAGE.names)]

    def message(self, message_id: str) -> Message | None:
        return next(iter(self._messages(id=message_id)), None)

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        return next(iter(self._messages(run_id=run_id, idempotency_id=idempotency_id)), None)

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        with self._writing():
            runs = self.get_many([message.to for message in messages])
            stored, new = self._put(messages, runs)
            return stored, self._wake(runs.values(), new)

    def _put(
        self, messages: Sequence[OutgoingMessage], runs: dict[str, RunRecord]
    ) -> tuple[list[Message | None], list[Message]]:
        """Insert messages to these runs. Return each in its stored form, and those that are new."""
        ids = {each.idempotency_id for each in messages if each.idempotency_id is not None}
        seen: dict[tuple[str, str | None], Message] = {}
        if ids:
            known = self._messages(run_id__in=list(runs), idempotency_id__in=ids)
            seen = {(each.run_id, each.idempotency_id): each for each in known}
        newest = {run.id: run.message_count for run in runs.values()}
        stored: list[Message | None] = []
        new: list[Message] = []
        for outgoing in messages:
            key = (outgoing.to, outgoing.idempotency_id)
            if outgoing.to not in runs or key in seen:
                stored.append(seen.get(key))
                continue
            newest[outgoing.to] += 1
            message = row_rules.stored(outgoing, newest[outgoing.to])
            stored.append(message)
            new.append(message)
            if outgoing.idempotency_id is not None:
                seen[key] = message
        rows = [QueueMessage(**MESSAGE.attributes(each)) for each in new]
        QueueMessage.objects.using(self.alias).bulk_create(rows)
        return stored, new

    def _wake(self, runs: Iterable[RunRecord], new: Sequence[Message]) -> frozenset[str]:
        """Update the rows of these runs for their new messages; return the queues to notify."""
        queues = set()
        for run in runs:
            inbox = [each for each in new if each.run_id == run.id]
            after = row_rules.after_messages(run, inbox)
            self._update(run, after)
            if row_rules.should_notify(after, inbox):
                queues.add(run.queue)
        return frozenset(queues)

    def _lock_run(self, run_id: str, *, wait: bool = True) -> RunRecord | None:  # noqa: ARG002  # no row is locked
        self._begin_to_write()
        return self.get(run_id)

    def _write_change(self, before: RunRecord, after: RunRecord, change: RunChange) -> None:
        self._update(before, after)
        self._delete(before.id, change.deleted)
        self._write(before.id, change.entries)
        self._return(before.id, change.unreceive)

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
        with self._writing():
            due = self._served(self._runs.due(now)).filter(queue=queue).order_by("wake_at", "id")
            if since is not None:
                due = due.due_since(*since)
            found = due.annotate(has_ranks=ranks.has_lanes(self.alias))[:limit]
            rows = list(found.values("has_ranks", *RUN.names))
            may_have_ranks = since is not None and not rows  # a run with a tag may be anywhere behind the point
            if may_have_ranks or any(row["has_ranks"] for row in rows):
                return self._claim_ranked(queue, now, lease_until, worker, limit, since, since_ranked)
            runs = [RunRecord(**{name: row[name] for name in RUN.names}) for row in rows]
            return Claimed(self._claimed(runs, now, lease_until, worker))

    def _claim_ranked(
        self,
        queue: str,
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None,
        since_ranked: datetime | None,
    ) -> Claimed:
        due = self._served(self._runs.due(now))
        ranks.tag_due(self.alias, due, queue, now)
        found = ranks.candidates(self.alias, due, queue, limit + 1, since, since_ranked)
        taken, left = found[:limit], found[limit:]
        runs = self.get_many([each.run_id for each in taken])
        claimed = self._claimed([runs[each.run_id] for each in taken], now, lease_until, worker)
        if taken:
            is_one_left = any(each.tag is not None for each in left)
            ranks.note_served(self.alias, queue, taken, is_one_left=is_one_left)
        return Claimed(claimed)

    def _claimed(self, runs: Sequence[RunRecord], now: datetime, lease_until: datetime, worker: str) -> list[RunRecord]:
        drawn = witnesses.draw()
        self._runs.with_ids([run.id for run in runs]).claim(
            now=now, lease_until=lease_until, worker=worker, drawn=drawn
        )
        return [row_rules.claimed(run, now=now, lease_until=lease_until, worker=worker, drawn=drawn) for run in runs]

    def _served(self, runs: RunQuerySet) -> RunQuerySet:
        """Return the runs whose queues are not paused."""
        paused = Hold.objects.using(self.alias).filter(kind=HoldKind.QUEUE.value, name=OuterRef("queue"))
        return runs.filter(~Exists(paused))

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        with transaction.atomic(using=self.alias):
            run = self._lock_run(run_id)
            if run is None or not row_rules.claimable(run, now) or self.held(HoldKind.QUEUE, run.queue) is not None:
                return None
            [claimed] = self._claimed([run], now, lease_until, worker)
            return claimed

    def load(self, run_id: str) -> History:
        entries = Entry.objects.using(self.alias).with_metadata_of(run_id).order_by().values_list(*ENTRY_LOOKUPS)
        limits = RunLimit.objects.using(self.alias).filter(run_id=run_id).order_by().values_list(*_LIMITS_AS_ENTRY)
        saved = StepSave.objects.using(self.alias).filter(run_id=run_id).order_by().values_list(*_SAVED_AS_ENTRY)
        history = History()
        for row in entries.union(limits, saved, all=True):
            if row[_AT_KIND] == OF_LIMITS:
                history.limits = _limits_of(row)
            elif row[_AT_KIND] == OF_SAVED:
                history.saved[row[0]] = _saved_of(run_id, row)
            else:
                history.append(EntryRecord(*row))
        return history

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, History]:
        entries = Entry.objects.using(self.alias).filter(run_id__in=run_ids)
        lengths = Coalesce(Length("output"), 0) + Coalesce(Length("arguments"), 0)
        weighed = entries.order_by().values_list("run_id").annotate(count=Count("pk"), length=Sum(lengths))
        long = {run_id for run_id, count, length in weighed if count > most or length > size}
        histories = {run_id: History() for run_id in run_ids if run_id not in long}
        short = Entry.objects.using(self.alias).with_metadata_of(*histories)
        for run_id, *row in short.values_list("run_id", *ENTRY_LOOKUPS):
            histories[run_id].append(EntryRecord(*row))
        for limit in RunLimit.objects.using(self.alias).filter(run_id__in=histories):
            histories[limit.run_id].limits = limit.record
        for each in StepSave.objects.using(self.alias).filter(run_id__in=histories):
            found = SavedDetails(**{name: getattr(each, name) for name in SAVED.names})
            histories[each.run_id].saved[each.location] = found
        return histories

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        found = QueueMessage.objects.using(self.alias).filter(run_id=run_id, state=MessageState.PENDING.value)
        found = found.filter(queue__in=names) if names else found.exclude(queue__startswith=LINK_QUEUES)
        if before is not None:
            found = found.filter(sent_at__lt=before)
        return [Message(**row) for row in found.order_by("order")[:limit].values(*MESSAGE.names)]

    def sent_commits(self) -> None:
        return None

    def _commit(self, batch: Batch) -> Committed:
        with self._writing():
            starts, sends = batch.of(ChildStart), batch.of(OutgoingMessage)
            self._take_keys(starts)
            runs = self._concerned(batch)
            run = runs.pop(batch.run_id)
            self._delete(run.id, batch.deleted)
            self._write(run.id, batch.entries)
            rows = [Attempt(run_id=run.id, **ATTEMPT.attributes(each)) for each in batch.of(AttemptRecord)]
            Attempt.objects.using(self.alias).bulk_create(rows)
            consumed = row_rules.consumed(batch)
            self._consume(run.id, consumed)
            self._return(run.id, [each.location for each in batch.of(MessagesReturned)])
            new = self._put(sends, {**runs, run.id: run})[1] if sends else []
            own = [each for each in new if each.run_id == run.id]
            after, overruled = row_rules.after_commit(run, batch, own, self._awaited(run, batch))
            following = self._update(run, after)
            if batch.failure is not None:
                self._fail(batch.failure, run)
            self._write_beside(batch)
            queues = following | self._wake(runs.values(), new) | self._start(starts) | self._woken_parent(batch)
            overruled |= self._has_ended_child(after, batch)
            if dropped := batch.of(ChildrenDropped):
                child_rules.drop(self._children, after, [each.child for each in dropped], batch.now, every=False)
            queues |= self._change_slots(after, batch) | self._free_place(batch)
            if overruled or row_rules.should_notify(after, own):
                queues |= {run.queue}
            committed = Committed(request=after.pending_request, queues_to_notify=queues)
            return self._change_groups(batch, committed) if batch.of(GroupChange) or batch.awaited_groups else committed

    def acquire(self, run_id: str, fence: int, location: str, wants: Sequence[SlotWant], now: datetime) -> Admission:
        with transaction.atomic(using=self.alias):
            run = self._lock_run(run_id)
            if run is None or run.fence != fence:
                raise LeaseLost
            answer, queues = lines.acquire(slots.DatabaseSlots(self.alias), run_id, location, wants, now)
            return replace(answer, queues_to_notify=frozenset(queues))

    def _check_fence(self, run_id: str, fence: int) -> None:
        if not self._runs.filter(id=run_id, fence=fence).exists():
            raise LeaseLost

    def sweep_slots(self, now: datetime, most: int) -> tuple[frozenset[str], int]:
        with self._writing():
            queues, number = slots.sweep(self.alias, now, most)
            return frozenset(queues), number

    def _change_slots(self, run: RunRecord, batch: Batch) -> frozenset[str]:
        """Apply a commit's changes to its run's slots, after everything else; return the queues to notify."""
        if batch.slots is None:
            return frozenset()
        queues, is_due = lines.change(slots.DatabaseSlots(self.alias), run.id, batch.slots, batch.now)
        if run.state in ENDED:
            queues |= slots.settle(self.alias, run.id, batch.now)
        elif is_due and run.state != RunState.PAUSED:
            self._runs.filter(id=run.id).update(wake_at=batch.now)
            queues.add(run.queue)
        return frozenset(queues)

    def _start(self, starts: Sequence[ChildStart]) -> frozenset[str]:
        """Create the children of a commit; return the queues to notify."""
        if not starts:
            return frozenset()
        created = self.create(ranks.inheriting(self.alias, starts))
        known = self.children([run.id for run, is_new in created if not is_new])
        for (run, is_new), (_, child) in zip(created, starts, strict=True):
            if not is_new and (run.id not in known or known[run.id].parent_id != child.parent_id):
                raise ChildIdTaken(run.id)
        rows = [Child(**CHILD.attributes(child)) for _, child in starts if child.run_id not in known]
        Child.objects.using(self.alias).bulk_create(rows)
        new = [run for run, is_new in created if is_new]
        return frozenset(run.queue for run in new if row_rules.is_due(run, run.created_at))

    def _has_ended_child(self, run: RunRecord, batch: Batch) -> bool:
        """Make a run due that parks for a child that has ended or is gone. Return True if it was made due."""
        if not batch.awaited_children or run.state in ENDED:
            return False
        states = self.states(batch.awaited_children)
        is_due = any(states.get(each, RunState.CANCELLED) in ENDED for each in batch.awaited_children)
        if is_due:
            self._runs.filter(id=run.id).update(wake_at=batch.now)
        return is_due

    def _awaited(self, run: RunRecord, batch: Batch) -> list[Message]:
        """Return the messages that a parking run may have missed. Those that it has just received are not pending."""
        waiting_for = run.waiting_for if batch.run is None else batch.run.get("waiting_for", run.waiting_for)
        if batch.park_change_seq is None or not waiting_for:
            return []
        sends = {each.id for each in batch.of(OutgoingMessage)}
        return [
            each for each in self._messages(run_id=run.id, state=MessageState.PENDING.value) if each.id not in sends
        ]

    def _fail(self, failure: FailureRecord, run: RunRecord) -> None:
        causes = Cause.objects.using(self.alias)
        names = names_of(failure.cause)
        known = {each.fingerprint: each for each in causes.filter(fingerprint__in=names)}
        cause = next((known[each] for each in names if each in known), None)
        if cause is None:
            row = cause_row(failure.cause, failure.failed_at)
            cause, _ = causes.get_or_create(fingerprint=names[0], defaults=row)
        child = run.parent_id is not None and Child.objects.using(self.alias).filter(run_id=run.id).exists()
        parent_id = run.parent_id if child else None
        rows = [Failure(cause=cause, parent_id=parent_id, **{name: getattr(failure, name) for name in FAILURE_NAMES})]
        self._put_over(Failure, rows, ["run"], ["cause", "parent", *FAILURE_NAMES[1:]])
        if failure.build:
            seen = CauseBuild(cause=cause, build=failure.build, first_seen_at=failure.failed_at)
            CauseBuild.objects.using(self.alias).bulk_create([seen], ignore_conflicts=True)

    def _consume(self, run_id: str, consumed: dict[str, row_rules.Consumed]) -> None:
        messages = QueueMessage.objects.using(self.alias).filter(run_id=run_id)
        for message_id, (state, location, response) in consumed.items():
            where = {} if location is None else {"received_by": location}
            messages.filter(id=message_id).update(state=state, response=response, **where)

    def _return(self, run_id: str, waits: Sequence[str]) -> None:
        """Put the messages that these waits received back into the inbox."""
        if waits:
            received = QueueMessage.objects.using(self.alias).filter(run_id=run_id, received_by__in=waits)
            received.update(state=MessageState.PENDING.value, received_by="", response=None)

    def _delete(self, run_id: str, locations: Sequence[str]) -> None:
        if locations:
            Entry.objects.using(self.alias).filter(run_id=run_id, location__in=locations).delete()
            Attempt.objects.using(self.alias).filter(run_id=run_id, location__in=locations).delete()

    def _write(self, run_id: str, entries: Sequence[EntryRecord]) -> None:
        entries = row_rules.entries_to_write(entries)
        if not entries:
            return
        rows = [Entry(run_id=run_id, **ENTRY.attributes(each)) for each in entries]
        self._put_over(Entry, rows, ["run", "location"], ENTRY.names)
        keys = entry_keys(self.alias, run_id, rows)
        metadata = [EntryMetadata(entry_id=keys[each.location], **METADATA.attributes(each)) for each in entries]
        self._put_over(EntryMetadata, metadata, ["entry"], METADATA.names)

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> Renewed:
        with self._writing():
            runs = self._held(held)
            self._runs.with_ids([run.id for run in runs]).renew(lease_until)
            return Renewed({run.id: run.pending_request for run in runs})

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        return dict(self._runs.with_ids(run_ids).exclude(pending_request="").values_list("id", "pending_request"))

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str]
    ) -> tuple[dict[str, str], list[AskedOfActivity]]:
        if begun or ended:
            self._note_activities(begun, ended)
        return (self.requests(watched), self._asked_of_activities(watched)) if watched else ({}, [])

    def show(self, statuses: Sequence[StatusRecord]) -> None:
        with self._writing():
            held = {run.id for run in self._held([(each.run_id, each.fence) for each in statuses])}
            for each in statuses:
                if each.run_id in held:
                    self._show_committed(each)

    def _show_committed(self, status: StatusRecord) -> None:
        rows = RunStatus.objects.using(self.alias)
        row, is_new = rows.get_or_create(run_id=status.run_id, defaults=STATUS.attributes(status))
        if not is_new and (row.fence, row.number) < status.order:
            rows.filter(run_id=status.run_id).update(**STATUS.attributes(status))

    def release(self, held: Sequence[tuple[str, int]], now: datetime, *, due_at: datetime | None = None) -> Released:
        with self._writing():
            runs = self._held(held)
            self._runs.with_ids([run.id for run in runs]).release(now, due_at=due_at)
            return Released(frozenset(), frozenset(run.queue for run in runs))

    def _held(self, held: Sequence[tuple[str, int]]) -> list[RunRecord]:
        """Return the runs whose fences and leases still hold."""
        fences = dict(held)
        found = self.get_many(list(fences)).values()
        return [run for run in found if run.fence == fences[run.id] and run.lease_expires_at is not None]

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        found = self._runs.waking_after(after, queues)
        if until is not None:
            found = found.filter(wake_at__lte=until)
        deadline: datetime | None = found.aggregate(first=Min("wake_at"))["first"]
        return deadline

    def due_queues(
        self, now: datetime, *, queues: Sequence[str] | None = None, since: datetime | None = None
    ) -> list[str]:
        due = self._served(self._runs.due(now))
        if queues is not None:
            due = due.filter(queue__in=queues)
        if since is not None:
            due = due.filter(wake_at__gte=since)
        return sorted(due.order_by().values_list("queue", flat=True).distinct())
