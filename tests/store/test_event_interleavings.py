"""A publisher and a wait on two connections at READ COMMITTED, in every order, on real locks.

No order may lose an event that commits after the wait has begun, give it twice, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.db import transaction

from durable.core.events import delivery
from durable.core.location import waiting_text
from durable.core.records import AwaitedEvent, EventRecord, EventsDropped, RunChange, RunRecord
from durable.store.postgres import PostgresStore
from durable.store.transactions import RowsLocked
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import NOW, by_class, commit, park, started, the
from tests.support.transitions import CALLS

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


@pytest.mark.parametrize("order", ORDERS)
def test_a_publisher_and_a_wait(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES)
        held = started(store)
        both(pools, order, ends, publish(store, an_event()), wait_for(store, held))
        deliver_all(store)
        deliver_all(store)
        is_due = ends == ("COMMIT", "COMMIT") and order.index("B") < order.index("a")
        assert len(store.messages("run")) == is_due, (order, ends)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("key", ["k", "other"])
def test_two_publishers_with_one_id(postgres_store: PostgresStore, pools: Pools, order: str, key: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES)
        held = started(store)
        wait_for(store, held)()
        actors = both(pools, order, ends, publish(store, an_event()), publish(store, an_event(key=key)))
        deliver_all(store)
        committed = [each for each in actors.values() if each.end == "COMMIT"]
        assert len(store.open_events(10)) == 0
        new = [each for each in committed if each.outcome[1]]
        assert len(new) <= 1
        if len(committed) == 2:
            assert len(new) == 1, "one has published, and the other has learned of it"
        published = [each.outcome[0].key for each in new]
        assert len(store.messages("run")) == published.count("k")


@pytest.mark.parametrize("order", ORDERS)
def test_numbers_are_in_the_order_of_commits(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    """Otherwise a wait that has seen the later number would miss the earlier one."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES)
        actors = both(pools, order, ends, publish(store, an_event("a")), publish(store, an_event("b")))
        found = sorted(
            (each.outcome[0].number, order.index(each.name.lower())) for each in actors.values() if each.end == "COMMIT"
        )
        if order in ("AaBb", "BbAa"):
            assert [place for _, place in found] == sorted(place for _, place in found)
        else:  # the second has waited for the first
            assert len({number for number, _ in found}) == len(found)


def cancel(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.change("run", lambda run, _entries: RunChange(run=CALLS["cancelled_at_once"](run)))


def time_out(store: PostgresStore, held: RunRecord) -> Callable[[], Any]:
    return lambda: commit(store, held, changes=by_class([EventsDropped(("w",))]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_delivery_and_the_end_of_the_wait(postgres_store: PostgresStore, pools: Pools, order: str, how: str) -> None:
    """The event is in the inbox before the commit that ends the wait, or the wait is gone."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES)
        held = started(store)
        wait_for(store, held)()
        end = time_out(store, held)
        if how == "cancel":
            park(store, held, waiting_for=waiting_text(frozenset({QUEUE})))
            end = cancel(store)
        event, _ = store.put_event(an_event())

        def deliver(event: EventRecord = event) -> int:
            try:
                with transaction.atomic(using=POSTGRES):
                    return store.deliver(event, 10, MESSAGE_OF)[0]
            except RowsLocked:  # the sweep tries again
                return 0

        actors = both(pools, order, ends, deliver, end)
        got = actors["A"].outcome if ends[0] == "COMMIT" else 0
        assert len(store.messages("run")) == got
        is_left = not got and ends[1] == "ROLLBACK"
        deliver_all(store)
        assert len(store.messages("run")) == got + is_left
        assert the(store).state == ("cancelled" if how == "cancel" and ends[1] == "COMMIT" else the(store).state)
