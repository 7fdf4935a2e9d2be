"""Rates of limits in `durable.store.memory`: the rows for `durable.store.rules.rates`. The store is locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.rates import Rate
from durable.core.records import RunRecord
from durable.store.rules.rates import RateKey, Ticket, after_move


@dataclass(slots=True)
class MemoryRates:
    """A `durable.store.rules.rates.RateTable` in memory."""

    runs: dict[str, RunRecord]
    _rates: dict[str, Rate] = field(default_factory=dict)
    _overrides: dict[str, Rate] = field(default_factory=dict)
    _keys: dict[tuple[str, str], RateKey] = field(default_factory=dict)
    _tickets: dict[tuple[str, str], Ticket] = field(default_factory=dict)  # by run and location

    def copied(self) -> MemoryRates:
        """Return a copy for a snapshot."""
        return replace(
            self,
            runs=self.runs,
            _rates=dict(self._rates),
            _overrides=dict(self._overrides),
            _keys={at: _copied(each) for at, each in self._keys.items()},
            _tickets=dict(self._tickets),
        )

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

    def forget(self, run_id: str) -> None:
        """Delete the reservations of a run that has ended."""
        for at in [each for each in self._tickets if each[0] == run_id]:
            del self._tickets[at]

    def _of_key(self, limit: str, key: str) -> list[Ticket]:
        return [each for each in self._tickets.values() if (each.limit, each.key) == (limit, key)]


def _copied(key: RateKey) -> RateKey:
    return replace(key, cell=replace(key.cell))
