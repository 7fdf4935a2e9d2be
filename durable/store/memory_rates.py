"""Rates of limits in `durable.store.memory`. The store holds its lock around each call, and passes its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core import gcra
from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.gcra import Cell, Want
from durable.core.rate_counts import counted
from durable.core.rates import (
    LimitClosing,
    Rate,
    RateKeyRow,
    RateWant,
    RefusedStart,
    Reservation,
    from_nanoseconds,
    nanoseconds,
)
from durable.core.records import ENDED, RunRecord, RunState

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Ticket:
    want: RateWant
    at: datetime
    place: int


@dataclass(slots=True)
class MemoryRates:
    """The rates of all limits, what is taken of each key, and which attempts wait."""

    rates: dict[str, Rate] = field(default_factory=dict)
    overrides: dict[str, Rate] = field(default_factory=dict)
    cells: dict[_Key, Cell] = field(default_factory=dict)
    closings: dict[_Key, LimitClosing] = field(default_factory=dict)
    tickets: dict[tuple[str, str], _Ticket] = field(default_factory=dict)  # by run and location
    given: int = 0
    recent: dict[_Key, str] = field(default_factory=dict)
    refused: dict[_Key, tuple[int, RefusedStart]] = field(default_factory=dict)

    def copied(self) -> MemoryRates:
        """Return a copy for a snapshot."""
        cells = {key: replace(cell) for key, cell in self.cells.items()}
        return replace(
            self,
            rates=dict(self.rates),
            overrides=dict(self.overrides),
            cells=cells,
            closings=dict(self.closings),
            tickets=dict(self.tickets),
            recent=dict(self.recent),
            refused=dict(self.refused),
        )

    def rate(self, name: str) -> Rate | None:
        """Return the rate that holds, None for a limit without one."""
        return self.overrides.get(name, self.rates.get(name))

    def reserve(
        self, run_id: str, location: str, want: RateWant, at: datetime, *, may_begin: bool, patience: float
    ) -> Reservation:
        """Give an attempt its moment, or let it begin."""
        if (rate := self.rate(want.limit)) is None:
            if want.rate is None:
                raise UnknownLimitError(want.limit, is_rate=True)
            rate = self.rates[want.limit] = want.rate
        if want.units * rate.spacing > gcra.LONGEST:
            raise RateUnitsError(want.label, want.units, rate.text)
        ticket = self.tickets.get((run_id, location))
        if ticket is not None and ticket.want != replace(want, rate=None):
            ticket = None
        now, closed = nanoseconds(at), self._closed(want.limit, want.key)
        wanted = Want(
            units=want.units,
            at=now,
            patience=round(patience * 1_000_000_000),
            closed_until=closed,
            reservation=None if ticket is None else nanoseconds(ticket.at),
            may_begin=may_begin,
            last=self._last(want.limit, want.key),
        )
        begins, moment = gcra.reserve(self._cell(want.limit, want.key), rate.spacing, rate.burst, wanted)
        answer = Reservation(
            at=from_nanoseconds(moment), begins=begins, before=gcra.units_before(moment, now, closed, rate.spacing)
        )
        if begins and may_begin:
            at_key = (want.limit, want.key)
            self.recent[at_key] = counted(self.recent.get(at_key, ""), moment, want.units)
            self.tickets.pop((run_id, location), None)
        else:
            self.given += 1
            place = self.given if ticket is None else ticket.place
            self.tickets[run_id, location] = _Ticket(replace(want, rate=None), answer.at, place)
        return answer

    def forget(self, run_id: str) -> None:
        """Delete the reservations of a run that has ended."""
        for at in [each for each in self.tickets if each[0] == run_id]:
            del self.tickets[at]

    def declare(self, name: str, rate: Rate) -> bool:
        """Write the rate that the code says."""
        before = self.rates.get(name)
        self.rates[name] = rate
        return before != rate

    def set_rate(
        self, name: str, override: Rate | None, runs: dict[str, RunRecord], at: datetime
    ) -> tuple[Rate, frozenset[str]] | None:
        """Let a limit have another rate, or that of its code; move the attempts that wait."""
        before = self.rate(name)
        if before is None:
            return None
        self.overrides.pop(name, None)
        if override is not None:
            self.overrides[name] = override
        return before, self._retimed(name, None, runs, at, before.spacing)

    def close(self, limit: str, key: str, closing: LimitClosing, *, is_longer: bool) -> LimitClosing | None:
        """Close a key of a limit; return the closing before."""
        before = self.closings.get((limit, key))
        if not (is_longer and before is not None and before.until >= closing.until):
            self.closings[limit, key] = closing
        return before

    def open_again(
        self, limit: str, key: str, runs: dict[str, RunRecord], at: datetime
    ) -> tuple[LimitClosing, frozenset[str]] | None:
        """End the closing of a key, and move the attempts that wait."""
        before = self.closings.get((limit, key))
        if before is None or before.until <= at:
            return None
        del self.closings[limit, key]
        return before, self._retimed(limit, key or None, runs, at)

    def note_refused(self, limit: str, key: str, start: RefusedStart) -> None:
        """Count a start that a key has refused."""
        before, _ = self.refused.get((limit, key), (0, start))
        self.refused[limit, key] = (before + 1, start)

    def keys_of(self, limit: str, keys: Sequence[str], at: datetime) -> list[RateKeyRow]:
        """Return what is taken of these keys of a limit."""
        found = []
        for key in sorted(
            {key for of, key in [*self.cells, *self.closings, *self.refused] if of == limit and key in keys}
        ):
            cell, closing = self.cells.get((limit, key), Cell()), self.closings.get((limit, key))
            rate = self.rate(limit)
            room = rate.burst * rate.spacing if rate is not None else 0
            newest = gcra.given_until(cell, room, self._last(limit, key))
            is_open = closing is None or closing.until <= at
            reserved = from_nanoseconds(newest) if newest else None
            closed = None if is_open else closing
            refused, last = self.refused.get((limit, key), (0, None))
            row = RateKeyRow(
                limit=limit,
                key=key,
                reserved_until=reserved,
                closing=closed,
                recent=self.recent.get((limit, key), ""),
                refused=refused,
                last_refused=last,
            )
            found.append(row)
        return found

    def _last(self, limit: str, key: str) -> int | None:
        waiting = [each.at for each in self.tickets.values() if (each.want.limit, each.want.key) == (limit, key)]
        return nanoseconds(max(waiting)) if waiting else None

    def _cell(self, limit: str, key: str) -> Cell:
        return self.cells.setdefault((limit, key), Cell())

    def _closed(self, limit: str, key: str) -> int:
        found = (self.closings.get((limit, each)) for each in {"", key})
        return max((nanoseconds(each.until) for each in found if each is not None), default=0)

    def _retimed(
        self, limit: str, key: str | None, runs: dict[str, RunRecord], at: datetime, spacing_before: int = 0
    ) -> frozenset[str]:
        rate, queues = self.rate(limit), set()
        assert rate is not None, "a limit that is set or opened has a rate"
        for of, each in [at_ for at_ in self.cells if at_[0] == limit and key in (None, at_[1])]:
            cell = self._cell(of, each)
            if spacing_before:
                gcra.rescale(cell, nanoseconds(at), spacing_before, rate.spacing)
            gcra.begin_anew(cell)
            waiting = [
                (ticket.place, place, ticket)
                for place, ticket in self.tickets.items()
                if (ticket.want.limit, ticket.want.key) == (of, each) and ticket.at > at
            ]
            moment: int | None = None
            for _, (run_id, location), ticket in sorted(waiting, key=lambda one: one[0]):
                if (run := runs.get(run_id)) is None or run.state in ENDED:
                    continue
                wanted = Want(
                    units=ticket.want.units,
                    at=nanoseconds(at),
                    closed_until=self._closed(of, each),
                    may_begin=False,
                    last=moment,
                )
                _, moment = gcra.reserve(cell, rate.spacing, rate.burst, wanted)
                new = from_nanoseconds(moment)
                self.tickets[run_id, location] = replace(ticket, at=new)
                if run.lease_expires_at is not None and new < ticket.at:  # its pass may be about to park
                    runs[run_id] = run = replace(run, change_seq=run.change_seq + 1)
                if run.state != RunState.PAUSED and run.wake_at is not None and run.wake_at > new:
                    runs[run_id] = replace(run, wake_at=new)
                    queues |= {run.queue} if new <= at else set()
        return frozenset(queues)
