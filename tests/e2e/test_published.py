"""Events between processes: workers with threads, publishers with open transactions, a broadcast under kill -9."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.utils import timezone

import durable
from durable import Handle
from durable.core.events import queue_of
from durable.core.location import waiting_text
from durable.core.records import RunState
from durable.models import Event, EventWait, QueueMessage, Run
from tests.e2e.workers import Workers
from tests.e2e.workflows import listen, tell
from tests.support.waiting import eventually, wait_until_ended

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

KEYS = 30
NEWS = 3
CROWD = 10_000


@pytest.fixture
def threads(child_environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """Two workers with four threads each; their log."""
    log = tmp_path / "workers.log"
    with Workers(2, child_environment, log, options=["--concurrency=4"]):
        yield log


def listening(key: str, within: str | None = None, expected: int = 1) -> Handle:
    return listen.using(id=f"listen-{key}").start(key, within, expected)


def waits(key: str) -> bool:
    return EventWait.objects.filter(key=key).exists()


def parked(handle: Handle) -> bool:
    return handle.state == "sleeping"


def test_listeners_and_tellers_in_any_order(threads: Path) -> None:
    """Eight threads publish and subscribe at once, so that a wait begins before, between and after its events."""
    chance = random.Random(20260101)
    beginnings = [(begin, key) for key in range(KEYS) for begin in ("listen", "tell")]
    chance.shuffle(beginnings)
    for begin, key in beginnings:
        if begin == "listen":
            listening(f"any-{key}", "1 hour", NEWS)
        else:
            tell.using(id=f"tell-{key}").start(f"any-{key}", NEWS)
    wait_until_ended(threads)
    for key in range(KEYS):
        assert durable.get_run(f"listen-any-{key}").output == list(range(NEWS))
    assert Event.objects.count() == KEYS * NEWS
    assert not EventWait.objects.exists()


@pytest.mark.parametrize("within", [None, "1 hour"])
def test_a_publisher_with_an_open_transaction(threads: Path, within: str | None) -> None:
    """The wait begins before the publisher's statement, between it and the commit, and after the commit."""
    first = listening("early", within)
    eventually(lambda: waits("early") and parked(first))
    with transaction.atomic():
        for key in ("early", "between", "late"):
            durable.publish("e2e.news", 1, key=key)
        begin_elsewhere("between", within)
        eventually(lambda: waits("between"))
        assert not QueueMessage.objects.exists(), "nobody gets what is not committed"
    late = listening("late", within)
    if within is None:
        eventually(lambda: waits("late") and parked(late))
        durable.publish("e2e.news", 2, key="late")
    wait_until_ended(threads)
    assert durable.get_run("listen-early").output == durable.get_run("listen-between").output == [1]
    assert late.output == ([2] if within is None else [1])


def begin_elsewhere(key: str, within: str | None) -> None:
    """Start a run that listens, on a connection of its own."""

    def begin() -> None:
        try:
            listening(key, within)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(begin).result(60)


def a_crowd() -> None:
    """Runs of a queue that nobody serves, which sleep and wait for an event, as their passes have left them."""
    queue = queue_of("receive/0/news", "e2e.news", "all")
    awaited = waiting_text(frozenset({queue}))
    runs = [
        Run(
            id=f"run-{number}",
            workflow="e2e.listen",
            queue="nobody",
            input="null",
            created_at=timezone.now(),
            state=RunState.SLEEPING,
            waiting_for=awaited,
            fence=1,
        )
        for number in range(CROWD)
    ]
    Run.objects.bulk_create(runs, batch_size=1_000)
    rows = [
        EventWait(id=f"w-{each.id}", run_id=each.id, location="w", queue=queue, name="e2e.news", key="all", after=0)
        for each in runs
    ]
    EventWait.objects.bulk_create(rows, batch_size=1_000)


def has_reached(least: int) -> bool:
    return QueueMessage.objects.count() >= least


def test_a_broadcast_whose_publisher_and_sweeps_are_killed(child_environment: dict[str, str], tmp_path: Path) -> None:
    """The worker that publishes, and those that go on with the broadcast, die by SIGKILL in the middle of it."""
    a_crowd()
    with Workers(1, child_environment, tmp_path / "workers.log", options=["--concurrency=4"]) as workers:
        teller = tell.using(id="tell").start("all", 1)
        deaths = []
        for least in (1, 1_000, 3_000, 6_000):
            eventually(partial(has_reached, least))
            workers.kill_all()
            deaths.append(QueueMessage.objects.count())
        eventually(lambda: not EventWait.objects.exists() and not Event.objects.get().is_open)
        teller.result(timeout=120)
    assert deaths[-1] < CROWD, f"all had it before the last kill: {deaths}"
    got = Counter(QueueMessage.objects.values_list("run", flat=True))
    assert len(got) == CROWD
    assert set(got.values()) == {1}
    assert not Run.objects.filter(queue="nobody", wake_at__isnull=True).exists()
    assert Event.objects.get().delivered == CROWD
