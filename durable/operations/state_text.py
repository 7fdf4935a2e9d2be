"""Describe the state of an unfinished run, for the errors of callers who wait for it.

Reads the run's row alone. Operators get more from `durable.inspection.explain`.
"""

from __future__ import annotations

from datetime import datetime

from durable.conf import conf
from durable.core.records import RunRecord, RunState
from durable.core.renames import names_of_queue
from durable.core.summary import Summary, SummaryKind
from durable.notifier import redis_clients


def describe_state(run: RunRecord, now: datetime) -> str:
    """Return the run's state, what it waits for, and what to do about it if something must be done."""
    return f"{_where(run, now)}. `manage.py durable why {run.id}` says more"


def _where(run: RunRecord, now: datetime) -> str:
    if run.state == RunState.PAUSED:
        return "it is paused until resume()"
    if run.lease_expires_at is not None and run.lease_expires_at > now:
        return f"it is {run.state}: worker {run.worker} has it"
    if Summary.load(run.summary).kind is SummaryKind.UNKNOWN_WORKFLOW:
        return (
            f'no worker knows its workflow "{run.workflow}": move the function into the workflows.py of an installed app, and '
            "restart the workers with that code"
        )
    if run.wake_at is not None and run.wake_at <= now:
        late = (now - run.wake_at).total_seconds()
        return (
            f"it is {run.state}, due for {late:.0f} s and not yet taken by a worker: see that one serves its queue "
            f"(manage.py durable_worker {run.queue})"
            if not conf.REDIS or any(name in redis_clients.queue_names() for name in names_of_queue(run.queue))
            else f"it is {run.state}, due for {late:.0f} s and not yet taken by a worker: RQ_QUEUES lacks its queue "
            f'"{run.queue}", so no worker can serve it'
        )
    doing = f": {run.summary}" if run.summary else ""
    wakes = f", until {run.wake_at:%Y-%m-%d %H:%M:%S} UTC" if run.wake_at is not None and not run.summary else ""
    return f"it is {run.state}{doing}{wakes}"
