"""Rates of limits in a database: the rows for `durable.store.rules.rates`.

On PostgreSQL `routines/rates.sql` gives attempts their moments; what operators do is the same on both databases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q, Subquery

from durable.core.limits.rates import Cell, LimitClosing, Rate, nanoseconds
from durable.core.records import RunRecord
from durable.models import RateKey as RateKeyModel
from durable.models import RateLimit, Reservation, Run, SlotNote
from durable.store.rules.rates import RateKey, Ticket, after_move
from durable.store.rules.row_rules import changed_columns
from durable.store.tables.rows import RUN

_TICKET = ("run_id", "location", "limit", "key", "units", "at")


class DatabaseRates:
    """A `durable.store.rules.rates.RateTable` in a database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._limits = RateLimit.objects.using(alias)
        self._keys = RateKeyModel.objects.using(alias)
        self._tickets = Reservation.objects.using(alias)

    def rate(self, limit: str) -> Rate | None:
        found = self._limits.filter(name=limit).first()
        return None if found is None else found.now

    def define(self, limit: str, rate: Rate) -> Rate:
        return self._limits.get_or_create(name=limit, defaults=_columns(rate))[0].now

    def declare(self, limit: str, rate: Rate) -> bool:
        row, is_new = self._limits.get_or_create(name=limit, defaults=_columns(rate))
        if is_new or row.code_says == rate:
            return is_new
        self._limits.filter(name=limit).update(**_columns(rate))
        return True

    def override(self, limit: str, rate: Rate | None) -> None:
        chosen = _columns(rate or Rate("", 0, 0))
        self._limits.filter(name=limit).update(**{f"override_{name}": value for name, value in chosen.items()})

    def key(self, limit: str, key: str) -> RateKey:
        return _key(self._keys.select_for_update().get_or_create(limit=limit, key=key)[0])

    def write(self, key: RateKey) -> None:
        columns: dict[str, Any] = {"recent": key.recent, "refused": key.refused}
        columns |= {name: getattr(key.cell, name) for name in Cell.__slots__}
        closing, last = key.closing, key.last_refused
        columns["closed_until"] = None if closing is None else closing.until
        columns |= {"closed_by": closing.by if closing else "", "closed_why": closing.reason if closing else ""}
        if last is not None:
            columns |= {"refused_at": last.at, "refused_workflow": last.workflow, "refused_run": last.run_id}
        self._keys.filter(limit=key.limit, key=key.key).update(**columns)

    def keys(self, limit: str, among: Sequence[str] | None = None) -> list[tuple[RateKey, datetime | None]]:
        last = Reservation.objects.filter(limit=OuterRef("limit"), key=OuterRef("key")).order_by("-at").values("at")
        rows = self._keys.filter(limit=limit).order_by("key").annotate(last=Subquery(last[:1]))
        return [(_key(row), row.last) for row in (rows if among is None else rows.filter(key__in=among))]

    def closings(self, limit: str, key: str) -> list[datetime]:
        rows = self._keys.filter(limit=limit, key__in={"", key}, closed_until__isnull=False)
        return [each for each in rows.values_list("closed_until", flat=True) if each is not None]

    def last(self, limit: str, key: str) -> datetime | None:
        return self._tickets.filter(limit=limit, key=key).order_by("-at").values_list("at", flat=True).first()

    def ticket(self, run_id: str, location: str) -> Ticket | None:
        return next(iter(_read(self._tickets.filter(run_id=run_id, location=location))), None)

    def put(self, ticket: Ticket) -> None:
        values = {"limit": ticket.limit, "key": ticket.key, "units": ticket.units, "at": ticket.at}
        self._tickets.update_or_create(run_id=ticket.run_id, location=ticket.location, defaults=values)

    def drop(self, run_id: str, location: str) -> None:
        self._tickets.filter(run_id=run_id, location=location).delete()

    def waiting(self, limit: str, key: str, after: datetime, most: int) -> list[Ticket]:
        return _read(self._tickets.filter(limit=limit, key=key, at__gt=after).order_by("id")[:most])

    def move(self, ticket: Ticket, moment: datetime, at: datetime) -> str | None:
        mine, runs = (
            self._tickets.filter(run_id=ticket.run_id, location=ticket.location),
            Run.objects.using(self._alias),
        )
        locked = runs.select_for_update(skip_locked=True, no_key=True).filter(id=ticket.run_id)
        row = locked.values(*RUN.names).first()
        if row is None:  # a transaction that has locked the run may wait for the key: the sweep lets the run ask again
            if mine.select_for_update(skip_locked=True).first() is not None:  # else the run is ending
                mine.update(at=moment)
            SlotNote.objects.using(self._alias).create(limit=ticket.limit, key=ticket.key, run_id=ticket.run_id)
            return None
        mine.update(at=moment)
        run = RunRecord(**row)
        after = after_move(run, ticket.at, moment)
        if changed := changed_columns(run, after):
            runs.filter(id=run.id).update(**changed)
        return run.queue if after.wake_at != run.wake_at and moment <= at else None


def forget(alias: str, run_id: str, locations: Collection[str] | None = None) -> None:
    """Delete the reservations of an ended run, or of its steps at these locations, which wait no more.

    The next attempt reuses those at the end of the line.
    """
    mine = Reservation.objects.using(alias).filter(run_id=run_id)
    (mine if locations is None else mine.filter(location__in=locations)).delete()


def forget_keys(alias: str, before: datetime, most: int) -> int:
    """Delete unused keys (`Store.forget_limit_keys`), and return how many.

    `reserved` and `put_off` do not matter: without a reservation, the next attempt reuses what is behind `begun`.
    """
    awaited = Reservation.objects.using(alias).filter(limit=OuterRef("limit"), key=OuterRef("key"))
    is_over = Q(closed_until=None) | Q(closed_until__lt=before), Q(refused_at=None) | Q(refused_at__lt=before)
    unused = RateKeyModel.objects.using(alias).filter(~Exists(awaited), *is_over, begun__lt=nanoseconds(before))
    found = list(unused.select_for_update(skip_locked=True).order_by("id").values_list("id", flat=True)[:most])
    # an attempt may have waited before the lock: a second statement sees it
    return unused.filter(id__in=found).delete()[0] if found else 0


def _columns(rate: Rate) -> dict[str, Any]:
    return {"rate": rate.text, "spacing": rate.spacing, "burst": rate.burst}


def _key(row: RateKeyModel) -> RateKey:
    closing = None
    if row.closed_until is not None:
        closing = LimitClosing(until=row.closed_until, by=row.closed_by, reason=row.closed_why)
    return RateKey(
        limit=row.limit,
        key=row.key,
        cell=Cell(row.reserved, row.begun, row.put_off),
        recent=row.recent,
        closing=closing,
        refused=row.refused,
        last_refused=row.last_refused,
    )


def _read(tickets: Any) -> list[Ticket]:
    return [Ticket(*row) for row in tickets.values_list(*_TICKET)]
