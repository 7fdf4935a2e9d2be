"""Slots of limits in a database: the rows for `durable.store.rules.lines`, and notes for the sweep.

On PostgreSQL `routines/slots.sql` acquires, hands on and sweeps; the notes of verbs are the same on both databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, Max, Min, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast

from durable.core.limits.slot_records import SlotKind, SlotRow, SlotWant
from durable.core.records import ENDED, HoldKind, ReservationDropped, RunRecord, RunState
from durable.models import Hold, Limit, LimitKey, Run, Slot, SlotNote
from durable.store.rules import lines, row_rules
from durable.store.rules.lines import Place
from durable.store.tables import DatabaseTables, rates


class DatabaseSlots:
    """A `durable.store.rules.lines.SlotTable` on a database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._rows = Slot.objects.using(alias)

    def clear(self, limit: str, key: str) -> None:
        """Do nothing: on a database, the end of a run deletes its slots."""

    def define(self, limit: str, at_once: int) -> None:
        Limit.objects.using(self._alias).get_or_create(name=limit, defaults={"at_once": at_once})

    def at_once(self, limit: str) -> int | None:
        found = Limit.objects.using(self._alias).filter(name=limit).first()
        return None if found is None else found.number

    def held(self, limit: str, key: str) -> int:
        return self._rows.filter(limit=limit, key=key, is_held=True).count()

    def first(self, limit: str, key: str) -> Place | None:
        waiting = self._rows.filter(limit=limit, key=key, is_held=False).order_by("place")
        waiting = waiting.exclude(run__state__in=[each.value for each in (*ENDED, RunState.PAUSED)])
        return _place(waiting.exclude(Exists(_hold_of(OuterRef("run__queue")))).first())

    def before(self, place: Place) -> int:
        line = self._rows.filter(limit=place.limit, key=place.key, is_held=False, place__lt=place.place)
        return line[: row_rules.MOST_IN_LINE].count()

    def last_place(self, limit: str, key: str) -> int:
        line = self._rows.filter(limit=limit, key=key, is_held=False)
        last: int | None = line.aggregate(last=Max("place"))["last"]
        return last or 0

    def place_of(self, run_id: str, location: str) -> Place | None:
        return _place(self._rows.filter(run_id=run_id, location=location, is_held=False).first())

    def held_by(self, run_id: str, location: str) -> set[tuple[str, str]]:
        return set(self._rows.filter(run_id=run_id, location=location, is_held=True).values_list("limit", "key"))

    def take(self, run_id: str, location: str, wants: Sequence[SlotWant], at: datetime) -> None:
        self._rows.bulk_create(
            Slot(run_id=run_id, location=location, limit=w.limit, key=w.key, kind=w.kind.value, is_held=True, since=at)
            for w in wants
        )

    def wait(self, place: Place, kind: SlotKind, at: datetime) -> None:
        wants = [[w.limit, w.key, w.kind.value] for w in place.wants]
        given: dict[str, Any] = {"limit": place.limit, "key": place.key, "place": place.place}
        given |= {"wants": wants, "kind": kind.value}
        self._rows.update_or_create(
            run_id=place.run_id,
            location=place.location,
            is_held=False,
            defaults=given,
            create_defaults={**given, "since": at},
        )

    def leave(self, place: Place) -> None:
        self._rows.filter(run_id=place.run_id, location=place.location, is_held=False).delete()

    def give_up(self, run_id: str, *, locations: Iterable[str] | None) -> set[tuple[str, str]]:
        rows = self._rows.filter(run_id=run_id)
        if locations is not None:
            rows = rows.filter(location__in=list(locations))
        return self._delete(rows)

    def leave_all(self, run_id: str, *, keeping: Iterable[str]) -> set[tuple[str, str]]:
        rows = self._rows.filter(run_id=run_id, is_held=True).exclude(kind=SlotKind.OPEN.value)
        return self._delete(rows.exclude(location__in=list(keeping)))

    @staticmethod
    def _delete(rows: QuerySet[Slot]) -> set[tuple[str, str]]:
        gone = set(rows.values_list("limit", "key"))
        if gone:
            rows.delete()
        return gone

    def drop(self, run_id: str, location: str, limit: str, key: str) -> None:
        self._rows.filter(run_id=run_id, location=location, limit=limit, key=key, is_held=True).delete()
        SlotNote.objects.using(self._alias).create(limit=limit, key=key, run_id="")

    def tell(self, run_id: str, at: datetime) -> str | None:
        runs = Run.objects.using(self._alias).filter(id=run_id)
        run = runs.get()
        if run.state == RunState.PAUSED:  # since the slot was on its way to it
            note_pause(self._alias, run_id)
        if run.state in ENDED or run.state == RunState.PAUSED:
            return None
        is_free = run.lease_expires_at is None or run.lease_expires_at <= at
        if is_free and _hold_of(Value(run.queue)).using(self._alias).exists():
            self._put_back(run_id)
            return None
        runs.update(wake_at=at if run.wake_at is None else min(run.wake_at, at))
        return run.queue if is_free else None

    def _put_back(self, run_id: str) -> None:
        unused = self._rows.filter(run_id=run_id, is_held=True).exclude(kind=SlotKind.OPEN.value)
        slots = [each.record for each in unused]
        unused.delete()
        for place, first in lines.put_back(slots, self._first_place):
            self.wait(place, first.kind, first.since)
        _note(self._alias, {(each.limit, each.key) for each in slots})

    def _first_place(self, limit: str, key: str) -> int:
        line = self._rows.filter(limit=limit, key=key, is_held=False)
        first: int | None = line.aggregate(first=Min("place"))["first"]
        return 1 if first is None else first


def _hold_of(queue: Any) -> QuerySet[Hold]:
    return Hold.objects.filter(kind=HoldKind.QUEUE.value, name=queue)


def _note(alias: str, keys: Iterable[tuple[str, str]]) -> None:
    """Let the sweep check the lines of these keys."""
    SlotNote.objects.using(alias).bulk_create(
        (SlotNote(limit=limit, key=key, run_id="") for limit, key in sorted(keys)), batch_size=1_000
    )


def note_queue(alias: str, queue: str) -> None:
    """Let the sweep check the keys of a queue that was paused or resumed: those that its runs hold or wait for."""
    _note_keys(alias, Slot.objects.using(alias).filter(run__queue=queue))


def note_requeued(alias: str, run_id: str) -> None:
    """Let the sweep check the keys of a run that was moved to another queue: one of the queues may be paused."""
    _note_keys(alias, Slot.objects.using(alias).filter(run_id=run_id))


def _note_keys(alias: str, rows: QuerySet[Slot]) -> None:
    slots = rows.exclude(is_held=True, kind=SlotKind.OPEN.value)
    _note(alias, set(slots.order_by().values_list("limit", "key").distinct()))


def _place(row: Slot | None) -> Place | None:
    if row is None:
        return None
    given: Any = row.wants
    wants = tuple(SlotWant(limit, key, SlotKind(kind)) for limit, key, kind, *_ in given)
    return Place(row.run_id, row.location, row.limit, row.key, row.place, wants)


def note_end(alias: str, run_id: str) -> None:
    """Give up all slots of an ended run, and note their keys for the sweep, which locks the keys' rows later."""
    gone = DatabaseSlots(alias).give_up(run_id, locations=None)
    SlotNote.objects.using(alias).bulk_create(
        SlotNote(limit=limit, key=key, run_id=run_id) for limit, key in sorted(gone)
    )


def forget(alias: str, run_id: str, locations: Sequence[str]) -> None:
    """Give up the slots of operations whose records are deleted, and note their keys for the sweep."""
    _note(alias, DatabaseSlots(alias).give_up(run_id, locations=locations))


def note_pause(alias: str, run_id: str) -> None:
    """Give up the slots that a run has only while a worker executes it and that it got in line; note their keys for the
    sweep.
    """
    _note(alias, DatabaseSlots(alias).leave_all(run_id, keeping=()))


def _idle(alias: str, now: datetime) -> QuerySet[Slot]:
    """Return slots that sleeping runs have held for long although only a pass may hold them."""
    held = Slot.objects.using(alias).filter(is_held=True, since__lt=now - lines.IDLE).exclude(kind=SlotKind.OPEN.value)
    asleep = Q(run__wake_at=None) | Q(run__wake_at__gt=now)
    # by limit, so that PostgreSQL can read along the index
    return held.filter(asleep, run__state=RunState.SLEEPING.value, limit__in=Limit.objects.using(alias).values("name"))


def settle(alias: str, run_id: str, at: datetime) -> set[str]:
    """Hand on the slots that the end of a run has given up; return the queues to notify."""
    notes = SlotNote.objects.using(alias).filter(run_id=run_id)
    gone = set(notes.values_list("limit", "key"))
    if gone:
        notes.delete()
    slots = DatabaseSlots(alias)
    return {queue for limit, key in sorted(gone) for queue in lines.hand_on(slots, limit, key, at)}


def sweep(alias: str, at: datetime, most: int) -> tuple[set[str], int]:
    """Do the noted work, at most `most` of it; return the queues to notify, and how much was done.

    Also take back slots of runs in paused queues that no worker executes. SQLite locks no rows, so a note is about the
    line of its key and never about its run.
    """
    for run_id in _held_in_vain(alias, at):
        DatabaseSlots(alias).tell(run_id, at)
    notes = list(SlotNote.objects.using(alias).order_by("id")[:most])
    slots, queues = DatabaseSlots(alias), set()
    SlotNote.objects.using(alias).filter(id__in=[each.pk for each in notes]).delete()
    for limit, key in sorted({(each.limit, each.key) for each in notes}):
        queues |= lines.hand_on(slots, limit, key, at)
    return queues, len(notes)


def _held_in_vain(alias: str, at: datetime) -> list[str]:
    """Return the runs of paused queues that hold a slot although no worker executes them.

    Whoever handed it on may not have seen the pause, or a worker may have had the run then.
    """
    if not Hold.objects.using(alias).filter(kind=HoldKind.QUEUE.value).exists():
        return []
    held = Slot.objects.using(alias).filter(is_held=True).exclude(kind=SlotKind.OPEN.value)
    idle = held.filter(
        Q(run__lease_expires_at=None) | Q(run__lease_expires_at__lte=at), Exists(_hold_of(OuterRef("run__queue")))
    )
    return list(idle.order_by("run_id").values_list("run_id", flat=True).distinct())


def _note_lines(alias: str, name: str) -> None:
    """Let the sweep check all lines of a limit."""
    waiting = Slot.objects.using(alias).filter(limit=name, is_held=False).order_by("key")
    _note(alias, [(name, key) for key in waiting.values_list("key", flat=True).distinct()])


def _forget_keys(alias: str, most: int) -> int:
    """Delete the keys of which no run holds or awaits a slot (`Store.forget_limit_keys`), and return how many.

    The rows are locked first, and looked at again: whoever takes a slot or a place in a line locks the rows of all keys
    that it wants. So a line never has a key without a row: handing on would wait for that for ever.
    """
    slots = Slot.objects.using(alias)
    unused = LimitKey.objects.using(alias).filter(~Exists(slots.filter(limit=OuterRef("limit"), key=OuterRef("key"))))
    locked = unused.select_for_update(skip_locked=True).order_by("id")
    found = list(locked.values_list("id", "limit", "key")[:most])
    if not found:
        return 0
    several = slots.filter(is_held=False, location="").annotate(text=Cast("wants", TextField()))
    waiting: Any = several.filter(text__contains="],").values_list("wants", flat=True)
    wanted = {(limit, key) for wants in waiting.iterator() for limit, key, *_ in wants}
    return unused.filter(id__in=[pk for pk, *at in found if tuple(at) not in wanted]).delete()[0]


class DatabaseLimits(DatabaseTables):
    """The part of a `Store` for the slots of limits that is the same on both databases."""

    def give_up_idle_slots(self, now: datetime, most: int) -> list[RunRecord]:
        idle = _idle(self.alias, now).order_by("run_id").values_list("run_id", flat=True).distinct()
        given_up: list[RunRecord] = []
        for run_id in idle[:most]:
            with transaction.atomic(using=self.alias):
                run = self._lock_run(run_id, wait=False)
                if run is None or not lines.is_asleep(run, now):
                    continue
                note_pause(self.alias, run_id)
                Run.objects.using(self.alias).filter(id=run_id).update(wake_at=now)
                given_up.append(replace(run, wake_at=now))
        return given_up

    def forget_limit_keys(self, before: datetime, most: int) -> int:
        with self._writing():
            number = rates.forget_keys(self.alias, before, most)
        with self._writing():
            return max(number, _forget_keys(self.alias, most))

    def _drop_reservations(self, run_id: str, dropped: Sequence[ReservationDropped], _now: datetime) -> None:
        rates.forget(self.alias, run_id, [each.location for each in dropped])

    def set_limit(self, name: str, override: int | None) -> int | None:
        with self._writing():
            limits = Limit.objects.using(self.alias).filter(name=name)
            before = limits.first()
            if before is None:
                return None
            limits.update(override=override)
            _note_lines(self.alias, name)
            return before.number

    def at_once(self, limit: str) -> int | None:
        return DatabaseSlots(self.alias).at_once(limit)

    def declare_limit(self, name: str, at_once: int) -> bool:
        with self._writing():
            limits = Limit.objects.using(self.alias)
            _, is_new = limits.get_or_create(name=name, defaults={"at_once": at_once})
            if is_new or not limits.filter(name=name).exclude(at_once=at_once).update(at_once=at_once):
                return is_new
            _note_lines(self.alias, name)
            return True

    def slots(self, run_ids: Sequence[str]) -> list[SlotRow]:
        found = Slot.objects.using(self.alias).filter(run_id__in=run_ids)
        return [each.record for each in found.order_by("run_id", "location", "limit", "key")]
