"""The claimed runs that a worker gives back: they stay here until the database has taken them.

Owns these runs and the statements that release them. A run whose row another transaction has locked is tried again at
each tick of the LeaseManager, and so are all after an outage. If nothing helps, they are due when their leases expire,
and a crash is counted. Safe to use from several threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import Error

from durable.core import clock
from durable.core.records import RunRecord
from durable.execution.connections import close_connections
from durable.notifier import notify
from durable.store.base import Store
from durable.worker.claim_bounds import bounds
from durable.worker.scheduler import DEFERRAL

logger = logging.getLogger("durable.worker")

# Seconds for which a worker that ends goes on trying, and between two tries: what a transaction locks a row for,
# mostly.
LAST_TRIES: Final = 5.0
PAUSE: Final = 0.05


class Returns:
    """Claimed runs that have not begun, on their way back: to be due at once, or only after `DEFERRAL`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._released: list[RunRecord] = []
        self._deferred: list[RunRecord] = []

    def add(self, released: Sequence[RunRecord], deferred: Sequence[RunRecord] = ()) -> None:
        """Add runs to be released and deferred. This worker must have dropped them."""
        with self._lock:
            self._released += released
            self._deferred += deferred

    def send(self) -> bool:
        """Release all that can be released now. Return False if some are left. Raises what the database raises."""
        due_at = clock.now() + timedelta(seconds=DEFERRAL)
        with self._lock:
            released, self._released = self._released, []
            deferred, self._deferred = self._deferred, []
        try:
            released = self._sent(released, None)
            deferred = self._sent(deferred, due_at)
        finally:
            self.add(released, deferred)
        return not released and not deferred

    def try_to_send(self) -> None:
        """Do the same, but log a failure of the database."""
        try:
            self.send()
        except Error as error:
            self._tell(error)

    def finish(self) -> None:
        """Release what is left, before the process ends. What is locked for longer waits until its lease runs out."""
        until = time.monotonic() + LAST_TRIES
        try:
            while not self.send() and time.monotonic() < until:
                time.sleep(PAUSE)
        except Error as error:
            self._tell(error)

    def _tell(self, error: Error) -> None:
        close_connections()
        left = len(self._released) + len(self._deferred)
        logger.warning("%d runs cannot be released now: %s: %s", left, type(error).__name__, error)

    def _sent(self, records: list[RunRecord], due_at: datetime | None) -> list[RunRecord]:
        """Release the runs, and return those that are locked."""
        if not records:
            return []
        busy = self._store.release([(each.id, each.fence) for each in records], clock.now(), due_at=due_at)
        gone = [each for each in records if each.id not in busy]
        if due_at is None:
            announce(gone)
        else:
            for queue in {each.queue for each in gone}:
                notify.notify_at(queue, due_at)
        return [each for each in records if each.id in busy]


def announce(records: Sequence[RunRecord]) -> None:
    """Let this process and others find the released runs."""
    for each in records:
        bounds.include(each)
    for queue in {each.queue for each in records}:
        notify.notify(queue)
