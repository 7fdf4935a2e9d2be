"""The presence of a worker process: its stop flag, its row in the table of workers, and the notes about its death.

Owns the flag that says whether this process is to stop, the row (`durable.models.WorkerProcess`) and the row of its
build. The thread of the LeaseManager calls `sign` twice a second; about every 15 seconds, and when the worker begins to
stop, the row is written. At the same time the process reads renamed queues: nothing else tells a worker that its queue
has another name by now. It also compares its clock with the database's.

When a worker dies, its parent logs how, in the audit log, for each run whose lease the worker had, with the steps that
were running. A pass that takes over such a run is logged too. Runs of other workers pay nothing.

Decides nothing: leases say who has a run. Errors here are logged and have no other effect.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from django.db import transaction

from durable.conf import conf
from durable.core import clock
from durable.core.records import ActionRecord, RunRecord
from durable.execution.connections import close_connections, worker_name
from durable.models import Activity, Build, Run, WorkerProcess
from durable.models.renames import learn_queues
from durable.notifier import redis_clients
from durable.store import Store, clocks, store_for
from durable.store.transactions import set_patience

# Seconds until the next try while the database or Redis is unreachable. Due runs may be a second late anyway (MAX_WAIT
# of the Scheduler), and one try a second from each process does not disturb a restarting server.
RETRY: Final = 1.0

logger = logging.getLogger("durable.worker")

# Seconds between two signs of life: an idle worker executes three statements in this time, and counts as dead after
# three missed signs.
SIGN_EVERY: Final = 15.0
# Seconds for which a sign waits for a lock of its table, as a migration takes one. The leases are renewed by the same
# thread.
PATIENCE: Final = 1
#: How long the row of a worker that gives no sign is kept, so that operators see what has died.
KEPT: Final = timedelta(hours=1)
#: Over how many seconds the recent passes of a worker are counted.
RECENT: Final = 300.0
_STATM: Final = Path("/proc/self/statm")

_log_this = redis_clients.LogThrottle()

DIED = "worker_died"
TAKEN_OVER = "taken_over"


class ShutdownFlag:
    """A request to stop that may be made in a signal handler. Once `requested` is True it stays True, until `clear`."""

    def __init__(self) -> None:
        self.requested = False
        self._listeners: tuple[SimpleQueue[str], ...] = ()

    def request(self) -> None:
        """Request a stop: passes end at their next operation."""
        self.requested = True
        for listener in self._listeners:
            listener.put("stop")

    def clear(self) -> None:
        """Withdraw the request. For tests, and for a process forked from a stopping one."""
        self.requested = False

    def listen(self, listener: SimpleQueue[str]) -> None:
        """Put "stop" into `listener` when a stop is requested, or at once if it was requested before."""
        self._listeners = (*self._listeners, listener)
        if self.requested:
            listener.put("stop")

    def forget(self, listener: SimpleQueue[str]) -> None:
        """Stop notifying `listener`."""
        self._listeners = tuple(each for each in self._listeners if each is not listener)

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a stop is requested."""
        listener: SimpleQueue[str] = SimpleQueue()
        self.listen(listener)
        try:
            with contextlib.suppress(Empty):
                listener.get(timeout=seconds)
        finally:
            self.forget(listener)


#: The flag of this process.
stop = ShutdownFlag()


class Presence:
    """Keeps the row of this process while the `with` block lasts: `queues` in order, and the number of `slots`.

    `passes` returns how many passes have ended since the start. With `serves_all` the process also serves queues that
    are not named. Use it in one thread.
    """

    def __init__(
        self,
        *,
        queues: Sequence[str],
        slots: int,
        stop: ShutdownFlag,
        passes: Callable[[], int],
        serves_all: bool = False,
    ) -> None:
        self._queues = list(queues)
        self._slots = slots
        self._stop = stop
        self._passes = passes
        self._counts: deque[tuple[float, int]] = deque(
            [(time.monotonic(), 0)]
        )  # of the signs within RECENT, and one before
        self._serves_all = serves_all
        self._name = ""
        self._written = ""  # the state in the row
        self._next_at = 0.0  # monotonic

    def __enter__(self) -> Self:
        self._name = worker_name()
        self._started_at = clock.now()
        self.sign()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Delete the row: the process ends as it should."""
        if self._written:
            self._try(lambda: WorkerProcess.objects.using(conf.DATABASE).filter(name=self._name).delete())

    def sign(self) -> None:
        """Write the row if it is time, or if the worker has begun to stop since the last time."""
        state = WorkerProcess.State.STOPPING if self._stop.requested else WorkerProcess.State.SERVING
        now = time.monotonic()
        if now < self._next_at and state == self._written:
            return
        self._next_at = now + SIGN_EVERY
        if self._try(lambda: self._write(state)):
            self._written = state

    def _write(self, state: str) -> None:
        """Write the row, and only then read: on SQLite a transaction that has read cannot wait for the write lock."""
        clocks.look(conf.DATABASE)  # reads nothing on SQLite
        rows = WorkerProcess.objects.using(conf.DATABASE)
        seen = {"state": state, "memory": _resident_bytes(), "last_seen_at": clock.now(), **self._throughput()}
        if not (self._written and rows.filter(name=self._name).update(**seen)):
            self._write_whole(seen)
        learn_queues(conf.DATABASE)

    def _write_whole(self, seen: dict[str, Any]) -> None:
        """Write the whole row: at the start, and if it was pruned because the database was unreachable for long."""
        row = WorkerProcess(
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            serves_all=self._serves_all,
            slots=self._slots,
            build=conf.build,
            started_at=self._started_at,
            **seen,
        )
        others = [each.name for each in WorkerProcess._meta.concrete_fields if each.name not in ("id", "name")]
        WorkerProcess.objects.using(conf.DATABASE).bulk_create(
            [row], update_conflicts=True, unique_fields=["name"], update_fields=others
        )
        if conf.build:
            build = Build(name=conf.build, first_seen_at=self._started_at)
            Build.objects.using(conf.DATABASE).bulk_create([build], ignore_conflicts=True)

    def _throughput(self) -> dict[str, int]:
        now, passes = time.monotonic(), self._passes()
        self._counts.append((now, passes))
        while now - self._counts[1][0] >= RECENT:
            self._counts.popleft()
        return {"passes": passes, "recent_passes": passes - self._counts[0][1]}

    def _try(self, write: Callable[[], object]) -> bool:
        """Call `write` without waiting long for a lock. Return False if it raised."""
        try:
            with transaction.atomic(using=conf.DATABASE):
                set_patience(conf.DATABASE, PATIENCE)
                write()
        except Exception as error:  # noqa: BLE001 - the leases must be renewed whatever happens here
            close_connections()
            if _log_this("presence"):
                logger.warning(
                    "this worker cannot write its row in the table of workers: %s: %s", type(error).__name__, error
                )
            return False
        _log_this.clear("presence")
        return True


def forget_dead(now: datetime) -> None:
    """Delete the rows of workers that have given no sign for `KEPT`."""
    WorkerProcess.objects.using(conf.DATABASE).filter(last_seen_at__lt=now - KEPT).delete()


def _resident_bytes() -> int | None:
    """Return how much memory the process occupies, in bytes; None if the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def note_death(pid: int, status: int) -> None:
    """Log that this process's worker has ended with this status (negative: a signal). Returns at once."""
    how = f"killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
    thread = threading.Thread(target=_note_death, args=(pid, how), name="durable-death", daemon=True)
    thread.start()


def _note_death(pid: int, how: str) -> None:
    try:
        now = clock.now()
        held = Run.objects.using(conf.DATABASE).filter(
            lease_expires_at__isnull=False, worker__startswith=f"{socket.gethostname()}:{pid}:"
        )
        rows = []
        for run in held:
            steps = _in_words(Activity.objects.using(conf.DATABASE).filter(run=run, fence=run.fence))
            assert run.lease_expires_at is not None
            until = f"{run.lease_expires_at:%H:%M:%S} UTC"
            rows.append(_row(DIED, run.id, run.worker, run.state, f"{how}, {steps}; its lease ends at {until}", now))
        _log(store_for(conf.DATABASE), rows)
    except Exception as error:  # noqa: BLE001 - the parent goes on with its work
        logger.warning("the death of worker %d cannot be noted: %s: %s", pid, type(error).__name__, error)
    finally:
        close_connections()


def note_takeover(record: RunRecord, store: Store) -> None:
    """Log that this worker continues a run whose worker has died."""
    try:
        now = clock.now()
        left = Activity.objects.using(conf.DATABASE).filter(run_id=record.id, fence__lt=record.fence)
        others = sorted({each.worker for each in left})
        of = f" {', '.join(others)}" if others else ""
        reason = f"after its worker{of} was lost {_in_words(left)}"
        _log(store, [_row(TAKEN_OVER, record.id, worker_name(), record.state, reason, now)])
    except Exception as error:  # noqa: BLE001 - the run goes on without the note
        close_connections()
        logger.warning("that run %s was taken over cannot be noted: %s: %s", record.id, type(error).__name__, error)


def _in_words(activities: Iterable[Activity]) -> str:
    steps = [
        f'"{each.location}" (attempt {each.attempt}, since {each.began_at:%H:%M:%S} UTC)'
        for each in sorted(activities, key=lambda each: each.began_at)
    ]
    if not steps:
        return "in no step that had run for a second"
    return f"in {'step' if len(steps) == 1 else 'steps'} {', '.join(steps)}"


def _row(action: str, run_id: str, worker: str, state: str, reason: str, now: datetime) -> ActionRecord:
    return ActionRecord(
        action=action,
        run_id=run_id,
        source="code",
        outcome="done",
        created_at=now,
        actor_label=worker,
        reason=reason,
        before=str(state),
        after=str(state),
    )


def _log(store: Store, rows: list[ActionRecord]) -> None:
    if rows:
        with store.transaction():
            store.log(rows)


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
