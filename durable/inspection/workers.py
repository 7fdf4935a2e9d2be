"""Workers, and the builds of the code that they have run.

A worker of `durable_worker` has a row of its own (`durable.models.WorkerProcess`), with or without Redis. RQ's other
workers are known from RQ's registry; host and process id join the two. A process that is in neither and holds runs is
"unknown". If Redis does not answer, the result says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _
from redis import Redis
from redis.exceptions import RedisError

from durable.conf import conf
from durable.core import registry
from durable.core.names.renames import names_of_queue
from durable.inspection.counting import queues_of_due_runs
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import runs_within
from durable.models import Build, OperatorAction, Run, WorkerProcess
from durable.models.renames import learn_queues
from durable.models.run import RunQuerySet
from durable.models.workers import DEAD_AFTER
from durable.notifier import redis_clients
from durable.notifier import registry as worker_registry

logger = logging.getLogger("durable.inspection")

MOST: Final = 200  # workers and held runs that are shown
_MOST_QUEUES = 50
_NOT_SERVING: Final = frozenset({"stopping", "dead"})
_NAMELESS: Final = _NOT_SERVING | {"unknown"}  # states of workers whose queues do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """A run that a worker is executing. Its lease ends at `lease_expires_at` unless it is renewed."""

    id: str
    workflow: str
    worker: str
    queue: str
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState(worker_registry.RegisteredWorker):
    """One worker process.

    `state`: "busy" or "idle"; "stopping" (it hands over its runs, and ends when their steps allow it); "dead" (it has
    given no sign for `DEAD_AFTER`); another word of RQ's; "unknown" for a process that is only known because it holds
    runs. `slots`, `memory` (bytes) and `build` are None, None and "" if the worker has not reported them. `passes` is
    the number of passes executed since its start, `recent_passes` in about the last five minutes; None if not reported.
    With `serves_all` it also serves queues that `queues` does not name.
    """

    runs: Sequence[HeldRun] = ()
    slots: int | None = None
    build: str = ""
    memory: int | None = None
    passes: int | None = None
    recent_passes: int | None = None
    serves_all: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it has long given no sign of life: it was killed, or its host or the network to the database is
        down.
        """
        return self.state == "dead"

    def serves(self, queue: str) -> bool:
        """Return whether it takes runs of the queue now."""
        served = self.serves_all or any(name in self.queues for name in names_of_queue(queue))
        return served and self.state not in _NOT_SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue of RQ_QUEUES or of runs: the number of its workers, and whether runs need it.

    `is_known`: it is one of the project's queues. `has_runs`: it has runs that will wake or are held. `has_workflows`:
    it is a workflow's default queue.
    """

    name: str
    workers: int
    is_known: bool
    has_runs: bool
    has_workflows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """All workers and queues at one moment. `problem` says why Redis could not be queried, or is "".

    Without `uses_redis` workers listen to PostgreSQL, or poll the database.
    """

    workers: Sequence[WorkerState]
    queues: Sequence[QueueState]
    problem: str = ""
    is_capped: bool = False
    uses_redis: bool = True


def worker_overview(within: RunQuerySet | None = None) -> Workers:
    """Return the workers, at most `MOST`, dead ones last. A few statements, and two commands for each Redis.

    A failure of Redis is reported in `problem` and not raised.
    """
    held, processes = _held(within), _processes()
    problem, known = "", []
    try:
        for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
            known += _of(redis)
    except (RedisError, OSError) as error:
        logger.warning("Redis could not be asked for workers: %s", error)
        # Without its address.
        problem = _("Redis does not answer (%(error)s); this server's log says more") % {"error": type(error).__name__}
    workers = _joined(processes[:MOST], known[:MOST], held)
    return Workers(
        workers=workers,
        queues=_queues(workers, within),
        problem=problem,
        is_capped=len(known) > MOST or len(held) >= MOST or len(processes) > MOST,
        uses_redis=conf.REDIS,
    )


def find_worker(name: str) -> WorkerState | None:
    """Return the worker of this name with the runs that it holds, at most `MOST`; None if it is not known."""
    row = WorkerProcess.objects.using(read_alias()).filter(name=name).first()
    if row is not None:
        return _with_runs(_of_row(row), _held(worker=name))
    return next((each for each in worker_overview().workers if each.name == name), None)


def deaths_of(worker: str) -> list[OperatorAction]:
    """Return what parents have noted about the death of this worker within the last hour: a row for each run."""
    since = timezone.now() - timedelta(hours=1)
    found = OperatorAction.objects.using(read_alias()).filter(
        created_at__gte=since, action="worker_died", actor_label=worker
    )
    return list(found.order_by("-created_at", "-id")[:MOST])


def death_note(run: Run, now: datetime) -> str:
    """Say what its parent noted about the death of the worker that has the run, or "".

    No query for a worker that still renews the run's lease, which it does after a third of it.
    """
    if run.lease_expires_at is None or run.lease_expires_at - now > timedelta(seconds=conf.LEASE / 2):
        return ""
    died = OperatorAction.objects.using(read_alias()).filter(
        run_id=run.id, action="worker_died", actor_label=run.worker
    )
    reason = died.order_by("-created_at", "-id").values_list("reason", flat=True).first()
    return _("Its worker died: %(reason)s") % {"reason": reason} if reason else ""


def queues_with_runs(within: RunQuerySet | None = None) -> list[str]:
    """Return the queues of runs that will wake or are held, at most 50; one statement, along the index.

    With `within` one statement for each queue.
    """
    if within is None:
        return queues_of_due_runs("", _MOST_QUEUES)
    runs = within.filter(wake_at__isnull=False).exclude(state="paused").order_by("queue")
    found: list[str] = []
    while len(found) < _MOST_QUEUES:
        queue = (runs.filter(queue__gt=found[-1]) if found else runs).values_list("queue", flat=True).first()
        if queue is None:
            break
        found.append(queue)
    return found


def serving(workers: Iterable[WorkerState], queue: str) -> list[WorkerState]:
    """Return the workers that take runs of the queue now.

    Without Redis, the only sign of a worker of the previous release is a run that it holds.
    """
    return [each for each in workers if each.serves(queue) and (each.state != "unknown" or not conf.REDIS)]


def _of(redis: Redis) -> list[WorkerState]:
    """Return the workers that RQ has registered in this Redis, up to one more than are shown."""
    return [WorkerState(**asdict(each)) for each in worker_registry.registered_workers(redis, MOST + 1)]


def _processes() -> list[WorkerState]:
    """Return the workers that have a row, up to one more than are shown; those with the newest signs of life first."""
    rows = WorkerProcess.objects.using(read_alias()).order_by("-last_seen_at")
    return [_of_row(row) for row in rows[: MOST + 1]]


def _of_row(row: WorkerProcess) -> WorkerState:
    is_dead = row.last_seen_at < timezone.now() - DEAD_AFTER
    return WorkerState(
        name=row.name,
        host=row.host,
        pid=row.pid,
        queues=tuple(row.queues),
        state="dead" if is_dead else "stopping" if row.state == WorkerProcess.State.STOPPING else "idle",
        last_heartbeat=row.last_seen_at,
        started_at=row.started_at,
        slots=row.slots,
        build=row.build,
        memory=row.memory,
        passes=row.passes,
        recent_passes=row.recent_passes,
        serves_all=row.serves_all,
    )


def _held(within: RunQuerySet | None = None, *, worker: str | None = None) -> list[HeldRun]:
    found = runs_within(within).filter(lease_expires_at__isnull=False).order_by("-lease_expires_at")
    if worker is not None:
        found = found.filter(worker=worker)
    columns = ("id", "workflow", "worker", "queue", "lease_expires_at")
    return [HeldRun(**row) for row in found.values(*columns)[:MOST]]


def _with_runs(worker: WorkerState, runs: Sequence[HeldRun]) -> WorkerState:
    # A worker that executes several runs at once waits for jobs in the meantime.
    return replace(worker, runs=tuple(runs), state="busy" if runs and worker.state == "idle" else worker.state)


def _joined(
    processes: Sequence[WorkerState], known: Iterable[WorkerState], held: Sequence[HeldRun]
) -> list[WorkerState]:
    by_name: dict[str, list[HeldRun]] = {}
    for run in held:
        by_name.setdefault(run.worker, []).append(run)
    states = [_with_runs(worker, by_name.pop(worker.name, [])) for worker in processes]
    newest = {(each.host, each.pid): each for each in reversed(processes)}
    by_process: dict[tuple[str, int], list[HeldRun]] = {}
    for name, runs in by_name.items():
        by_process.setdefault(_process(name), []).extend(runs)
    others = [each for each in known if not _is_same(each, newest.get((each.host, each.pid)))]
    # RQ's forking worker runs its jobs in children, which have other process ids.
    states += [_with_runs(worker, by_process.pop((worker.host, worker.pid), [])) for worker in others]
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
    return sorted(states + strangers, key=lambda each: each.is_dead)


def _is_same(registered: WorkerState, process: WorkerState | None) -> bool:
    """Return whether RQ's record is about the process with this row, and not about a later one with its id."""
    if process is None or process.last_heartbeat is None:
        return False
    seen = registered.last_heartbeat
    return seen is None or seen <= process.last_heartbeat + DEAD_AFTER


def _process(worker: str) -> tuple[str, int]:
    """Parse host and process id from a worker's name, `host:pid:random`."""
    host, _, pid = worker.rpartition(":")[0].rpartition(":")
    return (host, int(pid)) if pid.isdigit() else (worker, 0)


def _queues(workers: Sequence[WorkerState], within: RunQuerySet | None) -> list[QueueState]:
    known, with_runs = redis_clients.queue_names(), queues_with_runs(within)
    may_serve = any(each.state not in _NAMELESS for each in workers)
    if may_serve and any(each not in known or not serving(workers, each) for each in with_runs):
        learn_queues(conf.DATABASE)  # a migration may have given them the names of others
    with_workflows = {conf.QUEUE, *(each.queue for each in registry.all())}
    return [
        QueueState(
            name=name,
            workers=len(serving(workers, name)),
            is_known=not conf.REDIS or any(each in known for each in names_of_queue(name)),
            has_runs=name in with_runs,
            has_workflows=name in with_workflows,
        )
        for name in dict.fromkeys([*known, *with_runs])
    ]


MOST_BUILDS: Final = 50  # builds that are returned


def builds(since: datetime, until: datetime | None = None, *, most: int = MOST_BUILDS) -> list[Build]:
    """Return the builds that first appeared between `since` and `until`: the newest `most` of them, oldest first.

    One statement along an index.
    """
    found = Build.objects.using(read_alias()).filter(first_seen_at__gte=since)
    if until is not None:
        found = found.filter(first_seen_at__lt=until)
    return list(found.order_by("-first_seen_at")[:most])[::-1]
