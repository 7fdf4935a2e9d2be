"""What operators look at and act on: a limit, a rate, a schedule, and runs in their states."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from durable import get_run
from durable.models import Activity, Limit, RateLimit, Schedule
from tests.api.workflows import add, fail, loop
from tests.faults.passing import claimed, pass_once


def a_limit() -> None:
    Limit.objects.create(name="carrier", at_once=4)


def a_rate() -> None:
    RateLimit.objects.create(name="calls", rate="1/s", spacing=1_000_000_000)


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
