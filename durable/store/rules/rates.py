"""Rates of limits: who gets which moment, and what operators change.

For stores that compute in Python; on PostgreSQL the functions in `routines/rates.sql` do the same. The store passes in
a `RateTable`, through which all rows are read and written. The verbs of operators are the same on every store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Protocol

from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.limits import rates
from durable.core.limits.rates import (
    Cell,
    LimitClosing,
    Rate,
    RateKeyRow,
    RateWant,
    RefusedStart,
    Reservation,
    Want,
    counted,
    from_nanoseconds,
    nanoseconds,
)
from durable.core.records import ENDED, RunRecord, RunState
from durable.store.rules import TableStore

_RETIMED: Final = 10_000  # the most waiting attempts of a key that a verb gives new moments


@dataclass(slots=True, kw_only=True)
class RateKey:
    """A key of a limit's rate: its reservations and what has begun, and what operators have set."""

    limit: str
    key: str
    cell: Cell = field(default_factory=Cell)
    recent: str = ""
    closing: LimitClosing | None = None
    refused: int = 0
    last_refused: RefusedStart | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """An attempt that waits for its moment."""

    run_id: str
    location: str
    limit: str
    key: str
    units: int
    at: datetime


class RateTable(Protocol):
    """The rows of rates. Each call runs in a transaction that locks what it writes."""

    def rate(self, limit: str) -> Rate | None:
        """Return the rate in force, None for a limit without one."""

    def define(self, limit: str, rate: Rate) -> Rate:
        """Insert the rate of a limit if it has none; return the rate in force."""

    def declare(self, limit: str, rate: Rate) -> bool:
        """Write the rate in the code; return False if the row already has it."""

    def override(self, limit: str, rate: Rate | None) -> None:
        """Write an operator's override of the rate, or delete it."""

    def key(self, limit: str, key: str) -> RateKey:
        """Return a key, locked until the transaction ends."""

    def write(self, key: RateKey) -> None:
        """Write a key."""

    def keys(self, limit: str, among: Sequence[str] | None = None) -> list[tuple[RateKey, datetime | None]]:
        """Return the keys of a limit, the named ones or all, in order.

        Each comes with the moment of the last attempt that waits for it.
        """

    def closings(self, limit: str, key: str) -> list[datetime]:
        """Return until when a key is closed: by itself, and together with all keys."""

    def last(self, limit: str, key: str) -> datetime | None:
        """Return the moment of the last attempt that waits for a key."""

    def ticket(self, run_id: str, location: str) -> Ticket | None:
        """Return the ticket of an attempt."""

    def put(self, ticket: Ticket) -> None:
        """Write a ticket. A ticket of the same attempt keeps its place."""

    def drop(self, run_id: str, location: str) -> None:
        """Delete the ticket of an attempt."""

    def waiting(self, limit: str, key: str, after: datetime, most: int) -> list[Ticket]:
        """Return the tickets of a key with moments after this one, in the order of their places."""

    def move(self, ticket: Ticket, moment: datetime, at: datetime) -> str | None:
        """Give a ticket and its run (`after_move`) another moment. Return the queue to notify, if that moment has come.

        Rows that another transaction has locked are left to the sweep.
        """


class RateStore(TableStore, Protocol):
    """The part of a `Store` for rates."""

    _rates: RateTable

    def reserve(
        self,
        run_id: str,
        fence: int,
        location: str,
        want: RateWant,
        now: datetime,
        *,
        may_begin: bool = True,
        patience: float = 0.0,
    ) -> Reservation:
        """Give an attempt of a claimed run its moment in a limit's rate, or let it begin; on PostgreSQL one statement.

        An attempt that does not begin keeps a reservation, which the next call for its run and location finds. It
        begins if its moment is at most `patience` seconds from `now`, and the attempts begun by then leave room for it.
        Without `may_begin` it only gets a reservation; the answer says to begin if that is due. Locks the row of the
        key, but no row of a run. Raises LeaseLost if the run has a newer fence, UnknownLimitError for a limit without a
        rate, and RateUnitsError for units that take more than a year.
        """
        with self._writing():
            self._check_fence(run_id, fence)
            return _reserve(self._rates, run_id, location, want, now, may_begin=may_begin, patience=patience)

    def set_rate(self, name: str, override: Rate | None, now: datetime) -> tuple[Rate, frozenset[str]] | None:
        """Override a limit's rate, or with None return to that of its code. Give waiting attempts new moments.

        Return the earlier rate, and the queues to notify; None, with nothing changed, if the limit has no rate.
        """
        with self._writing():
            before = self._rates.rate(name)
            if before is None:
                return None
            self._rates.override(name, override)
            return before, _retimed(self._rates, name, None, now, before.spacing)

    def declare_rate(self, name: str, rate: Rate) -> bool:
        """Write the rate in the code, below an operator's override. Return False if the row already has it."""
        with self._writing():
            return self._rates.declare(name, rate)

    def close_rate(
        self, limit: str, key: str, closing: LimitClosing, *, is_longer: bool = False
    ) -> LimitClosing | None:
        """Close a key of a limit until a moment: nothing of it begins before. The key "" closes all keys.

        Return the earlier closing. With `is_longer`, change nothing if the key is already closed for as long.
        """
        with self._writing():
            row = self._rates.key(limit, key)
            before = row.closing
            if not (is_longer and before is not None and before.until >= closing.until):
                row.closing = closing
                self._rates.write(row)
            return before

    def open_rate(self, limit: str, key: str, now: datetime) -> tuple[LimitClosing, frozenset[str]] | None:
        """End the closing of a key, and give waiting attempts new moments.

        Return the closing, and the queues to notify; None if the key is not closed.
        """
        with self._writing():
            row = self._rates.key(limit, key)
            before = row.closing
            if before is None or before.until <= now:
                return None
            row.closing = None
            self._rates.write(row)
            return before, _retimed(self._rates, limit, key or None, now)

    def has_rate(self, name: str) -> bool:
        """Return whether a limit has a rate."""
        return self._rates.rate(name) is not None

    def rate_keys(self, limit: str, keys: Sequence[str], now: datetime) -> list[RateKeyRow]:
        """Return the reservations and closings of these keys of a limit; keys that were never used are missing."""
        rate = self._rates.rate(limit)
        room = rate.burst * rate.spacing if rate is not None else 0
        found = self._rates.keys(limit, keys)
        return [_shown(row, rates.given_until(row.cell, room, _nanoseconds(last)), now) for row, last in found]

    def note_refused(self, limit: str, key: str, start: RefusedStart) -> None:
        """Count a start that this key of a limit has refused, and record it."""
        with self._writing():
            row = self._rates.key(limit, key)
            row.refused, row.last_refused = row.refused + 1, start
            self._rates.write(row)


def _reserve(
    table: RateTable, run_id: str, location: str, want: RateWant, at: datetime, *, may_begin: bool, patience: float
) -> Reservation:
    """Give an attempt its moment, or let it begin (`Store.reserve`)."""
    if (rate := table.rate(want.limit)) is None:
        if want.rate is None:
            raise UnknownLimitError(want.limit, is_rate=True)
        rate = table.define(want.limit, want.rate)
    if want.units * rate.spacing > rates.LONGEST:
        raise RateUnitsError(want.label, want.units, rate.text)
    row, ticket = table.key(want.limit, want.key), table.ticket(run_id, location)
    if ticket is not None and (ticket.limit, ticket.key, ticket.units) != (want.limit, want.key, want.units):
        ticket = None
    now, closed = nanoseconds(at), _closed(table, want.limit, want.key)
    wanted = Want(
        units=want.units,
        at=now,
        patience=round(patience * 1_000_000_000),
        closed_until=closed,
        reservation=None if ticket is None else nanoseconds(ticket.at),
        may_begin=may_begin,
        last=_nanoseconds(table.last(want.limit, want.key)) if ticket is None else None,
    )
    begins, moment = rates.reserve(row.cell, rate.spacing, rate.burst, wanted)
    before = rates.units_before(moment, now, closed, rate.spacing)
    answer = Reservation(at=from_nanoseconds(moment), begins=begins, before=before)
    if begins and may_begin:
        row.recent = counted(row.recent, moment, want.units)
        table.drop(run_id, location)
    else:
        table.put(Ticket(run_id, location, want.limit, want.key, want.units, answer.at))
    table.write(row)
    return answer


def after_move(run: RunRecord, before: datetime, moment: datetime) -> RunRecord:
    """Return the run of an attempt that has been given another moment: it becomes due then, unless it is due before."""
    if run.lease_expires_at is not None and moment < before:  # its pass may be about to park until the moment before
        run = replace(run, change_seq=run.change_seq + 1)
    if run.state in (*ENDED, RunState.PAUSED) or run.wake_at is None or run.wake_at <= moment:
        return run
    return replace(run, wake_at=moment)


def _retimed(table: RateTable, limit: str, key: str | None, at: datetime, spacing_before: int = 0) -> frozenset[str]:
    """Give the attempts that wait for a limit, or for one of its keys, new moments in the same order.

    `spacing_before` is the spacing of the earlier rate, if it has changed. Return the queues to notify.
    """
    queues: set[str | None] = set()
    for each, _ in table.keys(limit, None if key is None else [key]):
        row, rate, now = table.key(limit, each.key), table.rate(limit), nanoseconds(at)
        assert rate is not None, "a limit that is set or opened has a rate"
        closed = _closed(table, limit, each.key)
        if spacing_before:
            rates.rescale(row.cell, now, spacing_before, rate.spacing)
        rates.begin_anew(row.cell)
        moment: int | None = None
        for ticket in table.waiting(limit, each.key, at, _RETIMED):
            wanted = Want(units=ticket.units, at=now, closed_until=closed, may_begin=False, last=moment)
            _, moment = rates.reserve(row.cell, rate.spacing, rate.burst, wanted)
            queues.add(table.move(ticket, from_nanoseconds(moment), at))
        table.write(row)
    return frozenset(each for each in queues if each is not None)


def _closed(table: RateTable, limit: str, key: str) -> int:
    return max(map(nanoseconds, table.closings(limit, key)), default=0)


def _nanoseconds(moment: datetime | None) -> int | None:
    return None if moment is None else nanoseconds(moment)


def _shown(row: RateKey, until: int, now: datetime) -> RateKeyRow:
    is_open = row.closing is None or row.closing.until <= now
    return RateKeyRow(
        limit=row.limit,
        key=row.key,
        reserved_until=from_nanoseconds(until) if until else None,
        closing=None if is_open else row.closing,
        recent=row.recent,
        refused=row.refused,
        last_refused=row.last_refused,
    )
