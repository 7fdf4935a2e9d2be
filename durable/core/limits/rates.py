"""Rates: how many units of a limit may begin in each period of time, and when an attempt may begin (GCRA).

An attempt that wants units is given a moment of its own, a *reservation* (`durable.core.limits.rates` computes it).

The text is the number of the newest five seconds since 1970, and behind it the counts, the newest first. It is bounded,
and written by the statement that lets an attempt begin. The function in `durable/store/routines/rates.sql` does what
`counted` does.

What the function in `durable/store/routines/rates.sql` computes on PostgreSQL, for stores that compute in Python. Pure
functions of whole nanoseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from durable.core.duration import parse_duration
from durable.core.limits.slot_records import limit_label, split_label

#: The key in an entry's data of what its newest attempt has reserved: limit, units, moment.
RATE: Final = "rate"
#: Of one attempt, of a burst and of a rate.
MOST_UNITS: Final = 1_000_000_000
_LONGEST: Final = timedelta(days=366)
_TEXT: Final = re.compile(r"\s*(\d[\d,_]*)\s*/\s*(.+?)\s*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate as code writes it, such as "500/min".

    One unit every `spacing` nanoseconds, and `burst` units at once after a pause.
    """

    text: str
    spacing: int
    burst: int = 1

    @classmethod
    def of(cls, rate: str, burst: int = 1) -> Self:
        """Read a rate such as "500/min", "5/s" or "1/30 s". Raises TypeError and ValueError."""
        if not isinstance(rate, str):
            raise TypeError(f'a rate is text such as "500/min", not {rate!r}')
        found = _TEXT.fullmatch(rate)
        if found is None:
            raise ValueError(
                f'a rate is a number of units and a time, such as "500/min" or "1/30 s", not {rate[:64]!r}'
            )
        units, period = int(found[1].replace(",", "").replace("_", "")), _period(found[2])
        if not 1 <= units <= MOST_UNITS:
            raise ValueError(f"a rate has 1 to {MOST_UNITS:,} units, not {found[1][:64]}: close the limit to stop it")
        if not timedelta(0) < period <= _LONGEST:
            raise ValueError(f"the time of a rate is above 0 and at most 366 days, not {found[2][:64]!r}")
        nanoseconds_ = period // _MICROSECOND * 1_000
        spacing = -(-nanoseconds_ // units)
        if check_burst(burst) * spacing > _LONGEST // _MICROSECOND * 1_000:
            raise ValueError(f"a burst of {burst:,} units takes more than a year at {rate}: choose a smaller one")
        return cls(f"{units}/{found[2]}", spacing, burst)

    def __str__(self) -> str:
        return self.text if self.burst == 1 else f"{self.text}, burst {self.burst}"


@dataclass(frozen=True, slots=True)
class RateWant:
    """Units of a limit's rate that one attempt wants, for `key` ("" for none).

    `rate` defines a limit that has no row yet.
    """

    limit: str
    key: str = ""
    units: int = 1
    rate: Rate | None = None

    @property
    def label(self) -> str:
        """The limit and the key as people see them."""
        return limit_label(self.limit, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The answer to an attempt that wants units: it begins at `at`, in this pass; or the run parks until then.

    `before` is how many units of the rate go before it.
    """

    at: datetime
    begins: bool
    before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitClosing:
    """A closing of a limit's rate: nothing begins before `until`. `by` and `reason` tell whose it is and why."""

    until: datetime
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedStart:
    """A start that a rate has refused: of which workflow, and the id that its run would have had."""

    at: datetime
    workflow: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKeyRow:
    """A key of a rate: until when it is reserved, None for never; and its closing, None while it is open.

    `recent` counts the units of the last minute (`durable.core.limits.rates`), `refused` the starts it has refused.
    """

    limit: str
    key: str
    reserved_until: datetime | None
    closing: LimitClosing | None = None
    recent: str = ""
    refused: int = 0
    last_refused: RefusedStart | None = None


def rate_of(rate: str | None, burst: int | None) -> Rate | None:
    """Return the rate that two options give, None for none. Raises TypeError and ValueError."""
    if rate is None:
        if burst is not None:
            raise ValueError('burst= is of a rate: add rate=, such as rate="500/min"')
        return None
    return Rate.of(rate, 1 if burst is None else burst)


def rate_wanted(label: str, units: int = 1) -> RateWant:
    """Return the units that code names: of "openai", or of "openai/acme" for a key. Raises TypeError and ValueError."""
    if not isinstance(label, str):
        raise TypeError(f'rate= is the name of a limit, such as "openai" or "openai/acme", not {label!r}')
    limit, key = split_label(label)
    return RateWant(limit, key, check_units(units))


def check_units(units: int) -> int:
    """Return a number of units. Raises ValueError."""
    if not isinstance(units, int) or isinstance(units, bool) or not 1 <= units <= MOST_UNITS:
        raise ValueError(f"units is a whole number from 1 to {MOST_UNITS:,}, not {units!r}")
    return units


def check_burst(burst: int) -> int:
    """Return a burst. Raises ValueError."""
    if not isinstance(burst, int) or isinstance(burst, bool) or not 1 <= burst <= MOST_UNITS:
        raise ValueError(f"burst is a whole number from 1 to {MOST_UNITS:,}, not {burst!r}")
    return burst


def nanoseconds(moment: datetime) -> int:
    """Return a moment in nanoseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND * 1_000


def from_nanoseconds(number: int) -> datetime:
    """Return the moment of so many nanoseconds since 1970, a microsecond later where it falls between two."""
    return _EPOCH + -(-number // 1_000) * _MICROSECOND


def _period(text: str) -> timedelta:
    return parse_duration(f"1 {text}" if text.isalpha() else text, "the time of a rate")


BUCKETS: Final = 12
SECONDS: Final = 5
_LENGTH: Final = SECONDS * 1_000_000_000


def counted(recent: str, at: int, units: int) -> str:
    """Return the text with the units of an attempt that begins at `at`, in nanoseconds since 1970."""
    newest, counts = _read(recent)
    bucket = max(newest, at // _LENGTH)
    counts = _moved(counts, bucket - newest)
    counts[0] += units
    return " ".join(map(str, [bucket, *counts]))


def counts_of(recent: str, now: int) -> list[int]:
    """Return the counts of the last minute, the oldest first; the last one is of the five seconds of `now`."""
    newest, counts = _read(recent)
    return _moved(counts, max(0, now // _LENGTH - newest))[::-1]


def _read(recent: str) -> tuple[int, list[int]]:
    if not recent:
        return 0, [0] * BUCKETS
    newest, *counts = map(int, recent.split())
    return newest, counts


def _moved(counts: list[int], by: int) -> list[int]:
    empty = [0] * min(by, BUCKETS)
    return [*empty, *counts][:BUCKETS]


#: The time that the units of one attempt may take: 366 days.
LONGEST: Final = 366 * 86_400 * 1_000_000_000
#: A moment in the year 2255: no number is moved behind it.
END: Final = 9_000_000_000_000_000_000


@dataclass(slots=True)
class Cell:
    """The theoretical arrival times of one key, 0 before the first.

    `reserved` is that of the reservations given, `begun` of the attempts that have begun, and `put_off` of the
    reservations that came due and could not begin.
    """

    reserved: int = 0
    begun: int = 0
    put_off: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """An attempt: its units, and its reservation if it has one. It may begin up to `patience` after `at`.

    Nothing of the key begins before `closed_until`. Without `may_begin` it takes a reservation alone. `last` is the
    moment of the last of all reservations of the key that wait, None if none does.
    """

    units: int
    at: int
    patience: int = 0
    closed_until: int = 0
    reservation: int | None = None
    may_begin: bool = True
    last: int | None = None


def reserve(cell: Cell, spacing: int, burst: int, want: Want) -> tuple[bool, int]:
    """Return whether the attempt begins now, and its moment; change the cell.

    An attempt without a reservation is given the moment behind all others that wait. One that is due begins if what has
    begun until now leaves room for it; otherwise it is put off behind the others that were. So attempts that come due
    late, together, do not begin together.
    """
    start = max(want.at, want.closed_until)
    latest, cost, room = want.at + want.patience, want.units * spacing, burst * spacing
    larger = max(0, cost - room)
    if want.reservation is None:
        _give_back(cell, room, start, want.last)
        cell.reserved = min(END, max(cell.reserved, cell.put_off, start) + cost)
        moment = max(start, cell.reserved - room)
    else:
        moment = want.reservation
    if moment > latest:
        return False, moment
    first = max(start, moment)
    if not want.may_begin and first <= latest:
        return True, first
    begun = min(END, max(cell.begun, first - larger) + cost)
    begins_at = max(first, begun - room)
    if begins_at <= latest:
        cell.begun = begun
        return True, begins_at
    cell.put_off = min(END, max(cell.put_off, cell.begun, start - larger) + cost)
    return False, max(start, cell.put_off - room)


def given_until(cell: Cell, room: int, last: int | None) -> int:
    """Return up to when moments are given to attempts that wait for them or have begun; 0 for none ever."""
    return min(max(cell.reserved, cell.put_off), max(cell.begun, 0 if last is None else last + room))


def _give_back(cell: Cell, room: int, start: int, last: int | None) -> None:
    """Forget the reservations behind the last one that waits: their runs have ended."""
    if max(cell.reserved, cell.put_off) > max(start, cell.begun):
        taken = max(cell.begun, 0 if last is None else last + room)
        cell.reserved, cell.put_off = min(cell.reserved, taken), min(cell.put_off, taken)


def units_before(moment: int, at: int, closed_until: int, spacing: int) -> int:
    """Return how many units of the rate go before a reservation."""
    return max(0, moment - max(at, closed_until)) // spacing


def rescale(cell: Cell, at: int, before: int, after: int) -> None:
    """Let what is owed of the attempts that have begun take as many units at another spacing."""
    if cell.begun > at:
        cell.begun = min(END, at + -(-(cell.begun - at) * after // before))


def begin_anew(cell: Cell) -> None:
    """Forget the reservations that were given, because those who wait are given new ones."""
    cell.reserved, cell.put_off = cell.begun, 0
