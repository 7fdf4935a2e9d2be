"""Events in a database: published, awaited by runs, delivered once, pruned.

The waits of a child that the database cancels with its parent are deleted by the next event of their key, or by the
sweep. Until then they get nothing, hold no event open for long, and are in no list. To delete them with the child would
cost each end of a run a look-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from django.db import IntegrityError, connections, transaction
from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet

from durable.core.records import ENDED, AwaitedEvent, EventRecord, EventsDropped, OutgoingMessage, RunRecord, RunState
from durable.models import Event, EventKey, EventWait, Run
from durable.store.tables import DatabaseTables
from durable.store.transactions import or_locked, set_patience

_ENDED: Final = sorted(state.value for state in ENDED)
_FEW: Final = 10  # runs whose locks are waited for, for a short time


class DatabaseEvents(DatabaseTables):
    """The part of a `Store` for events."""

    def put_event(self, event: EventRecord) -> tuple[EventRecord, bool]:
        with self._writing():
            return self._put_event(event)

    def _put_event(self, event: EventRecord) -> tuple[EventRecord, bool]:
        topic = EventKey(name=event.name, key=event.key)
        EventKey.objects.using(self.alias).bulk_create(  # locks the row
            [topic], update_conflicts=True, unique_fields=["name", "key"], update_fields=["key"]
        )
        known = Event.objects.using(self.alias).filter(name=event.name, event_id=event.id)
        if (found := known.first()) is None:
            row = Event(
                name=event.name, key=event.key, event_id=event.id, body=event.body, published_at=event.published_at
            )
            try:
                with transaction.atomic(using=self.alias):
                    row.save(using=self.alias, force_insert=True)
            except IntegrityError:  # published under another key at the same time
                found = known.get()
            else:
                return row.record, True
        return found.record, False

    def newest_event(self, name: str, key: str) -> int:
        found = Event.objects.using(self.alias).filter(name=name, key=key).aggregate(newest=Max("id"))["newest"]
        return found or 0

    def deliver(
        self,
        event: EventRecord,
        most: int,
        message_of: Callable[[EventRecord, AwaitedEvent], OutgoingMessage],
        wait_id: str | None = None,
    ) -> tuple[int, frozenset[str]]:
        with or_locked(), self._writing():
            taken = self._take_waits(event, most, wait_id)
            if not taken:
                return 0, frozenset()
            given = [(event, each) for each in taken] if wait_id else self._given(event, taken)
            for number, delivered in Counter(first.number for first, _ in given).items():
                Event.objects.using(self.alias).filter(pk=number).update(delivered=F("delivered") + delivered)
            _, queues = self.send([message_of(first, each) for first, each in given])
            return len(taken), queues

    def _put_waits(self, _run_id: str, waits: Sequence[AwaitedEvent], _now: datetime) -> None:
        """Write new waits of a run. One that is there already was written by an earlier try of the commit."""
        names = ("id", "run_id", "location", "queue", "name", "key", "after", "since", "seen")
        rows = [EventWait(**{name: getattr(each, name) for name in names}) for each in waits]
        EventWait.objects.using(self.alias).bulk_create(rows, ignore_conflicts=True)

    def _drop_waits(self, run_id: str, dropped: Sequence[EventsDropped], _now: datetime) -> None:
        waits = EventWait.objects.using(self.alias).filter(run_id=run_id)
        if all(each.ids for each in dropped):
            waits = waits.filter(id__in=[wait_id for each in dropped for wait_id in each.ids])
        waits.delete()

    def _drop_ended_waits(self, after: RunRecord, deleted: Sequence[str]) -> None:
        """Delete the waits that a verb ends: all at the run's end, or those whose entries it deletes."""
        waits = EventWait.objects.using(self.alias).filter(run_id=after.id)
        if after.state not in ENDED and after.state != RunState.ROLLING_BACK:
            waits = waits.filter(location__in=deleted)
        waits.delete()

    def event_wait(self, wait_id: str) -> AwaitedEvent | None:
        found = EventWait.objects.using(self.alias).filter(id=wait_id).first()
        return None if found is None else found.record

    def due_event(self, wait: AwaitedEvent, before: datetime | None = None) -> EventRecord | None:
        new = Q(id__gt=wait.after)
        if wait.since is not None:
            new |= Q(id__gt=wait.seen, published_at__gte=wait.since)
        found = Event.objects.using(self.alias).filter(new, name=wait.name, key=wait.key)
        if before is not None:
            found = found.filter(published_at__lt=before)
        first = found.order_by("id").first()
        return None if first is None else first.record

    def _waits_for(self, event: EventRecord) -> QuerySet[EventWait]:
        """Return the waits that have not got this event and get it, if no earlier one."""
        waits = EventWait.objects.using(self.alias).filter(name=event.name, key=event.key, after__lt=event.number)
        return waits.order_by("after", "id")

    def _take_waits(self, event: EventRecord, most: int, wait_id: str | None) -> list[AwaitedEvent]:
        """Delete up to `most` waits that get this event, and return those of runs that go on.

        Their runs are locked first, in the order of all functions that lock several, until the transaction ends. A run
        that another transaction has locked is passed over, unless there are few.
        """
        found = self._waits_for(event) if wait_id is None else EventWait.objects.using(self.alias).filter(id=wait_id)
        candidates = list(found.values_list("id", "run_id")[:most])
        if not candidates:
            return []
        if wait_id is None:
            set_patience(self.alias)
        run_ids = {run_id for _, run_id in candidates}
        runs = Run.objects.using(self.alias).filter(id__in=run_ids).order_by("-created_at", "id")
        if connections[self.alias].features.has_select_for_update:
            runs = runs.select_for_update(no_key=True, skip_locked=len(run_ids) > _FEW)
        states = dict(runs.values_list("id", "state"))
        waits = EventWait.objects.using(self.alias).filter(id__in=[each for each, _ in candidates], run_id__in=states)
        taken = [each.record for each in waits.order_by("after", "id")]
        EventWait.objects.using(self.alias).filter(id__in=[each.id for each in taken]).delete()
        return [each for each in taken if states[each.run_id] not in _ENDED]

    def _given(self, event: EventRecord, waits: Sequence[AwaitedEvent]) -> list[tuple[EventRecord, AwaitedEvent]]:
        """Return the event that each of these waits gets: the first that is due for it, this one or one before it.

        One before it is left if its own delivery was put off, as by a run that was locked, or if a pass died before it
        could look for what was published before its wait.
        """
        lowest = min(each.after if each.since is None else min(each.after, each.seen) for each in waits)
        before = Event.objects.using(self.alias).filter(
            name=event.name, key=event.key, id__gt=lowest, id__lt=event.number
        )
        if all(each.since is not None for each in waits):
            before = before.filter(
                Q(id__gt=min(each.after for each in waits))
                | Q(published_at__gte=min(each.since for each in waits if each.since))
            )
        known = before.order_by("id").values_list("id", "published_at")
        bare = [replace(event, number=number, published_at=at) for number, at in known]
        first = {wait.id: next((each.number for each in bare if wait.takes(each)), event.number) for wait in waits}
        others = Event.objects.using(self.alias).in_bulk(set(first.values()) - {event.number})
        found = {event.number: event, **{number: row.record for number, row in others.items()}}
        return [(found[first[wait.id]], wait) for wait in waits]

    def close_event(self, event: EventRecord) -> bool:
        if self._waits_for(event).exists():
            return False
        Event.objects.using(self.alias).filter(pk=event.number, is_open=True).update(is_open=False)
        return True

    def open_events(self, most: int) -> list[EventRecord]:
        return [each.record for each in Event.objects.using(self.alias).filter(is_open=True).order_by("id")[:most]]

    def forget_events(self, before: datetime, most: int) -> int:
        waits = EventWait.objects.using(self.alias)
        left = list(waits.filter(run__state__in=_ENDED).values_list("id", flat=True)[:most])
        if left:
            waits.filter(id__in=left).delete()
        events = Event.objects.using(self.alias)
        expired = events.filter(published_at__lt=before, is_open=False).order_by("published_at")
        old = list(expired.values_list("pk", "name", "key")[:most])
        if not old:
            return 0
        deleted, _ = events.filter(pk__in=[each for each, _, _ in old]).delete()
        has_events = Exists(events.filter(name=OuterRef("name"), key=OuterRef("key")))
        names, of_names = {name for _, name, _ in old}, {key for _, _, key in old}
        keys = EventKey.objects.using(self.alias).filter(~has_events, name__in=names, key__in=of_names)
        with transaction.atomic(using=self.alias):
            locked = keys.order_by("name", "key")
            if connections[self.alias].features.has_select_for_update_skip_locked:
                locked = locked.select_for_update(skip_locked=True)
            ids = list(locked.values_list("pk", flat=True))
            keys.filter(pk__in=ids).delete()  # looks again, under their locks: a publisher may have had one until now
        return deleted
