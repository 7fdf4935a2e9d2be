"""Rates: how many units of a limit may begin in each period of time, and when an attempt may begin (GCRA).

Pure functions, in whole nanoseconds. An attempt that wants units is given a moment of its own, a *reservation*.
`reserve` computes it for stores that compute in Python; on PostgreSQL `durable/store/routines/rates.sql` does the same.

Units of the last minute are counted in a text: the number of the newest five seconds since 1970, then the counts, the
newest first. Its length is bounded, and the statement that lets an attempt begin writes it. The function in `rates.sql`
does what `counted` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from durable.core.duration import parse_duration
from durable.core.limits.slot_records import limit_label, split_label
from durable.core.numbers import check_whole

#: The key in an entry's data of its newest attempt's reservation: limit, units, moment.
RATE: Final = "rate"
#: The most units of one attempt, of a burst and of a rate.
MOST_UNITS: Final = 1_000_000_000
_LONGEST: Final = timedelta(days=366)
_TEXT: Final = re.compile(r"\s*(\d[\d,_]*)\s*/\s*(.+?)\s*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate as code writes it, such as "500/min".

    One unit begins every `spacing` nanoseconds, and `burst` units at once after a pause.
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
        units, text = int(found[1].replace(",", "").replace("_", "")), found[2]
        period = parse_duration(f"1 {text}" if text.isalpha() else text, "the time of a rate")
        if not 1 <= units <= MOST_UNITS:
            raise ValueError(f"a rate has 1 to {MOST_UNITS:,} units, not {found[1][:64]}: close the limit to stop it")
        if not timedelta(0) < period <= _LONGEST:
            raise ValueError(f"the time of a rate is above 0 and at most 366 days, not {found[2][:64]!r}")
        nanoseconds_ = period // _MICROSECOND * 1_000
        spacing = -(-nanoseconds_ // units)
        if check_whole("burst", burst, 1, MOST_UNITS) * spacing > _LONGEST // _MICROSECOND * 1_000:
            raise ValueError(f"a burst of {burst:,} units takes more than a year at {rate}: choose a smaller one")
        return cls(f"{units}/{found[2]}", spacing, burst)

    def __str__(self) -> str:
        return self.text if self.burst == 1 else f"{self.text}, burst {self.burst}"


@dataclass(frozen=True, slots=True)
class RateWant:
    """The units of a limit's rate that one attempt wants, for `key` ("" for none).

    `rate` defines a limit that has no row yet.
    """

    limit: str
    key: str = ""
    units: int = 1
    rate: Rate | None = None

    @property
    def label(self) -> str:
        """The limit and the key for display."""
        return limit_label(self.limit, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The answer to an attempt that wants units: begin at `at` in this pass, or park until then.

    `before` is how many units of the rate come first.
    """

    at: datetime
    begins: bool
    before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitClosing:
    """A closing of a limit's rate: nothing begins before `until`. `by` and `reason` say who closed it, and why."""

    until: datetime
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedStart:
    """A start that a rate refused: its workflow, and the id that its run would have had."""

    at: datetime
    workflow: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKeyRow:
    """A key of a rate: until when it is reserved (None if it is not), and its closing (None while it is open).

    `recent` counts the units of the last minute, `refused` the starts that the rate refused.
    """

    limit: str
    key: str
    reserved_until: datetime | None
    closing: LimitClosing | None = None
    recent: str = ""
    refused: int = 0
    last_refused: RefusedStart | None = None


def rate_of(rate: str | None, burst: int | None) -> Rate | None:
    """Return the rate that the options `rate` and `burst` give; None for none. Raises TypeError and ValueError."""
    if rate is None:
        if burst is not None:
            raise ValueError('burst= is of a rate: add rate=, such as rate="500/min"')
        return None
    return Rate.of(rate, 1 if burst is None else burst)


def rate_wanted(label: str, units: int = 1) -> RateWant:
    """Return the units to want of a limit named in code: "openai", or "openai/acme" with a key. Raises TypeError and
    ValueError.
    """
    if not isinstance(label, str):
        raise TypeError(f'rate= is the name of a limit, such as "openai" or "openai/acme", not {label!r}')
    limit, key = split_label(label)
    return RateWant(limit, key, check_whole("units", units, 1, MOST_UNITS))


def nanoseconds(moment: datetime) -> int:
    """Return a moment in nanoseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND * 1_000


def from_nanoseconds(number: int) -> datetime:
    """Convert nanoseconds since 1970 to a moment, rounded up to a microsecond."""
    return _EPOCH + -(-number // 1_000) * _MICROSECOND


BUCKETS: Final = 12
SECONDS: Final = 5
_LENGTH: Final = SECONDS * 1_000_000_000


def counted(recent: str, at: int, units: int) -> str:
    """Add the units of an attempt that begins at `at`, in nanoseconds since 1970, to the text of counts."""
    newest, counts = _read(recent)
    bucket = max(newest, at // _LENGTH)
    counts = _moved(counts, bucket - newest)
    counts[0] += units
    return " ".join(map(str, [bucket, *counts]))


def counts_of(recent: str, now: int) -> list[int]:
    """Return the counts of the last minute, the oldest first; the last count is of the current five seconds."""
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


#: The longest time that the units of one attempt may take: 366 days.
LONGEST: Final = 366 * 86_400 * 1_000_000_000
#: A moment in the year 2255: no time here goes beyond it.
END: Final = 9_000_000_000_000_000_000


@dataclass(slots=True)
class Cell:
    """The theoretical arrival times of one key; 0 before the first.

    `reserved` is that of the reservations, `begun` of the attempts that have begun, `put_off` of reservations that came
    due and could not begin.
    """

    reserved: int = 0
    begun: int = 0
    put_off: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """An attempt: its units, and its reservation if it has one. It may begin up to `patience` after `at`.

    Nothing of the key begins before `closed_until`. Without `may_begin` the attempt only gets a reservation. `last` is
    the latest reservation of the key that still waits, or None.
    """

    units: int
    at: int
    patience: int = 0
    closed_until: int = 0
    reservation: int | None = None
    may_begin: bool = True
    last: int | None = None


def reserve(cell: Cell, spacing: int, burst: int, want: Want) -> tuple[bool, int]:
    """Decide whether the attempt begins now, and return that with its moment. Changes the cell.

    A new attempt gets the moment after all that wait. An attempt whose reservation is due begins if the attempts begun
    so far leave room; otherwise it is put off behind the others. So attempts that come due late, together, do not begin
    together.
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
    """Return the time up to which moments are given to attempts that wait or have begun; 0 if none ever was."""
    return min(max(cell.reserved, cell.put_off), max(cell.begun, 0 if last is None else last + room))


def _give_back(cell: Cell, room: int, start: int, last: int | None) -> None:
    """Forget reservations after the last one that waits: the runs that had them have ended."""
    if max(cell.reserved, cell.put_off) > max(start, cell.begun):
        taken = max(cell.begun, 0 if last is None else last + room)
        cell.reserved, cell.put_off = min(cell.reserved, taken), min(cell.put_off, taken)


def units_before(moment: int, at: int, closed_until: int, spacing: int) -> int:
    """Return how many units of the rate come before a reservation."""
    return max(0, moment - max(at, closed_until)) // spacing


def rescale(cell: Cell, at: int, before: int, after: int) -> None:
    """Convert the debt of the attempts that have begun from the old spacing to the new one."""
    if cell.begun > at:
        cell.begun = min(END, at + -(-(cell.begun - at) * after // before))


def begin_anew(cell: Cell) -> None:
    """Forget all given reservations, because the waiting attempts get new ones."""
    cell.reserved, cell.put_off = cell.begun, 0
