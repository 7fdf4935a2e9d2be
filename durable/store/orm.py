"""The portable store: ordinary ORM statements in one short transaction, for any database that Django supports.

Every writing transaction first locks the rows it is about. On SQLite, which has no row locks, it begins with a write,
because a transaction that first reads and then writes fails there beside another writer. Rows are locked in the order
of run ids. Must not decide what happens to a run's row: `durable.store.row_rules` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, connections, transaction
from django.db.models import Count, Min, Sum
from django.db.models.functions import Coalesce, Length

from durable.core.control_flow import LeaseLost
from durable.core.errors import RunNotFoundError
from durable.core.records import (
    ActionRecord,
    AttemptRecord,
    Batch,
    Committed,
    Entry,
    Message,
    MessageState,
    OutgoingMessage,
    RunChange,
    RunRecord,
)
from durable.models import Attempt, EntryMetadata, QueueMessage, Run
from durable.models import Entry as EntryModel
from durable.models.run import RunQuerySet
from durable.store import outline_rows, row_rules, shared_orm
from durable.store.atomic import committed_or_raised
from durable.store.base import Claimed, DuePoint
from durable.store.rows import ATTEMPT, ENTRY, MESSAGE, METADATA, RUN

__all__ = ["OrmStore"]

#: The columns of an entry and its metadata in the order of the record's fields.
_ENTRY_FIELDS: Final = [
    field.name if field.name in ENTRY.names else f"metadata__{field.name}" for field in fields(Entry)
]


class OrmStore:
    """A `Store` on the database behind a Django connection."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def _runs(self) -> RunQuerySet:
        return Run.objects.using(self.alias)

    def transaction(self) -> AbstractContextManager[None]:
        return committed_or_raised(self.alias)

    def _locked(self, run_ids: Iterable[str]) -> dict[str, RunRecord]:
        """Return the rows of these runs, locked until the transaction ends."""
        found = self._runs.with_ids(sorted(set(run_ids)))
        return {run.id: run for run in _records(self._with_locks(found))}

    def _with_locks(self, runs: RunQuerySet, *, skip: bool = False) -> RunQuerySet:
        features = connections[self.alias].features
        if not features.has_select_for_update:
            self._runs.lock_table()
            return runs
        return runs.select_for_update(
            no_key=features.has_select_for_no_key_update,
            skip_locked=skip and features.has_select_for_update_skip_locked,
        )

    def _update(self, before: RunRecord, after: RunRecord) -> None:
        changed = row_rules.changed_columns(before, after)
        if changed:
            self._runs.held_with(before.id, before.fence).update(**changed)

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        first = {run.id: run for run in reversed(runs)}
        taken: dict[str, RunRecord] = {}
        with transaction.atomic(using=self.alias):
            while not self._inserted(free := [first[each] for each in sorted(first) if each not in taken]):
                found = {run.id: run for run in _records(self._runs.with_ids([run.id for run in free]))}
                if not found:
                    raise IntegrityError(f"the runs {[run.id for run in free]} break a constraint")
                taken |= found
        new = first.keys() - taken.keys()
        created: list[tuple[RunRecord, bool]] = []
        for run in runs:
            created.append((row_rules.copied(taken.get(run.id, first[run.id])), run.id in new))
            new.discard(run.id)
        return created

    def _inserted(self, runs: Sequence[RunRecord]) -> bool:
        """Insert all of them, or none if one id is taken; return True if they were inserted."""
        rows = [Run(**{name: getattr(run, name) for name in RUN.names}) for run in runs]
        try:
            with transaction.atomic(using=self.alias):
                self._runs.bulk_create(rows)
        except IntegrityError:
            return False
        return True

    def get(self, run_id: str) -> RunRecord | None:
        return next(iter(_records(self._runs.filter(id=run_id))), None)

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        return {run.id: run for run in _records(self._runs.filter(id__in=run_ids).order_by())}

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        return shared_orm.states(self.alias, run_ids)

    def history(self, run_id: str) -> list[Entry]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        found = Attempt.objects.using(self.alias).filter(run_id=run_id).order_by("id")
        return [AttemptRecord(**row) for row in found.values(*ATTEMPT.names)]

    def messages(self, run_id: str) -> list[Message]:
        return self._messages(run_id=run_id)

    def _messages(self, **conditions: Any) -> list[Message]:
        found = QueueMessage.objects.using(self.alias).filter(**conditions).order_by("run_id", "order")
        return [Message(**row) for row in found.values(*MESSAGE.names)]

    def outline(self, run_id: str) -> tuple[list[Entry], list[Message]]:
        return outline_rows.read(self.alias, run_id)

    def message(self, message_id: str) -> Message | None:
        return next(iter(self._messages(id=message_id)), None)

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        return next(iter(self._messages(run_id=run_id, idempotency_id=idempotency_id)), None)

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        with transaction.atomic(using=self.alias):
            runs = self._locked(message.to for message in messages)
            stored, new = self._put(messages, runs)
            return stored, self._wake(runs.values(), new)

    def _put(
        self, messages: Sequence[OutgoingMessage], runs: dict[str, RunRecord]
    ) -> tuple[list[Message | None], list[Message]]:
        """Insert messages to these locked runs. Return each as stored, and those that are new."""
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
        rows = [QueueMessage(**{name: getattr(each, name) for name in MESSAGE.names}) for each in new]
        QueueMessage.objects.using(self.alias).bulk_create(rows)
        return stored, new

    def _wake(self, runs: Iterable[RunRecord], new: Sequence[Message]) -> frozenset[str]:
        """Update the rows of these runs for their new messages; return the queues to notify."""
        ring = set()
        for run in runs:
            inbox = [each for each in new if each.run_id == run.id]
            after = row_rules.after_messages(run, inbox)
            self._update(run, after)
            if row_rules.should_notify(after, inbox):
                ring.add(run.queue)
        return frozenset(ring)

    def change(self, run_id: str, decide: Callable[[RunRecord, Callable[[], list[Entry]]], RunChange]) -> RunRecord:
        with transaction.atomic(using=self.alias):
            run = self._locked([run_id]).get(run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            change = decide(row_rules.copied(run), lambda: self.history(run_id))
            after = row_rules.after_change(run, change)
            self._update(run, after)
            self._delete(run_id, change.deleted)
            self._write(run_id, change.entries)
            self._return(run_id, change.unreceive)
            if change.retracted:
                shared_orm.retract(self.alias, run_id, change.retracted)
            if change.action is not None:
                self.log([change.action])
            return row_rules.copied(after)

    def import_history(
        self, run_id: str, *, entries: Sequence[Entry], attempts: Sequence[AttemptRecord], messages: Sequence[Message]
    ) -> None:
        shared_orm.import_history(self.alias, run_id, entries=entries, attempts=attempts, messages=messages)

    def log(self, actions: Sequence[ActionRecord]) -> None:
        shared_orm.log(self.alias, actions)

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        return shared_orm.log_repeat(self.alias, action, since)

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
        with transaction.atomic(using=self.alias):
            due = self._runs.due(now).filter(queue__in=queues).order_by("wake_at", "id")
            if since is not None:
                due = due.due_since(*since)
            runs = _records(self._with_locks(due, skip=True)[:limit])
            self._runs.with_ids([run.id for run in runs]).claim(now=now, lease_until=lease_until, worker=worker)
            return Claimed(row_rules.claimed(run, now=now, lease_until=lease_until, worker=worker) for run in runs)

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        with transaction.atomic(using=self.alias):
            run = self._locked([run_id]).get(run_id)
            if run is None or not row_rules.claimable(run, now):
                return None
            self._runs.with_ids([run_id]).claim(now=now, lease_until=lease_until, worker=worker)
            return row_rules.claimed(run, now=now, lease_until=lease_until, worker=worker)

    def load(self, run_id: str) -> list[Entry]:
        found = EntryModel.objects.using(self.alias).with_metadata_of(run_id)
        return [Entry(*row) for row in found.values_list(*_ENTRY_FIELDS)]

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, list[Entry]]:
        entries = EntryModel.objects.using(self.alias).filter(run_id__in=run_ids)
        lengths = Coalesce(Length("output"), 0) + Coalesce(Length("arguments"), 0)
        weighed = entries.order_by().values_list("run_id").annotate(count=Count("pk"), length=Sum(lengths))
        long = {run_id for run_id, count, length in weighed if count > most or length > size}
        histories: dict[str, list[Entry]] = {run_id: [] for run_id in run_ids if run_id not in long}
        short = EntryModel.objects.using(self.alias).with_metadata_of(*histories)
        for run_id, *row in short.values_list("run_id", *_ENTRY_FIELDS):
            histories[run_id].append(Entry(*row))
        return histories

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        found = QueueMessage.objects.using(self.alias).filter(run_id=run_id, state=MessageState.PENDING.value)
        if names:
            found = found.filter(queue__in=names)
        if before is not None:
            found = found.filter(sent_at__lt=before)
        return [Message(**row) for row in found.order_by("order")[:limit].values(*MESSAGE.names)]

    def commit(self, batch: Batch) -> Committed:
        with transaction.atomic(using=self.alias):
            runs = self._locked([batch.run_id, *(each.to for each in batch.sends)])
            run = runs.pop(batch.run_id, None)
            if run is None or run.fence != batch.fence:
                raise LeaseLost
            self._delete(run.id, batch.deleted)
            self._write(run.id, batch.entries)
            rows = [
                Attempt(run_id=run.id, **{name: getattr(each, name) for name in ATTEMPT.names})
                for each in batch.attempts
            ]
            Attempt.objects.using(self.alias).bulk_create(rows)
            consumed = row_rules.consumed(batch)
            self._consume(run.id, consumed)
            self._return(run.id, batch.returned)
            new = self._put(batch.sends, {**runs, run.id: run})[1] if batch.sends else []
            own = [each for each in new if each.run_id == run.id]
            after, overruled = row_rules.after_commit(run, batch, own, self._awaited(run, batch))
            self._update(run, after)
            ring = self._wake(runs.values(), new)
            if overruled or row_rules.should_notify(after, own):
                ring |= {run.queue}
            return Committed(request=after.pending_request, queues_to_notify=ring)

    def _awaited(self, run: RunRecord, batch: Batch) -> list[Message]:
        """Return the messages that a parking run may have overlooked; those it has just received are no longer pending."""
        waiting_for = run.waiting_for if batch.run is None else batch.run.get("waiting_for", run.waiting_for)
        if batch.park_change_seq is None or not waiting_for:
            return []
        sends = {each.id for each in batch.sends}
        return [
            each for each in self._messages(run_id=run.id, state=MessageState.PENDING.value) if each.id not in sends
        ]

    def _consume(self, run_id: str, consumed: dict[str, tuple[str, str | None, str | None]]) -> None:
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
            EntryModel.objects.using(self.alias).filter(run_id=run_id, location__in=locations).delete()
            Attempt.objects.using(self.alias).filter(run_id=run_id, location__in=locations).delete()

    def _write(self, run_id: str, entries: Sequence[Entry]) -> None:
        entries = row_rules.entries_to_write(entries)
        if not entries:
            return
        rows = [EntryModel(run_id=run_id, **{name: getattr(each, name) for name in ENTRY.names}) for each in entries]
        self._upsert(EntryModel, rows, ["run", "location"], ENTRY.names)
        ids = self._entry_ids(run_id, rows)
        metadata = [
            EntryMetadata(entry_id=ids[each.location], **{name: getattr(each, name) for name in METADATA.names})
            for each in entries
        ]
        self._upsert(EntryMetadata, metadata, ["entry"], METADATA.names)

    def _upsert(self, model: Any, rows: Sequence[Any], unique: list[str], columns: list[str]) -> None:
        targeted = connections[self.alias].features.supports_update_conflicts_with_target
        model.objects.using(self.alias).bulk_create(
            rows,
            update_conflicts=True,
            update_fields=[name for name in columns if name not in unique],
            unique_fields=unique if targeted else None,
        )

    def _entry_ids(self, run_id: str, rows: Sequence[EntryModel]) -> dict[str, int]:
        """Return the keys of rows just written, queried where the database did not return them."""
        if all(row.pk is not None for row in rows):
            return {row.location: row.pk for row in rows}
        found = EntryModel.objects.using(self.alias).filter(run_id=run_id, location__in=[row.location for row in rows])
        return dict(found.values_list("location", "id"))

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> dict[str, str]:
        with transaction.atomic(using=self.alias):
            runs = self._held(held)
            self._runs.with_ids([run.id for run in runs]).renew(lease_until)
            return {run.id: run.pending_request for run in runs}

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        return dict(self._runs.with_ids(run_ids).exclude(pending_request="").values_list("id", "pending_request"))

    def release(self, held: Sequence[tuple[str, int]], now: datetime) -> None:
        with transaction.atomic(using=self.alias):
            self._runs.with_ids([run.id for run in self._held(held)]).release(now)

    def _held(self, held: Sequence[tuple[str, int]]) -> list[RunRecord]:
        """Return those of the runs whose fence and lease still hold, locked."""
        fences = dict(held)
        runs = self._locked(fences).values()
        return [run for run in runs if run.fence == fences[run.id] and run.lease_expires_at is not None]

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
        due = self._runs.due(now)
        if queues is not None:
            due = due.filter(queue__in=queues)
        if since is not None:
            due = due.filter(wake_at__gte=since)
        return sorted(due.order_by().values_list("queue", flat=True).distinct())


def _records(runs: RunQuerySet) -> list[RunRecord]:
    return [RunRecord(**row) for row in runs.values(*RUN.names)]
