"""The work of one RQ job: pass the due runs of a queue, one after the other, until none is due.

Owns the loop: look, claim, pass, hand back. What a pass does is `durable.passes`' business; which runs are due, and
who holds them, the store's. A job ends after a few seconds, so that a worker which serves other queues too gets to
them; it rings before it goes if more may be due. Work is never lost here: whatever happens, the runs stay in the
database, due or leased for a while, and the sweep finds them.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Protocol, TypeVar

from django.utils import timezone
from rq import get_current_job

from durable import bell, redis_client
from durable.conf import conf
from durable.core.entries import RunRecord
from durable.core.errors import LeaseLost, PassAborted
from durable.drivers import threads
from durable.passes import Eviction, PassOutcome, execute_pass
from durable.process import (
    DATABASE_TROUBLE,
    close_connections,
    close_stale_connections,
    in_clean_context,
    leave_inherited_connections,
    worker_name,
)
from durable.stopping import Stop, stop
from durable.store import Store, store_for
from durable.supervisor import Supervisor

__all__ = ["Shift", "work"]

T = TypeVar("T")

logger = logging.getLogger("durable.worker")

SHIFT = 5.0  # seconds after which a job begins no further pass
BACKOFF = (0.1, 2.0)  # seconds between two tries while the database is away: the first, the longest

_log_this = redis_client.Seldom()


class Execute(Protocol):
    """`durable.passes.execute_pass`."""

    def __call__(self, record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        """Pass one run that is claimed."""


def work(queue: str) -> None:
    """Pass the due runs of `queue`. Raises nothing that a database or a Redis which is away could cause."""
    leave_inherited_connections()
    close_stale_connections(thoroughly=True)
    try:
        with _terminated_softly(stop):
            Shift(queue, store=store_for(conf.DATABASE)).run()
    finally:
        close_stale_connections(thoroughly=True)


class Shift:
    """One job's work on one queue. `execute` passes one run; after `seconds` no further pass begins."""

    def __init__(
        self,
        queue: str,
        *,
        store: Store,
        execute: Execute = execute_pass,
        stop: Stop = stop,
        seconds: float = SHIFT,
    ) -> None:
        self.queue = queue
        self.store = store
        self.execute = execute
        self.stop = stop
        self._ends_at = time.monotonic() + seconds
        self._abandoned: set[str] = set()
        self._supervisor = Supervisor(queue, store=store, stop=stop, rq_worker=_rq_worker())

    def run(self) -> None:
        """Work until nothing is due, the time is up or a stop is requested."""
        bell.clear(self.queue)  # before the first look; see durable.bell
        with self._supervisor, threads.keep():
            try:
                exhausted = self._work()
            finally:
                self._hand_back()
        if not exhausted:
            bell.ring(self.queue)

    def _work(self) -> bool:
        """Pass batch after batch; whether nothing was due any more."""
        while self._goes_on():
            batch = self._claim()
            if batch is None:
                return False
            if not batch:
                return True
            if len(batch) >= conf.CLAIM_BATCH:
                bell.ring(self.queue)  # there may be more, for others
            for record in batch:
                if not self._goes_on():
                    return False
                if record.crashes:
                    self._hand_back(besides=record)
                self._pass(record)
        return False

    def _goes_on(self) -> bool:
        return not self.stop.requested and time.monotonic() < self._ends_at

    def _claim(self) -> list[RunRecord] | None:
        """Take due runs; None if the database stayed away until the end of the shift."""
        return self._persistently("claim runs", self._claim_once)

    def _claim_once(self) -> list[RunRecord]:
        now, claimed_at = timezone.now(), time.monotonic()
        batch = self.store.claim(
            queues=[self.queue],
            now=now,
            lease_until=now + timedelta(seconds=conf.LEASE),
            worker=worker_name(),
            limit=conf.CLAIM_BATCH,
        )
        self._supervisor.hold(batch, claimed_at)
        return batch

    def _pass(self, record: RunRecord) -> None:
        eviction = Eviction()
        if not self._supervisor.begin(record, eviction):
            return
        about = {"run_id": record.id, "workflow": record.workflow}
        try:
            outcome = in_clean_context(self.execute, record, store=self.store, eviction=eviction)
        except LeaseLost:
            logger.info("run %s was taken over by another worker", record.id, extra=about)
        except (PassAborted, *DATABASE_TROUBLE) as error:
            text = "the pass of run %s was cut short: %s: %s"
            logger.warning(text, record.id, type(error).__name__, error, extra=about)
            if any(isinstance(each, DATABASE_TROUBLE) for each in (error, error.__cause__)):
                self._abandon(record)
        except Exception:  # a fault of the engine: it must not take the worker along, nor spin
            text = "the pass of run %s failed; it is tried again when its lease runs out"
            logger.exception(text, record.id, extra=about)
        else:
            self._announce(record, outcome)
        finally:
            self._supervisor.end(record)
            close_stale_connections(thoroughly=False)

    def _announce(self, record: RunRecord, outcome: PassOutcome) -> None:
        for queue in outcome.ring:
            bell.ring(queue)
        if outcome.wake_at is not None and not outcome.due_now:
            bell.alarm(record.queue, outcome.wake_at)

    def _abandon(self, record: RunRecord) -> None:
        """Make a run due again whose pass the database cut short, once it answers.

        Once per shift: a run that the database refuses again waits for its lease to run out, instead of spinning.
        """
        close_connections()
        if record.id in self._abandoned:
            return
        self._abandoned.add(record.id)
        held = [(record.id, record.fence)]
        self._persistently("hand back a run", lambda: self.store.release(held, timezone.now()))

    def _hand_back(self, besides: RunRecord | None = None) -> None:
        """Return the runs that were claimed and not begun.

        With `besides`, a run that may have killed its worker: it is passed alone, so that the others of its batch, if it
        does so again, are not counted as having crashed too.
        """
        held = self._supervisor.waiting(besides)
        if not held:
            return
        try:
            self.store.release(held, timezone.now())
        except DATABASE_TROUBLE as error:
            close_connections()
            logger.warning("%d runs wait until their leases run out: %s", len(held), error)

    def _persistently(self, what: str, command: Callable[[], T]) -> T | None:
        """Try until the database answers; None if it has not by the end of the shift."""
        pause, longest = BACKOFF
        while True:
            try:
                answer = command()
            except DATABASE_TROUBLE as error:
                close_connections()
                if _log_this(what):
                    logger.warning("cannot %s, trying again: %s: %s", what, type(error).__name__, error)
            else:
                if _log_this.again(what):
                    logger.warning("the database answers again")
                return answer
            if not self._goes_on():
                return None
            self._rest(pause)
            pause = min(pause * 2, longest)

    def _rest(self, seconds: float) -> None:
        """Sleep, unless a stop is requested."""
        woken: SimpleQueue[str] = SimpleQueue()
        self.stop.listen(woken)
        try:
            woken.get(timeout=seconds)
        except Empty:
            pass
        finally:
            self.stop.forget(woken)


def _rq_worker() -> str:
    """The name of the RQ worker that runs the current job, "" outside one."""
    job = get_current_job()
    return (job.worker_name if job is not None else None) or ""


@contextmanager
def _terminated_softly(stop: Stop) -> Iterator[None]:
    """In a process that a SIGTERM would kill: the first one requests a stop instead.

    RQ's work horses are such processes; process managers that signal a whole group reach them. A handler of somebody
    else's is left alone.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return

    def on_terminate(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stop.request()

    signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
