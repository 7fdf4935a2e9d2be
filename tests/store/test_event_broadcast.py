"""A broadcast to 10,000 waiting runs, whose deliverers die again and again: each run gets it, once."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest
from django.db import Error, connections

from durable.core.events import delivery
from durable.core.location import waiting_text
from durable.core.records import EventRecord, RunState
from durable.models import EventWait, QueueMessage, Run
from durable.store.postgres import PostgresStore
from durable.store.transactions import RowsLocked
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import NOW

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

QUEUE = "durable.link:event:0123456789abcdef0123456789abcdef:news"
RUNS = 10_000
MESSAGE_OF = partial(delivery, copied=lambda text, _old, _new: text)


def a_crowd() -> None:
    """Runs that sleep and wait for the event, as their passes have left them."""
    awaiting = waiting_text(frozenset({QUEUE}))
    runs = [
        Run(
            id=f"run-{number}",
            workflow="w",
            queue="q",
            input="null",
            created_at=NOW,
            state=RunState.SLEEPING,
            waiting_for=awaiting,
            fence=1,
        )
        for number in range(RUNS)
    ]
    Run.objects.using(POSTGRES).bulk_create(runs, batch_size=1_000)
    waits = [
        EventWait(id=f"w-{each.id}", run_id=each.id, location="w", queue=QUEUE, name="news", key="all", after=0)
        for each in runs
    ]
    EventWait.objects.using(POSTGRES).bulk_create(waits, batch_size=1_000)


class Deliverer(threading.Thread):
    """A process that delivers, and begins anew when its session has died in the middle of a batch."""

    def __init__(self, store: PostgresStore, event: EventRecord) -> None:
        super().__init__()
        self.store, self.event = store, event
        self.pid = 0
        self.deaths = 0

    def run(self) -> None:
        """Deliver until nobody waits."""
        while True:
            try:
                with connections[POSTGRES].cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid()")
                    self.pid = cursor.fetchone()[0]
                while self.store.deliver(self.event, 100, MESSAGE_OF)[0]:
                    pass
                if self.store.close_event(self.event):
                    break
            except RowsLocked:
                continue
            except Error:
                self.deaths += 1
                connections[POSTGRES].close()
        connections[POSTGRES].close()


def test_each_run_gets_it_once_whoever_dies(postgres_store: PostgresStore) -> None:
    empty(POSTGRES)
    a_crowd()
    event, _ = postgres_store.put_event(EventRecord(id="a", name="news", key="all", body="1", published_at=NOW))
    deliverers = [Deliverer(postgres_store, event) for _ in range(2)]
    for each in deliverers:
        each.start()
    kills = 0
    while any(each.is_alive() for each in deliverers):
        for each in deliverers:
            each.join(0.2)
            if each.is_alive() and each.pid and kills < 20:
                with connections[POSTGRES].cursor() as cursor:
                    cursor.execute("SELECT pg_terminate_backend(%s)", [each.pid])
                kills += 1
    got = Counter(QueueMessage.objects.using(POSTGRES).values_list("run", flat=True))
    assert len(got) == RUNS
    assert set(got.values()) == {1}
    assert not EventWait.objects.using(POSTGRES).exists()
    assert Run.objects.using(POSTGRES).filter(wake_at__isnull=True).count() == 0
    assert postgres_store.open_events(1) == []
    assert sum(each.deaths for each in deliverers) > 0, "nobody has died: the test shows nothing"
    empty(POSTGRES)
