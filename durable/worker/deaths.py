"""What is noted about a worker that has died with runs in hand: rows of the audit log, which the run's page shows.

The parent that sees a worker die notes how, for each run whose lease the worker has, with the steps that it had in
hand. The pass that takes such a run over notes that. Runs of workers that did not die pay nothing. Decides nothing:
the lease does. Whatever goes wrong here is logged and has no other effect.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterable
from datetime import datetime

from durable.conf import conf
from durable.core import clock
from durable.core.records import ActionRecord, RunRecord
from durable.execution.connections import close_connections, worker_name
from durable.models import Activity, Run
from durable.store import Store, store_for

logger = logging.getLogger("durable.worker")

DIED = "worker_died"
TAKEN_OVER = "taken_over"


def note_death(pid: int, status: int) -> None:
    """Note that this process's worker has ended with this status (negative: a signal). Returns at once."""
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
    """Note that this worker goes on with a run whose worker has died."""
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
