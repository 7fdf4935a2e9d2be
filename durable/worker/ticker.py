"""The ticker: the thread that ticks schedules at their moments (`durable.operations.schedules`).

It looks each second. It is a thread of its own beside the timer, so that thousands of ticks at one moment put off no
deadline of a run. Any number of them may run at once. At its looks it also hands on slots of limits that runs have
given up outside a pass.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from durable.core import clock
from durable.notifier import notify
from durable.operations.schedules.tick import next_look, tick_due
from durable.store.base import Store
from durable.worker.timer import Periodic

#: Between two looks at most: what was added or has ended meanwhile, and a clock that was set, are noticed then.
LOOK_EVERY: Final = timedelta(seconds=1)
#: How many notes about slots a look works off at most.
_NOTES_AT_ONCE: Final = 200
#: Until the next look if other tickers hold what is due.
_HELD_BY_OTHERS: Final = timedelta(milliseconds=50)


class Ticker(Periodic):
    """Ticks schedules less than 50 ms after their moments on an idle machine, with one look a second between them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "durable-ticker")

    def tick(self, now: datetime) -> datetime:
        """Tick all that is due, and return the time of the next look."""
        for queue in self.store.sweep_slots(now, _NOTES_AT_ONCE)[0]:
            notify.notify(queue)
        while not self._stopping:
            due = next_look(now)
            if due is None or due > now:
                return now + LOOK_EVERY if due is None else min(due, now + LOOK_EVERY)
            if not tick_due(now):
                return now + _HELD_BY_OTHERS
            now = clock.now()
        return now + LOOK_EVERY
