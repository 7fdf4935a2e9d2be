"""A run whose row somebody keeps locked: it costs no other run of the worker its lease, and is not executed twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone

from durable import Context, get_run, workflow
from durable.conf import conf
from durable.core.current import current_step
from durable.core.witnesses import is_of_first_claim
from durable.execution.passes import execute_pass
from durable.models import Activity, Run
from durable.store import Store, store_for
from durable.worker import activities, leases
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.support.runs import new_runs, state
from tests.support.waiting import eventually, sleep_through
from tests.support.worker import lease_manager

pytestmark = [
    pytest.mark.slow,
    pytest.mark.redis,
    pytest.mark.postgres,  # SQLite has no row locks
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection"),
]
LIMIT = 120.0  # seconds
LEASE = 8.0  # seconds, which a busy machine must not stand still for
OWN = "high"  # the queue of `own`
go_on = threading.Event()
begun: list[str] = []


def hold(name: str) -> None:
    """Go on until the test lets it, whatever interrupts it."""
    begun.append(name)
    until = time.monotonic() + LIMIT
    sleep_through(lambda: go_on.is_set() or time.monotonic() >= until)


def write_to_itself() -> None:
    """Send to the run of this step, whose row is locked from now on until the step's transaction ends."""
    get_run(current_step().run_id).send("news", "mine")
    hold("own")


@workflow(name="tests.locked.own")
def own(ctx: Context) -> Any:
    ctx.step("own", write_to_itself, atomic=True, max_retries=0)
    return ctx.step("after", lambda: begun.append("after"))


@workflow(name="tests.locked.other")
def other(ctx: Context) -> Any:
    return ctx.step("hold", hold, "other")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    go_on.clear()
    begun.clear()
    monkeypatch.setattr(leases, "TICK", 0.05)
    with override_settings(DURABLE={"LEASE": LEASE}):
        yield
    go_on.set()


@contextmanager
def at_work() -> Iterator[WorkerLoop]:
    try:
        with WorkerLoop(
            ThreadPool(2), store=store_for(conf.DATABASE), execute=execute_pass, stop=ShutdownFlag()
        ) as loop:
            yield loop
            go_on.set()
    finally:
        go_on.set()


def lease_of(run_id: str) -> datetime:
    found = Run.objects.get(pk=run_id).lease_expires_at
    assert found is not None
    return found


def is_renewed(run_id: str) -> None:
    """Wait until the lease of the run is renewed once more."""
    before = lease_of(run_id)
    eventually(lambda: lease_of(run_id) > before)


def claims(queue: str) -> list[str]:
    """What another worker would claim now."""
    now = timezone.now()
    found = store_for(conf.DATABASE).claim(
        queue=queue, now=now, lease_until=now + timedelta(hours=1), worker="another", limit=9
    )
    return [each.id for each in found]


def test_an_atomic_step_that_has_locked_its_own_run_costs_no_run_its_lease() -> None:
    with at_work() as loop:
        neighbour, mine = other.start(), own.using(queue=OWN).start()
        for queue in ("default", OWN):
            loop.work(queue)
        eventually(lambda: {"own", "other"} <= set(begun))
        eventually(lambda: lease_of(mine.id) < timezone.now())
        is_renewed(neighbour.id)
        assert claims(OWN) == []
        go_on.set()
        eventually(lambda: {mine.state, neighbour.state} == {"completed"})
    assert sorted(begun) == ["after", "other", "own"]
    rows = Run.objects.filter(pk__in=[mine.id, neighbour.id])
    assert [(is_of_first_claim(fence), crashes) for fence, crashes in rows.values_list("fence", "crashes")] == [
        (True, 0)
    ] * 2


def test_a_step_that_is_abandoned_and_has_locked_its_own_run_costs_no_other_its_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "LONG", 0.1)
    monkeypatch.setattr(activities, "GIVE_UP", 0.1)
    with at_work() as loop:
        neighbour, mine = other.start(), own.using(queue=OWN).start()
        for queue in ("default", OWN):
            loop.work(queue)
        eventually(lambda: Activity.objects.count() == 2)
        Activity.objects.filter(run=mine.id).update(abandon_asked_at=timezone.now())
        eventually(lambda: "cannot be given up" in caplog.text)
        is_renewed(neighbour.id)
        is_renewed(neighbour.id)
        assert caplog.text.count("cannot be given up") == 1
        assert "the run is given up" not in caplog.text
        go_on.set()
        eventually(lambda: neighbour.state == "completed")
    assert is_of_first_claim(Run.objects.get(pk=neighbour.id).fence)


@contextmanager
def locked(run_id: str) -> Iterator[None]:
    """Another session has the row locked while the block lasts."""
    has_locked, end = threading.Event(), threading.Event()

    def lock() -> None:
        try:
            with transaction.atomic():
                get_run(run_id).send("news", "theirs")
                has_locked.set()
                assert end.wait(LIMIT)
        finally:
            connections.close_all()

    thread = threading.Thread(target=lock)
    thread.start()
    assert has_locked.wait(LIMIT)
    try:
        yield
    finally:
        end.set()
        thread.join(LIMIT)


def claimed(store: Store) -> Any:
    [run_id] = new_runs(store)
    now = timezone.now()
    record = store.claim_run(run_id, now=now, lease_until=now + timedelta(hours=1), worker="us")
    assert record is not None
    return record


@pytest.mark.parametrize("way", ["released", "deferred"])
def test_a_locked_run_goes_back_as_soon_as_it_can(way: str) -> None:
    store = store_for(conf.DATABASE)
    record = claimed(store)
    with lease_manager(store) as manager:
        manager.add([record], time.monotonic())
        with locked(record.id):
            back: tuple[list[Any], list[Any]] = ([record], []) if way == "released" else ([], [record])
            manager.release(*back)  # does not wait
            assert manager.unstarted() == []
            assert state(store, record.id).lease_expires_at is not None
        eventually(lambda: state(store, record.id).lease_expires_at is None)
    found = state(store, record.id)
    assert (found.crashes, found.state) == (0, "pending")
    assert found.wake_at is not None
    assert (found.wake_at > found.created_at) == (way == "deferred")


def test_a_worker_that_ends_waits_a_little_for_a_locked_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TICK", LIMIT)
    monkeypatch.setattr("durable.worker.leases.LAST_TRIES", LIMIT)
    store = store_for(conf.DATABASE)
    record = claimed(store)
    manager = lease_manager(store)
    manager.__enter__()
    manager.add([record], time.monotonic())
    ending = threading.Thread(target=lambda: manager.__exit__(None, None, None))
    with locked(record.id):
        manager.release([record])
        ending.start()
        assert state(store, record.id).lease_expires_at is not None
    ending.join(LIMIT)
    assert state(store, record.id).lease_expires_at is None


def test_a_run_whose_row_is_locked_when_its_turn_comes_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again because it has waited; what the lock hides, its first commit finds."""
    monkeypatch.setattr("durable.worker.executor.RECHECK_AFTER", 0.0)
    store = store_for(conf.DATABASE)
    handle = other.start()
    with WorkerLoop(ThreadPool(2), store=store, execute=execute_pass, stop=ShutdownFlag()) as loop:
        execute = loop._executor.execute
        first = threading.Event()

        def late(record: Any) -> bool:
            assert first.wait(LIMIT)
            return execute(record)

        loop._executor.execute = late  # type: ignore[method-assign]
        loop.work("default")
        with locked(handle.id):
            first.set()
            eventually(lambda: begun == ["other"])
        go_on.set()
        eventually(lambda: handle.state == "completed")
