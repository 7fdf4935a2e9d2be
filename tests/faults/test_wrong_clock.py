"""A worker whose clock is wrong: it goes by the database's, takes no running run, and puts nobody off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from django.utils import timezone

from durable import Context, Limit, workflow
from durable.conf import conf
from durable.core import clock
from durable.execution.passes import execute_pass
from durable.models import Run
from durable.store import clocks, store_for
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from durable.worker.timer import Sweep
from tests.faults.passing import claimed
from tests.support.waiting import eventually
from tests.support.worker import lease_manager

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@workflow(name="faults.clock.quick")
def quick(ctx: Context) -> str:
    return str(ctx.step("one", str, 1))


@workflow(name="faults.clock.rated", limit=Limit("clock", rate="1/s"))
def rated(ctx: Context) -> str:
    return "done"


@pytest.fixture
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[timedelta]:
    """This process's clock is ahead of the database's by so many seconds, which may be below 0."""
    seconds: float = request.param
    monkeypatch.setattr(clocks, "_ASKED", f"SELECT clock_timestamp() - interval '{seconds} seconds'")
    monkeypatch.setattr(clocks, "_next_at", 0.0)
    yield timedelta(seconds=seconds)
    clock.follow(None)


def work() -> None:
    """As a process of `durable_worker` does."""
    with WorkerLoop(
        InlinePool(), store=store_for("default"), execute=execute_pass, stop=ShutdownFlag(), learns_names=True
    ) as loop:
        loop.work("default", 5.0)


def is_about(moment: Any, wanted: Any) -> bool:
    return bool(abs(moment - wanted) < timedelta(seconds=60))


@pytest.mark.parametrize("ahead", [120.0], indirect=True)
def test_a_worker_that_is_ahead_takes_no_run_from_another_one(
    ahead: timedelta, redis_connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handle, due = quick.start(), quick.start()
    there = timezone.now() - ahead
    lease = there + timedelta(seconds=90)  # live there, and over by this process's own clock
    Run.objects.filter(pk=handle.id).update(
        state="running", worker="another", lease_expires_at=lease, wake_at=there, fence=3
    )
    Run.objects.filter(pk=due.id).update(wake_at=there - timedelta(seconds=1))
    work()
    row = Run.objects.get(pk=handle.id)
    assert (row.fence, row.worker, row.crashes) == (3, "another", 0)
    assert due.state == "completed", "it takes what is due"
    assert "the clock of this process is 120.0 s ahead of the database's" in caplog.text
    assert caplog.text.count("ahead of the database's") == 1


@pytest.mark.parametrize("ahead", [-120.0], indirect=True)
def test_the_leases_of_a_worker_that_is_behind_are_live(ahead: timedelta, redis_connection: Any) -> None:
    handle = quick.start()
    leases: list[Any] = []

    def execute(record: Any, **given: Any) -> Any:
        leases.append(record.lease_expires_at)
        return execute_pass(record, **given)

    with WorkerLoop(
        InlinePool(), store=store_for("default"), execute=execute, stop=ShutdownFlag(), learns_names=True
    ) as loop:
        loop.work("default", 5.0)
    assert handle.state == "completed"
    [until] = leases
    assert is_about(until, timezone.now() - ahead + timedelta(seconds=30))


@pytest.mark.parametrize("ahead", [180.0], indirect=True)
def test_a_worker_that_is_ahead_puts_nobody_off(ahead: timedelta, redis_connection: Any) -> None:
    handle = rated.start()
    Run.objects.filter(pk=handle.id).update(wake_at=timezone.now() - ahead)
    work()
    assert handle.state == "completed"
    [row] = store_for("default").rate_keys("clock", [""], timezone.now())
    assert row.reserved_until is not None
    assert is_about(row.reserved_until, timezone.now() - ahead)


@pytest.mark.parametrize("ahead", [120.0], indirect=True)
def test_timers_look_too_and_notice_when_the_clock_is_set_right(
    ahead: timedelta, monkeypatch: pytest.MonkeyPatch, redis_connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = Sweep(store_for("default"))
    sweep._tick_safely()
    assert is_about(clock.now(), timezone.now() - ahead)
    monkeypatch.setattr(clocks, "_ASKED", "SELECT clock_timestamp()")
    sweep._tick_safely()
    assert is_about(clock.now(), timezone.now() - ahead), "it looks every so often"
    monkeypatch.setattr(clocks, "_next_at", 0.0)
    sweep._tick_safely()
    assert is_about(clock.now(), timezone.now())
    assert "agrees with the database's again" in caplog.text


def test_a_clock_that_is_right_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_next_at", 0.0)
    clocks.look("default", now=True)
    assert clock._followed is None


class Own(datetime):
    """The clock of this process, which somebody sets."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Own:
        return super().now(tz) + cls.ahead


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Own]]:
    """A clock of this process that agrees with the database's until a test sets it."""
    for module in (clock, clocks):
        monkeypatch.setattr(module, "datetime", Own)
    monkeypatch.setattr(Own, "ahead", timedelta())
    clocks.look("default", now=True)
    yield Own
    clock.follow(None)


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])
def test_leases_are_renewed_by_the_databases_clock_as_soon_as_the_own_is_set(own: type[Own], hours: int) -> None:
    """A lease in the past has other workers execute a running run; one in the future keeps it after a crash."""
    handle = quick.start()
    store = store_for("default")
    with lease_manager(store) as leases:
        record = claimed(handle)
        leases.add([record], time.monotonic() - 15.0)  # a third of the lease is over
        own.ahead = timedelta(hours=hours)

        def is_renewed() -> bool:
            return bool(Run.objects.get(pk=handle.id).lease_expires_at != record.lease_expires_at)

        eventually(is_renewed)
    until = Run.objects.get(pk=handle.id).lease_expires_at
    assert is_about(until, timezone.now() + timedelta(seconds=conf.LEASE))


def test_what_compares_now_and_then_does_so_at_once_where_the_own_is_set(own: type[Own]) -> None:
    own.ahead = timedelta(hours=1)
    clocks.look("default")
    assert is_about(clock.now(), timezone.now())


def test_a_worker_whose_clock_is_set_takes_no_run_from_another_one(own: type[Own], redis_connection: Any) -> None:
    handle, due = quick.start(), quick.start()
    lease = timezone.now() + timedelta(seconds=90)
    Run.objects.filter(pk=handle.id).update(state="running", worker="another", lease_expires_at=lease, fence=3)
    with WorkerLoop(
        InlinePool(), store=store_for("default"), execute=execute_pass, stop=ShutdownFlag(), learns_names=True
    ) as loop:
        loop.work("default", 5.0)
        assert due.state == "completed"
        own.ahead = timedelta(hours=1)
        loop.work("default", 5.0)
    row = Run.objects.get(pk=handle.id)
    assert (row.fence, row.worker, row.crashes) == (3, "another", 0)
