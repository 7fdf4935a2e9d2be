"""Slots and rates of limits in memory: the rows for `durable.store.rules.lines` and `durable.store.rules.rates`.

The store holds its lock around each call. The end of a run does not delete its slots: a slot of an ended run does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.limits.rates import Rate, nanoseconds
from durable.core.limits.slot_records import SlotKind, SlotRow, SlotWant
from durable.core.records import ENDED, RunRecord, RunState
from durable.store.memory.tables import MemoryHolds, MemoryTable
from durable.store.rules import lines, row_rules
from durable.store.rules.lines import Place
from durable.store.rules.rates import RateKey, Ticket, after_move

#: What identifies a slot: run, location, limit and key.
_Held = tuple[str, str, str, str]


@dataclass(slots=True)
class MemorySlots(MemoryTable):
    """The slots and the lines of all limits."""

    limits: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, int] = field(default_factory=dict)  # set by operators
    held: dict[_Held, SlotRow] = field(default_factory=dict)
    places: dict[tuple[str, str], tuple[Place, SlotRow]] = field(default_factory=dict)  # by run and location

    def set_limit(self, name: str, override: int | None) -> int | None:
        """Override a limit's number of slots, or return to that of its code; return the earlier number."""
        if name not in self.limits:
            return None
        before = self.overrides.pop(name, self.limits[name])
        if override is not None:
            self.overrides[name] = override
        return before

    def of_runs(self, run_ids: Sequence[str]) -> list[SlotRow]:
        """Return the slots of these runs, held and waited for."""
        rows = [*self.held.values(), *(row for _, row in self.places.values())]
        found = [each for each in rows if each.run_id in run_ids]
        return sorted(found, key=lambda each: (each.run_id, each.location, each.limit, each.key))


@dataclass(frozen=True, slots=True)
class MemorySlotTable:
    """A `durable.store.rules.lines.SlotTable` in memory."""

    slots: MemorySlots
    runs: dict[str, RunRecord]
    holds: MemoryHolds

    def _is_open(self, run_id: str) -> bool:
        return run_id in self.runs and self.runs[run_id].state not in ENDED

    def _line(self, limit: str, key: str) -> list[Place]:
        line = [place for place, _ in self.slots.places.values() if (place.limit, place.key) == (limit, key)]
        return sorted(line, key=lambda each: each.place)

    def clear(self, limit: str, key: str) -> None:
        slots = self.slots
        for held in [at for at in slots.held if at[2:] == (limit, key) and not self._is_open(at[0])]:
            del slots.held[held]
        for place in self._line(limit, key):
            if not self._is_open(place.run_id):
                self.leave(place)

    def define(self, limit: str, at_once: int) -> None:
        self.slots.limits.setdefault(limit, at_once)

    def at_once(self, limit: str) -> int | None:
        return self.slots.overrides.get(limit, self.slots.limits.get(limit))

    def held(self, limit: str, key: str) -> int:
        return sum(at[2:] == (limit, key) and self._is_open(at[0]) for at in self.slots.held)

    def first(self, limit: str, key: str) -> Place | None:
        for place in self._line(limit, key):
            if not self._is_open(place.run_id):
                continue
            run = self.runs[place.run_id]
            if run.state != RunState.PAUSED and not self.holds.is_paused(run.queue):
                return place
        return None

    def put_back(self, at: datetime) -> None:
        """Give back the slots handed to runs of queues that are now paused, if no worker executes these runs."""
        unused = [
            row
            for row in self.slots.held.values()
            if row.kind is not SlotKind.OPEN and self._is_in_vain(self.runs.get(row.run_id), at)
        ]
        for each in unused:
            self.drop(each.run_id, each.location, each.limit, each.key)
        for place, first in lines.put_back(unused, self._first_place):
            self.wait(place, first.kind, first.since)

    def _is_in_vain(self, run: RunRecord | None, at: datetime) -> bool:
        if run is None or not self.holds.is_paused(run.queue):
            return False
        return run.lease_expires_at is None or run.lease_expires_at <= at

    def _first_place(self, limit: str, key: str) -> int:
        return min((each.place for each in self._line(limit, key)), default=1)

    def before(self, place: Place) -> int:
        ahead = sum(each.place < place.place for each in self._line(place.limit, place.key))
        return min(ahead, row_rules.MOST_IN_LINE)

    def last_place(self, limit: str, key: str) -> int:
        return max((each.place for each in self._line(limit, key)), default=0)

    def place_of(self, run_id: str, location: str) -> Place | None:
        found = self.slots.places.get((run_id, location))
        return None if found is None else found[0]

    def held_by(self, run_id: str, location: str) -> set[tuple[str, str]]:
        return {at[2:] for at in self.slots.held if at[:2] == (run_id, location)}

    def take(self, run_id: str, location: str, wants: Sequence[SlotWant], at: datetime) -> None:
        for want in wants:
            self.slots.held[run_id, location, want.limit, want.key] = SlotRow(
                run_id=run_id,
                location=location,
                limit=want.limit,
                key=want.key,
                kind=want.kind,
                is_held=True,
                since=at,
            )

    def wait(self, place: Place, kind: SlotKind, at: datetime) -> None:
        _, before = self.slots.places.get((place.run_id, place.location), (None, None))
        row = SlotRow(
            run_id=place.run_id,
            location=place.location,
            limit=place.limit,
            key=place.key,
            kind=kind,
            is_held=False,
            since=at if before is None else before.since,
        )
        self.slots.places[place.run_id, place.location] = (place, row)

    def leave(self, place: Place) -> None:
        self.slots.places.pop((place.run_id, place.location), None)

    def leave_all(self, run_id: str, *, keeping: Iterable[str]) -> set[tuple[str, str]]:
        kept = set(keeping)
        gone = [
            at
            for at, row in self.slots.held.items()
            if at[0] == run_id and at[1] not in kept and row.kind is not SlotKind.OPEN
        ]
        for at in gone:
            del self.slots.held[at]
        return {at[2:] for at in gone}

    def give_up(self, run_id: str, *, locations: Iterable[str] | None) -> set[tuple[str, str]]:
        where = None if locations is None else set(locations)
        gone = [at for at in self.slots.held if at[0] == run_id and (where is None or at[1] in where)]
        for at in gone:
            del self.slots.held[at]
        left = [
            place
            for place, _ in list(self.slots.places.values())
            if place.run_id == run_id and (where is None or place.location in where)
        ]
        for place in left:
            self.leave(place)
        return {at[2:] for at in gone} | {(place.limit, place.key) for place in left}

    def drop(self, run_id: str, location: str, limit: str, key: str) -> None:
        del self.slots.held[run_id, location, limit, key]

    def tell(self, run_id: str, at: datetime) -> str | None:
        run = self.runs[run_id]
        if run.state == RunState.PAUSED:
            return None
        self.runs[run_id] = replace(run, wake_at=at if run.wake_at is None else min(run.wake_at, at))
        is_free = run.lease_expires_at is None or run.lease_expires_at <= at
        return run.queue if is_free else None


def sweep(table: MemorySlotTable, at: datetime) -> tuple[set[str], int]:
    """Hand on the slots that ended runs have given up; return the queues to notify, and how many slots were handed
    on.
    """
    table.put_back(at)
    waiting = {(place.limit, place.key) for place, _ in table.slots.places.values()}
    before = len(table.slots.places)
    queues = {queue for limit, key in sorted(waiting) for queue in lines.hand_on(table, limit, key, at)}
    return queues, before - len(table.slots.places)


@dataclass(slots=True)
class MemoryRates(MemoryTable):
    """A `durable.store.rules.rates.RateTable` in memory."""

    runs: dict[str, RunRecord]
    _rates: dict[str, Rate] = field(default_factory=dict)
    _overrides: dict[str, Rate] = field(default_factory=dict)
    _keys: dict[tuple[str, str], RateKey] = field(default_factory=dict)
    _tickets: dict[tuple[str, str], Ticket] = field(default_factory=dict)  # by run and location

    def rate(self, limit: str) -> Rate | None:
        return self._overrides.get(limit, self._rates.get(limit))

    def define(self, limit: str, rate: Rate) -> Rate:
        return self._rates.setdefault(limit, rate)

    def declare(self, limit: str, rate: Rate) -> bool:
        before, self._rates[limit] = self._rates.get(limit), rate
        return before != rate

    def override(self, limit: str, rate: Rate | None) -> None:
        self._overrides.pop(limit, None)
        if rate is not None:
            self._overrides[limit] = rate

    def key(self, limit: str, key: str) -> RateKey:
        return _copied(self._keys.setdefault((limit, key), RateKey(limit=limit, key=key)))

    def write(self, key: RateKey) -> None:
        self._keys[key.limit, key.key] = key

    def keys(self, limit: str, among: Sequence[str] | None = None) -> list[tuple[RateKey, datetime | None]]:
        found = sorted(at for at in self._keys if at[0] == limit and (among is None or at[1] in among))
        return [(_copied(self._keys[at]), self.last(*at)) for at in found]

    def closings(self, limit: str, key: str) -> list[datetime]:
        found = [self._keys[limit, each] for each in {"", key} if (limit, each) in self._keys]
        return [each.closing.until for each in found if each.closing is not None]

    def last(self, limit: str, key: str) -> datetime | None:
        return max((each.at for each in self._of_key(limit, key)), default=None)

    def ticket(self, run_id: str, location: str) -> Ticket | None:
        return self._tickets.get((run_id, location))

    def put(self, ticket: Ticket) -> None:
        self._tickets[ticket.run_id, ticket.location] = ticket

    def drop(self, run_id: str, location: str) -> None:
        self._tickets.pop((run_id, location), None)

    def waiting(self, limit: str, key: str, after: datetime, most: int) -> list[Ticket]:
        return [each for each in self._of_key(limit, key) if each.at > after][:most]

    def move(self, ticket: Ticket, moment: datetime, at: datetime) -> str | None:
        self.put(replace(ticket, at=moment))
        run = self.runs[ticket.run_id]
        self.runs[run.id] = after = after_move(run, ticket.at, moment)
        return run.queue if after.wake_at != run.wake_at and moment <= at else None

    def forget_keys(self, before: datetime, most: int) -> int:
        """Delete unused keys (`Store.forget_limit_keys`); return how many."""
        found = [at for at, row in self._keys.items() if self.last(*at) is None and _is_over(row, before)][:most]
        for at in found:
            del self._keys[at]
        return len(found)

    def forget(self, run_id: str) -> None:
        """Delete the reservations of a run that has ended."""
        for at in [each for each in self._tickets if each[0] == run_id]:
            del self._tickets[at]

    def _of_key(self, limit: str, key: str) -> list[Ticket]:
        return [each for each in self._tickets.values() if (each.limit, each.key) == (limit, key)]


def _is_over(key: RateKey, before: datetime) -> bool:
    is_open = key.closing is None or key.closing.until < before
    is_calm = key.last_refused is None or key.last_refused.at < before
    return is_open and is_calm and key.cell.begun < nanoseconds(before)


def _copied(key: RateKey) -> RateKey:
    return replace(key, cell=replace(key.cell))
