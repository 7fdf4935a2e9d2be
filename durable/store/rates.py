"""Rates of limits in a database: the rows for `durable.core.gcra`, and what operators change of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import F, OuterRef, Subquery

from durable.core import gcra
from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.gcra import Cell, Want
from durable.core.rate_counts import counted
from durable.core.rates import LimitClosing, Rate, RateKeyRow, RateWant, RefusedStart, from_nanoseconds, nanoseconds
from durable.core.rates import Reservation as Answer
from durable.core.records import ENDED, RunState
from durable.models import RateKey, RateLimit, Reservation, Run, SlotNote

_RETIMED = 10_000  # waiting attempts that a verb moves


def reserve(
    alias: str, run_id: str, location: str, want: RateWant, at: datetime, *, may_begin: bool, patience: float
) -> Answer:
    """Give an attempt its moment, or let it begin (`Store.reserve`), in a transaction."""
    rate = _rate(alias, want)
    if want.units * rate.spacing > gcra.LONGEST:
        raise RateUnitsError(want.label, want.units, rate.text)
    row = _locked(alias, want.limit, want.key)
    tickets = Reservation.objects.using(alias)
    wanted = {"limit": want.limit, "key": want.key, "units": want.units}
    ticket = tickets.filter(run_id=run_id, location=location, **wanted).first()
    now, closed = nanoseconds(at), _closed(alias, want.limit, want.key)
    cell = Cell(row.reserved, row.begun, row.put_off)
    begins, moment = gcra.reserve(
        cell,
        rate.spacing,
        rate.burst,
        Want(
            units=want.units,
            at=now,
            patience=round(patience * 1_000_000_000),
            closed_until=closed,
            reservation=None if ticket is None else nanoseconds(ticket.at),
            may_begin=may_begin,
            last=_last(alias, want.limit, want.key) if ticket is None else None,
        ),
    )
    if begins and may_begin:
        row.recent = counted(row.recent, moment, want.units)
    _put(alias, row, cell)
    answer = Answer(
        at=from_nanoseconds(moment), begins=begins, before=gcra.units_before(moment, now, closed, rate.spacing)
    )
    if begins and may_begin:
        tickets.filter(run_id=run_id, location=location).delete()
    else:
        tickets.update_or_create(run_id=run_id, location=location, defaults={**wanted, "at": answer.at})
    return answer


def forget(alias: str, run_id: str) -> None:
    """Delete the reservations of a run that has ended. The next attempt that asks has those behind which none waits."""
    Reservation.objects.using(alias).filter(run_id=run_id).delete()


def declare(alias: str, name: str, rate: Rate) -> bool:
    """Write the rate that the code says (`Store.declare_rate`)."""
    values = {"rate": rate.text, "spacing": rate.spacing, "burst": rate.burst}
    row, is_new = RateLimit.objects.using(alias).get_or_create(name=name, defaults=values)
    if is_new or row.code_says == rate:
        return is_new
    RateLimit.objects.using(alias).filter(name=name).update(**values)
    return True


def set_rate(alias: str, name: str, override: Rate | None, at: datetime) -> tuple[Rate, frozenset[str]] | None:
    """Let a limit have another rate, and move the attempts that wait (`Store.set_rate`)."""
    rows = RateLimit.objects.using(alias).filter(name=name)
    before = rows.first()
    if before is None:
        return None
    chosen = override or Rate("", 0, 0)
    rows.update(override_rate=chosen.text, override_spacing=chosen.spacing, override_burst=chosen.burst)
    return before.now, _retimed(alias, name, None, at, before.now.spacing)


def close(alias: str, limit: str, key: str, closing: LimitClosing, *, is_longer: bool) -> LimitClosing | None:
    """Close a key of a limit; return the closing before (`Store.close_rate`)."""
    row = _locked(alias, limit, key)
    before = None
    if row.closed_until is not None:
        before = LimitClosing(until=row.closed_until, by=row.closed_by, reason=row.closed_why)
        if is_longer and row.closed_until >= closing.until:
            return before
    values = {"closed_until": closing.until, "closed_by": closing.by, "closed_why": closing.reason}
    RateKey.objects.using(alias).filter(pk=row.pk).update(**values)
    return before


def open_again(alias: str, limit: str, key: str, at: datetime) -> tuple[LimitClosing, frozenset[str]] | None:
    """End the closing of a key, and move the attempts that wait (`Store.open_rate`)."""
    row = _locked(alias, limit, key)
    if (before := row.closing(at)) is None:
        return None
    RateKey.objects.using(alias).filter(pk=row.pk).update(closed_until=None, closed_by="", closed_why="")
    return before, _retimed(alias, limit, key or None, at)


def keys_of(alias: str, limit: str, keys: Sequence[str], at: datetime) -> list[RateKeyRow]:
    """Return what is taken of these keys of a limit (`Store.rate_keys`)."""
    last = Reservation.objects.filter(limit=OuterRef("limit"), key=OuterRef("key")).order_by("-at").values("at")[:1]
    rows = RateKey.objects.using(alias).filter(limit=limit, key__in=keys).order_by("key").annotate(last=Subquery(last))
    rate = RateLimit.objects.using(alias).filter(name=limit).first()
    room = rate.now.burst * rate.now.spacing if rate is not None else 0
    return [
        RateKeyRow(
            limit=row.limit,
            key=row.key,
            reserved_until=from_nanoseconds(until) if (until := _given_until(row, room)) else None,
            closing=row.closing(at),
            recent=row.recent,
            refused=row.refused,
            last_refused=row.last_refused,
        )
        for row in rows
    ]


def _given_until(row: Any, room: int) -> int:
    """Return up to when moments of a key are given. The row has the moment of the last attempt that waits."""
    last = None if row.last is None else nanoseconds(row.last)
    return gcra.given_until(Cell(row.reserved, row.begun, row.put_off), room, last)


def note_refused(alias: str, limit: str, key: str, start: RefusedStart) -> None:
    """Count a start that a key has refused (`Store.note_refused`)."""
    row = _locked(alias, limit, key)
    RateKey.objects.using(alias).filter(pk=row.pk).update(
        refused=F("refused") + 1, refused_at=start.at, refused_workflow=start.workflow, refused_run=start.run_id
    )


def exists(alias: str, limit: str) -> bool:
    """Return whether a limit has a rate."""
    return RateLimit.objects.using(alias).filter(name=limit).exists()


def text_of(alias: str, limit: str) -> str:
    """Return the rate of a limit as text."""
    return RateLimit.objects.using(alias).get(name=limit).now.text


def _rate(alias: str, want: RateWant) -> Rate:
    limits = RateLimit.objects.using(alias)
    found = limits.filter(name=want.limit).first()
    if found is None:
        if want.rate is None:
            raise UnknownLimitError(want.limit, is_rate=True)
        values = {"rate": want.rate.text, "spacing": want.rate.spacing, "burst": want.rate.burst}
        found, _ = limits.get_or_create(name=want.limit, defaults=values)
    return found.now


def _locked(alias: str, limit: str, key: str) -> RateKey:
    return RateKey.objects.using(alias).select_for_update().get_or_create(limit=limit, key=key)[0]


def _closed(alias: str, limit: str, key: str) -> int:
    rows = RateKey.objects.using(alias).filter(limit=limit, key__in={"", key}, closed_until__isnull=False)
    return max(
        (nanoseconds(each) for each in rows.values_list("closed_until", flat=True) if each is not None), default=0
    )


def _last(alias: str, limit: str, key: str) -> int | None:
    """Return the moment of the last attempt that waits for a key, None for none."""
    waiting = Reservation.objects.using(alias).filter(limit=limit, key=key).order_by("-at")
    found = waiting.values_list("at", flat=True).first()
    return None if found is None else nanoseconds(found)


def _put(alias: str, row: RateKey, cell: Cell) -> None:
    values = {"reserved": cell.reserved, "begun": cell.begun, "put_off": cell.put_off, "recent": row.recent}
    RateKey.objects.using(alias).filter(pk=row.pk).update(**values)


def _retimed(alias: str, limit: str, key: str | None, at: datetime, spacing_before: int = 0) -> frozenset[str]:
    """Give the attempts that wait for a limit, or for one of its keys, new moments in the same order.

    `spacing_before` is that of the rate before, if it has changed. The sweep sees to a run whose row
    another transaction has locked. Return the queues to notify.
    """
    rows = RateKey.objects.using(alias).filter(limit=limit).order_by("key")
    queues: set[str] = set()
    for each in rows if key is None else rows.filter(key=key):
        row = _locked(alias, limit, each.key)
        rate = RateLimit.objects.using(alias).get(name=limit).now
        closed, now = _closed(alias, limit, row.key), nanoseconds(at)
        cell = Cell(row.reserved, row.begun, row.put_off)
        if spacing_before:
            gcra.rescale(cell, now, spacing_before, rate.spacing)
        gcra.begin_anew(cell)
        waiting = Reservation.objects.using(alias).filter(limit=limit, key=row.key, at__gt=at).order_by("id")
        moment: int | None = None
        for ticket in waiting[:_RETIMED]:
            wanted = Want(units=ticket.units, at=now, closed_until=closed, may_begin=False, last=moment)
            _, moment = gcra.reserve(cell, rate.spacing, rate.burst, wanted)
            queues |= _move(alias, ticket, from_nanoseconds(moment), at)
        _put(alias, row, cell)
    return frozenset(queues)


def _move(alias: str, ticket: Reservation, moment: datetime, at: datetime) -> set[str]:
    tickets = Reservation.objects.using(alias).filter(pk=ticket.pk)
    run = Run.objects.using(alias).select_for_update(skip_locked=True, no_key=True).filter(id=ticket.run_id).first()
    if run is None:  # who has a run locked may wait for the key: the sweep lets the run ask again
        if tickets.select_for_update(skip_locked=True).first() is not None:  # else the run is ending
            tickets.update(at=moment)
        SlotNote.objects.using(alias).create(limit=ticket.limit, key=ticket.key, run_id=ticket.run_id)
        return set()
    if run.state in ENDED:
        return set()
    tickets.update(at=moment)
    mine = Run.objects.using(alias).filter(id=run.pk)
    if run.lease_expires_at is not None and moment < ticket.at:  # its pass may be about to park until the moment before
        mine.update(change_seq=F("change_seq") + 1)
    if run.state == RunState.PAUSED or run.wake_at is None or run.wake_at <= moment:
        return set()
    mine.update(wake_at=moment)
    return {run.queue} if moment <= at else set()
