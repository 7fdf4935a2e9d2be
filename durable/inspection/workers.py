"""The workers: which processes serve which queues, when each last sent a heartbeat, and which runs it holds.

Redis knows which queues a worker serves, the database which runs it holds; host and process id join the two. If Redis
does not answer, the result says so. If durable uses no Redis, only the workers that hold runs are known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from durable.conf import conf
from durable.core import registry
from durable.models import Run
from durable.models.run import RunQuerySet
from durable.notifier import redis_clients, worker_registry

__all__ = ["HeldRun", "QueueState", "WorkerState", "Workers", "queues_with_runs", "worker_overview"]

logger = logging.getLogger("durable.inspection")

MOST: Final = 200  # workers and held runs that are shown
_MOST_QUEUES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """A run that a worker is executing. Its lease ends at `lease_expires_at` unless it is renewed."""

    id: str
    workflow: str
    worker: str
    queue: str
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One worker process. `state` is RQ's ("busy", "idle", ...), "unknown" for a worker that Redis does not know.

    A worker that executes runs is busy, even if it has no job.
    """

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    state: str
    last_heartbeat: datetime | None
    started_at: datetime | None
    runs: Sequence[HeldRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue of RQ_QUEUES, or of runs: the number of its workers, and whether runs need it."""

    name: str
    workers: int
    is_known: bool
    has_runs: bool
    has_workflows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """All workers and queues at one moment. `problem` says why Redis could not be queried, or is "".

    Without `uses_redis` workers poll the database: workers that hold runs are listed, idle ones are unknown.
    """

    workers: Sequence[WorkerState]
    queues: Sequence[QueueState]
    problem: str = ""
    is_capped: bool = False
    uses_redis: bool = True


def worker_overview(within: RunQuerySet | None = None) -> Workers:
    """Return the current workers, at most `MOST`. A few statements, and a Redis command for each worker.

    A failure of Redis is reported in `problem` and not raised.
    """
    held = _held(within)
    problem, known = "", []
    try:
        for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
            known += _of(redis)
    except (RedisError, OSError) as error:
        logger.warning("Redis could not be asked for workers: %s", error)
        problem = f"Redis does not answer ({type(error).__name__}); this server's log says more"  # without its address
    workers = _joined(known[:MOST], held)
    return Workers(
        workers=workers,
        queues=_queues(workers, within),
        problem=problem,
        is_capped=len(known) > MOST or len(held) >= MOST,
        uses_redis=conf.REDIS,
    )


def queues_with_runs(within: RunQuerySet | None = None) -> list[str]:
    """Return the queues of runs that will wake or are held, at most 50; one statement for each, along the index."""
    found_in = Run.objects.using(conf.DATABASE) if within is None else within
    runs = found_in.filter(wake_at__isnull=False).exclude(state="paused").order_by("queue")
    found: list[str] = []
    while len(found) < _MOST_QUEUES:
        queue = (runs.filter(queue__gt=found[-1]) if found else runs).values_list("queue", flat=True).first()
        if queue is None:
            break
        found.append(queue)
    return found


def _of(redis: Redis) -> list[WorkerState]:
    """Return the workers that RQ has registered in this Redis, one more than are shown at most."""
    return [
        WorkerState(
            name=each.name,
            host=each.host,
            pid=each.pid,
            queues=each.queues,
            state=each.state,
            last_heartbeat=each.last_heartbeat,
            started_at=each.started_at,
            runs=(),
        )
        for each in worker_registry.registered_workers(redis, MOST + 1)
    ]


def _held(within: RunQuerySet | None) -> list[HeldRun]:
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    found = runs.filter(lease_expires_at__isnull=False).order_by("-lease_expires_at")
    columns = ("id", "workflow", "worker", "queue", "lease_expires_at")
    return [HeldRun(**row) for row in found.values(*columns)[:MOST]]


def _joined(known: Iterable[WorkerState], held: Sequence[HeldRun]) -> list[WorkerState]:
    by_process: dict[tuple[str, int], list[HeldRun]] = {}
    for run in held:
        by_process.setdefault(_process(run.worker), []).append(run)
    states = []
    for worker in known:
        # RQ's forking worker runs its jobs in children, which have other process ids.
        runs = by_process.pop((worker.host, worker.pid), [])
        # A worker that executes several runs at once waits for jobs in the meantime.
        state = "busy" if runs and worker.state == "idle" else worker.state
        states.append(replace(worker, runs=tuple(runs), state=state))
    strangers = [
        WorkerState(
            name=runs[0].worker,
            host=host,
            pid=pid,
            queues=tuple(sorted({run.queue for run in runs})),
            state="unknown",
            last_heartbeat=None,
            started_at=None,
            runs=runs,
        )
        for (host, pid), runs in by_process.items()
    ]
    return states + strangers


def _process(worker: str) -> tuple[str, int]:
    """Return host and process id from a worker's name, `host:pid:random`."""
    host, _, pid = worker.rpartition(":")[0].rpartition(":")
    return (host, int(pid)) if pid.isdigit() else (worker, 0)


def _queues(workers: Sequence[WorkerState], within: RunQuerySet | None) -> list[QueueState]:
    known, with_runs = redis_clients.queue_names(), queues_with_runs(within)
    with_workflows = {conf.QUEUE, *(each.queue for each in registry.all())}
    serving = [queue for worker in workers if worker.state != "unknown" for queue in worker.queues]
    return [
        QueueState(
            name=name,
            workers=serving.count(name),
            is_known=name in known or not conf.REDIS,
            has_runs=name in with_runs,
            has_workflows=name in with_workflows,
        )
        for name in dict.fromkeys([*known, *with_runs])
    ]
