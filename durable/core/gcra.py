"""The generic cell rate algorithm (GCRA): at which moment an attempt may begin.

What the function in `durable/store/routines/rates.sql` computes on PostgreSQL, for stores that compute in Python. Pure
functions of whole nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
