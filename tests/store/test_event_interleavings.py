"""A publisher and a wait on two connections at READ COMMITTED, in every order, on real locks.

No order may lose an event that commits after the wait has begun, give it twice, or deadlock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any

import pytest
from django.db import Error, connections, transaction

from durable.core.events import delivery
from durable.core.location import waiting_text
from durable.core.records import AwaitedEvent, EventRecord, EventsDropped, RunRecord, RunState
from durable.models import EventWait, QueueMessage, Run
from durable.store.postgres import PostgresStore
from durable.store.transactions import RowsLocked
from tests.store.actors import Race
from tests.store.conftest import POSTGRES
from tests.store.making import NOW, by_class, cancel, commit, park, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

QUEUE = "durable.link:event:0123456789abcdef0123456789abcdef:news"
MESSAGE_OF = partial(delivery, copied=lambda text, _old, _new: text)


def an_event(event_id: str = "a", key: str = "k") -> EventRecord:
    return EventRecord(id=event_id, name="news", key=key, body="1", published_at=NOW)


def publish(store: PostgresStore, event: EventRecord) -> Callable[[], Any]:
    return lambda: store.put_event(event)


def wait_for(store: PostgresStore, held: RunRecord, wait_id: str = "w") -> Callable[[], Any]:
    """The commit of a run that begins to wait, as `durable.core.events` makes it."""

    def begin() -> None:
        wait = AwaitedEvent(
            id=wait_id,
            run_id=held.id,
            location="w",
            queue=QUEUE,
            name="news",
            key="k",
            after=store.newest_event("news", "k"),
        )
        commit(store, held, changes=by_class([wait]))

    return begin


def deliver_all(store: PostgresStore) -> None:
    """What a publisher does after its commit, a pass after its own, and then the sweep."""
    for event in store.open_events(10):
        while store.deliver(event, 10, MESSAGE_OF)[0]:
            pass
        store.close_event(event)
    for wait_id in ("w", "x"):
        wait = store.event_wait(wait_id)
        if wait is not None and (due := store.due_event(wait)) is not None:
            store.deliver(due, 1, MESSAGE_OF, wait_id)


def test_a_publisher_and_a_wait(race: Race) -> None:
    store = race.store
    held = started(store)
    race.run(publish(store, an_event()), wait_for(store, held))
    deliver_all(store)
    deliver_all(store)
    is_due = race.both_commit and race.order.index("B") < race.order.index("a")
    assert len(store.messages("run")) == is_due


@pytest.mark.parametrize("key", ["k", "other"])
def test_two_publishers_with_one_id(race: Race, key: str) -> None:
    store = race.store
    held = started(store)
    wait_for(store, held)()
    answers = race.run(publish(store, an_event()), publish(store, an_event(key=key)))
    deliver_all(store)
    assert len(store.open_events(10)) == 0
    new = [event.key for event, is_new in compress(answers, race.commits) if is_new]
    assert len(new) <= 1
    if race.both_commit:
        assert len(new) == 1, "one has published, and the other has learned of it"
    assert len(store.messages("run")) == new.count("k")


def test_numbers_are_in_the_order_of_commits(race: Race) -> None:
    """Otherwise a wait that has seen the later number would miss the earlier one."""
    store = race.store
    answers = race.run(publish(store, an_event("a")), publish(store, an_event("b")))
    numbers = {end: event.number for end, (event, _) in compress(zip("ab", answers, strict=True), race.commits)}
    if race.order in ("AaBb", "BbAa"):
        assert sorted(numbers, key=numbers.__getitem__) == sorted(numbers, key=race.order.index)
    else:  # the second has waited for the first
        assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_delivery_and_the_end_of_the_wait(race: Race, how: str) -> None:
    """The event is in the inbox before the commit that ends the wait, or the wait is gone."""
    store = race.store
    held = started(store)
    wait_for(store, held)()
    if how == "cancel":
        park(store, held, waiting_for=waiting_text(frozenset({QUEUE})))
    event, _ = store.put_event(an_event())

    def end() -> object:
        if how == "cancel":
            return cancel(store, "run")
        return commit(store, held, changes=by_class([EventsDropped(("w",))]))

    def deliver() -> int:
        try:
            with transaction.atomic(using=POSTGRES):
                return store.deliver(event, 10, MESSAGE_OF)[0]
        except RowsLocked:  # the sweep tries again
            return 0

    delivered, _ = race.run(deliver, end)
    got = delivered if race.a_commits else 0
    assert len(store.messages("run")) == got
    is_left = not got and not race.b_commits
    deliver_all(store)
    assert len(store.messages("run")) == got + is_left
    if how == "cancel" and race.b_commits:
        assert the(store).state == "cancelled"


# -- a broadcast to 10,000 waiting runs, whose deliverers die again and again


RUNS = 10_000


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
