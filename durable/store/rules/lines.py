"""Lines of limits: who takes a slot, who waits for one, and who is next.

For stores that compute in Python; on PostgreSQL the functions in `routines/slots.sql` do the same. The store passes in
a `SlotTable`, through which all rows are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from durable.core.errors import UnknownLimitError
from durable.core.limits.slot_records import Admission, SlotChange, SlotKind, SlotRow, SlotWant
from durable.core.records import RunRecord, RunState

#: How long a sleeping run may hold a slot that only a pass may hold: it was handed on, and the run was not woken.
IDLE: Final = timedelta(minutes=1)


def is_asleep(run: RunRecord, now: datetime) -> bool:
    """Return True if the run sleeps, and is not due."""
    return run.state == RunState.SLEEPING and (run.wake_at is None or run.wake_at > now)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the line of a key, for an operation that takes all `wants` together."""

    run_id: str
    location: str
    limit: str
    key: str
    place: int
    wants: tuple[SlotWant, ...]


class SlotTable(Protocol):
    """The rows of slots and limits. Each call runs in a transaction beside which no other one writes."""

    def clear(self, limit: str, key: str) -> None:
        """Delete slots of a key that ended runs have left."""

    def define(self, limit: str, at_once: int) -> None:
        """Insert a limit, unless one of this name exists."""

    def at_once(self, limit: str) -> int | None:
        """Return how many slots of each key may be held; None for an unknown limit."""

    def held(self, limit: str, key: str) -> int:
        """Return how many slots of the key are held."""

    def first(self, limit: str, key: str) -> Place | None:
        """Return the first place of the line whose run and queue are not paused, or None."""

    def before(self, place: Place) -> int:
        """Return how many places of the line come before this one, counted up to `MOST_IN_LINE`."""

    def last_place(self, limit: str, key: str) -> int:
        """Return the number of the last place in the line, 0 for an empty line."""

    def place_of(self, run_id: str, location: str) -> Place | None:
        """Return the place in which the operation waits, or None."""

    def held_by(self, run_id: str, location: str) -> set[tuple[str, str]]:
        """Return the limits and keys whose slots the operation holds."""

    def take(self, run_id: str, location: str, wants: Sequence[SlotWant], at: datetime) -> None:
        """Insert slots as held by the operation."""

    def wait(self, place: Place, kind: SlotKind, at: datetime) -> None:
        """Insert a place. A place that the operation has elsewhere is moved, and keeps its time."""

    def leave(self, place: Place) -> None:
        """Delete a place."""

    def give_up(self, run_id: str, *, locations: Iterable[str] | None) -> set[tuple[str, str]]:
        """Delete the run's slots and places at these locations (None: at all). Return the limits and keys."""

    def leave_all(self, run_id: str, *, keeping: Iterable[str]) -> set[tuple[str, str]]:
        """Delete the slots that the run holds only while a worker executes it. Return their limits and keys.

        Slots at the locations `keeping` stay.
        """

    def drop(self, run_id: str, location: str, limit: str, key: str) -> None:
        """Delete one slot of the operation, and let the sweep hand it on."""

    def tell(self, run_id: str, at: datetime) -> str | None:
        """Make a run due that now has a slot. Return its queue if it has to be notified.

        If its queue was paused meanwhile, and no worker executes the run, put it back to the head of the line.
        """


def acquire(
    table: SlotTable, run_id: str, location: str, wants: Sequence[SlotWant], at: datetime
) -> tuple[Admission, set[str]]:
    """Take slots for an operation: all of them, or a place in the line of the first full one (`Store.acquire`).

    Also return the queues to notify. Raises UnknownLimitError.
    """
    queues: set[str] = set()
    for want in wants:
        if table.at_once(want.limit) is None:
            if want.at_once is None:
                raise UnknownLimitError(want.limit)
            table.define(want.limit, want.at_once)
        queues |= hand_on(table, want.limit, want.key, at)
    held = table.held_by(run_id, location)
    for limit, key in sorted(
        held - {(each.limit, each.key) for each in wants}
    ):  # wanted by another version of the code
        table.drop(run_id, location, limit, key)
    mine = table.place_of(run_id, location)
    for want in wants:
        if (want.limit, want.key) in held:
            continue
        most, number = table.at_once(want.limit) or 0, table.held(want.limit, want.key)
        first = table.first(want.limit, want.key)
        is_mine = mine is not None and (mine.limit, mine.key) == (want.limit, want.key)
        if number < most and (first is None or (mine is not None and is_mine and mine.place <= first.place)):
            continue
        if mine is None or not is_mine:
            last = table.last_place(want.limit, want.key)
            mine = Place(run_id, location, want.limit, want.key, last + 1, tuple(wants))
            table.wait(mine, want.kind, at)
        line = Admission(
            is_granted=False,
            limit=want.limit,
            key=want.key,
            place=table.before(mine) + 1,
            held=number,
            at_once=most,
        )
        return line, queues
    if mine is not None:
        table.leave(mine)
    table.take(run_id, location, [each for each in wants if (each.limit, each.key) not in held], at)
    return Admission(is_granted=True), queues


def hand_on(table: SlotTable, limit: str, key: str, at: datetime) -> set[str]:
    """Give free slots of a key to the first in its line; return the queues to notify."""
    table.clear(limit, key)
    most = table.at_once(limit) or 0
    queues: set[str] = set()
    while table.held(limit, key) < most and (first := table.first(limit, key)) is not None:
        held = table.held_by(first.run_id, first.location)
        wants = [each for each in first.wants if (each.limit, each.key) not in held]
        full = _full(table, first, wants)
        table.leave(first)
        if full is not None:
            last = table.last_place(full.limit, full.key)
            moved = Place(first.run_id, first.location, full.limit, full.key, last + 1, first.wants)
            table.wait(moved, full.kind, at)
            continue
        table.take(first.run_id, first.location, wants, at)
        if (queue := table.tell(first.run_id, at)) is not None:
            queues.add(queue)
    return queues


def _full(table: SlotTable, place: Place, wants: Sequence[SlotWant]) -> SlotWant | None:
    """Return the first other slot, of those that the operation takes together with this one, that is not free."""
    for want in wants:
        if (want.limit, want.key) != (place.limit, place.key):
            table.clear(want.limit, want.key)
            if table.held(want.limit, want.key) >= (table.at_once(want.limit) or 0):
                return want
    return None


def put_back(slots: Iterable[SlotRow], first_place: Callable[[str, str], int]) -> list[tuple[Place, SlotRow]]:
    """Return places at the heads of the lines, for runs that give back unused slots, each with its first slot.

    `first_place` returns the lowest place of a key's line, 1 for an empty one. An operation has one place.
    """
    wanted: dict[tuple[str, str], list[SlotRow]] = {}
    for slot in sorted(slots, key=lambda each: (each.run_id, each.location, each.limit, each.key)):
        wanted.setdefault((slot.run_id, slot.location), []).append(slot)
    found = []
    for (run_id, location), rows in wanted.items():
        first, wants = rows[0], tuple(SlotWant(each.limit, each.key, each.kind) for each in rows)
        place = first_place(first.limit, first.key) - 1
        found.append((Place(run_id, location, first.limit, first.key, place, wants), first))
    return found


def change(table: SlotTable, run_id: str, slots: SlotChange, at: datetime) -> tuple[set[str], bool]:
    """Apply a commit's changes to the slots of its run.

    Return the queues to notify, and whether the run is due at once.
    """
    gone = table.give_up(run_id, locations=slots.released) if slots.released else set()
    if slots.is_left:
        gone |= table.leave_all(run_id, keeping=slots.awaited)
    queues: set[str] = set()
    for limit, key in sorted(gone):
        queues |= hand_on(table, limit, key, at)
    return queues, any(table.place_of(run_id, each) is None for each in slots.awaited)
