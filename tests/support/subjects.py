"""What operators look at and act on: a limit, a rate, a schedule, and runs in their states."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from durable import get_run, marks
from durable.models import Activity, DatabaseMark, Limit, RateLimit, Schedule
from durable.notifier import redis_clients
from tests.api.workflows import add, charge, fail, loop
from tests.faults.passing import claimed, pass_once


def a_limit() -> None:
    Limit.objects.create(name="carrier", at_once=4)


def a_rate() -> None:
    RateLimit.objects.create(name="calls", rate="1/s", spacing=1_000_000_000)


def a_database() -> None:
    """A database that is not behind its mark."""
    marks.forget()
    for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
        redis.delete(f"{marks.KEY}main")
    written_at = timezone.now() - timedelta(hours=1)
    columns = {"name": "main", "counter": 1, "token": "restored", "written_at": written_at}
    DatabaseMark.objects.update_or_create(pk=1, defaults=columns)


def a_restored_database() -> None:
    """A database that went back by half an hour."""
    a_database()
    row = DatabaseMark.objects.get()
    row.counter, row.token, row.written_at = 9, "lost", row.written_at + timedelta(minutes=30)
    marks.write(marks.Mark.of(row, "a worker"))
    marks.keep("a sweep")


def a_schedule(origin: str = "admin") -> None:
    columns: Any = {"name": "nightly", "workflow": add.name, "rule": "every 1 day", "args": [1], "origin": origin}
    Schedule.objects.create(**columns)


def a_sleeper() -> None:
    pass_once(loop.using(id="a").start(0))


def a_failure() -> None:
    pass_once(fail.using(id="a").start())


def a_hung_step() -> None:
    loop.using(id="a").start(1)
    record = claimed(get_run("a"))
    began = timezone.now() - timedelta(minutes=1)
    found = {"fence": record.fence, "worker": record.worker, "began_at": began}
    for location in ("step", "another"):
        Activity.objects.create(run_id="a", location=location, attempt=1, kind="step", timeout=9, **found)


def a_held_step(run_id: str = "a", **given: Any) -> None:
    """A run at a step of which nobody knows whether it was done."""
    pass_once(charge.using(id=run_id).start(**given))
