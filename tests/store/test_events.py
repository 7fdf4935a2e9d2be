"""Events: stored once, given to the waits of commits, once each; closed, and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from durable.core.control_flow import LeaseLost
from durable.core.events import delivery
from durable.core.location import waiting_text
from durable.core.records import AwaitedEvent, EventRecord, EventsDropped, RunChange, RunRecord, RunState
from durable.store import Store
from tests.store.making import HOSTILE, NOW, at, by_class, claimed, commit, finished, park, started, the
from tests.support.transitions import CALLS

QUEUE = "durable.link:event:0123456789abcdef0123456789abcdef:order.paid"
MESSAGE_OF = partial(delivery, copied=lambda text, _old, _new: text)


def an_event(event_id: str = "a", key: str = "7", **values: Any) -> EventRecord:
    whole = {"name": "order.paid", "body": '{"n":1}', "published_at": NOW}
    return EventRecord(id=event_id, key=key, **{**whole, **values})


def a_wait(wait_id: str = "w", run_id: str = "run", **values: Any) -> AwaitedEvent:
    whole: dict[str, Any] = {"location": "paid", "queue": QUEUE, "name": "order.paid", "key": "7", "after": 0}
    return AwaitedEvent(id=wait_id, run_id=run_id, **{**whole, **values})


def put(store: Store, *events: EventRecord) -> list[EventRecord]:
    return [store.put_event(each)[0] for each in events]


def put_three(store: Store) -> list[EventRecord]:
    """Three events with ten seconds between them."""
    return put(store, an_event("a"), an_event("b", published_at=at(10)), an_event("c", published_at=at(20)))


def wait(store: Store, *waits: AwaitedEvent, run_id: str = "run") -> RunRecord:
    """A run that sleeps and waits for these events."""
    held = started(store, run_id)
    awaiting = waiting_text(frozenset(each.queue for each in waits))
    park(store, held, batch={"changes": by_class(waits)}, waiting_for=awaiting)
    return the(store, run_id)


def deliver(store: Store, event: EventRecord, most: int = 100, wait_id: str | None = None) -> int:
    return store.deliver(event, most, MESSAGE_OF, wait_id)[0]


def due(store: Store, wait_id: str, **options: Any) -> EventRecord | None:
    wait = store.event_wait(wait_id)
    return None if wait is None else store.due_event(wait, **options)


def bodies(store: Store, run_id: str = "run") -> list[tuple[str, str]]:
    return [(each.queue, each.body) for each in store.messages(run_id)]


def test_an_event_is_stored_once_for_its_id(store: Store) -> None:
    first, is_new = store.put_event(an_event())
    assert is_new
    assert first == an_event(number=first.number)
    again, is_new = store.put_event(an_event(body='"other"'))
    assert (again, is_new) == (first, False)
    assert store.put_event(an_event(key="8")) == (first, False)
    other, is_new = store.put_event(an_event(name="order.sent"))
    assert is_new
    assert other.number > first.number
    assert store.newest_event("order.paid", "7") == first.number
    assert store.newest_event("order.paid", "8") == 0


def test_a_wait_gets_an_event_and_its_run_is_due(store: Store) -> None:
    run = wait(store, a_wait())
    assert run.wake_at is None
    [event] = put(store, an_event())
    number, queues = store.deliver(event, 100, MESSAGE_OF)
    assert (number, queues) == (1, frozenset({run.queue}))
    [message] = store.messages("run")
    assert (message.id, message.queue, message.body) == (f"{event.number}:w", QUEUE, '{"n":1}')
    assert message.sent_at == event.published_at
    assert the(store).wake_at is not None
    assert deliver(store, event) == 0
    assert store.close_event(event)
    assert store.open_events(10) == []


def test_the_same_wait_twice_is_one(store: Store) -> None:
    """A commit whose answer got lost is made again."""
    held = started(store)
    for _ in range(2):
        commit(store, held, changes=by_class([a_wait()]))
    [event] = put(store, an_event())
    assert deliver(store, event) == 1


def test_a_late_worker_waits_for_nothing(store: Store) -> None:
    held = started(store)
    late = replace(held, fence=held.fence - 1)
    with pytest.raises(LeaseLost):
        commit(store, late, changes=by_class([a_wait()]))
    [event] = put(store, an_event())
    assert deliver(store, event) == 0


@pytest.mark.parametrize(
    "values", [{"key": "77"}, {"key": "8"}, {"name": "order.paid.late"}, {"after": 1 << 40}], ids=str
)
def test_a_wait_for_something_else_gets_nothing(store: Store, values: dict[str, Any]) -> None:
    wait(store, a_wait(**values))
    [event] = put(store, an_event())
    assert deliver(store, event) == 0
    assert due(store, "w") is None
    assert store.close_event(event)


def test_what_is_due_for_a_wait(store: Store) -> None:
    first, second, third = put_three(store)
    waits = [
        a_wait("new", after=third.number),
        a_wait("after", after=first.number),
        a_wait("within", after=third.number, since=at(5)),
        a_wait("seen", after=third.number, since=at(5), seen=second.number),
        a_wait("recent", after=third.number, since=at(20)),
        a_wait("later", after=third.number, since=at(21)),
    ]
    wait(store, *waits)
    found = {each.id: due(store, each.id) for each in waits}
    assert {name: each and each.id for name, each in found.items()} == {
        "new": None,
        "after": "b",
        "within": "b",
        "seen": "c",
        "recent": "c",
        "later": None,
    }
    assert due(store, "after", before=at(10)) is None
    assert due(store, "nobody") is None
    assert deliver(store, third, wait_id="recent") == 1
    assert due(store, "recent") is None
    assert deliver(store, third, wait_id="recent") == 0


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_any_text_is_kept(store: Store, text: str) -> None:
    key = text[:200] or "x"
    wait(store, a_wait(key=key))
    [event] = put(store, an_event(key=key, body=text))
    assert event.body == text
    assert store.newest_event("order.paid", key) == event.number
    assert deliver(store, event) == 1
    assert bodies(store) == [(QUEUE, text)]


def test_no_event_passes_one_that_is_still_open(store: Store) -> None:
    """As when the run was locked while the first was delivered: a loop would never see it, having seen a later one."""
    first, second, third = put_three(store)
    waits = {
        "all": a_wait("all", "all"),
        "new": a_wait("new", "new", after=second.number),
        "within": a_wait("within", "within", after=second.number, since=at(5)),
        "seen": a_wait("seen", "seen", after=second.number, since=at(5), seen=second.number),
    }
    for run_id, each in waits.items():
        wait(store, each, run_id=run_id)
    assert deliver(store, third) == 4
    got = {run_id: store.messages(run_id)[0].id.partition(":")[0] for run_id in waits}
    assert got == {
        "all": f"{first.number}",
        "new": f"{third.number}",
        "within": f"{second.number}",
        "seen": f"{third.number}",
    }
    assert [each.delivered for each in store.open_events(10)] == [1, 1, 2]
    assert all(store.close_event(each) for each in (first, second, third))


def test_a_batch_has_a_limit_and_counts(store: Store) -> None:
    for number in range(7):
        wait(store, a_wait(f"w{number}", f"run-{number}"), run_id=f"run-{number}")
    [event] = put(store, an_event())
    assert [deliver(store, event, 3) for _ in range(4)] == [3, 3, 1, 0]
    [open_one] = store.open_events(10)
    assert open_one.delivered == 7
    assert store.close_event(event)
    assert all(len(bodies(store, f"run-{number}")) == 1 for number in range(7))


def test_deliveries_to_single_waits_are_counted_too(store: Store) -> None:
    [event] = put(store, an_event())
    for number in range(2):
        wait(store, a_wait(f"w{number}", run_id=f"run-{number}"), run_id=f"run-{number}")
    assert [deliver(store, event, 1, wait_id=f"w{number}") for number in range(2)] == [1, 1]
    [known] = store.open_events(10)
    assert known.delivered == 2


def test_an_event_stays_open_until_all_have_it(store: Store) -> None:
    wait(store, a_wait())
    [event] = put(store, an_event())
    assert not store.close_event(event)
    assert [each.id for each in store.open_events(10)] == ["a"]


def ended_by_a_pass(store: Store) -> None:
    held = claimed(store)
    commit(store, held, changes=by_class([EventsDropped()]))
    finished(store, held)


def dropped(*ids: str) -> Any:
    def drop(store: Store) -> None:
        commit(store, claimed(store), changes=by_class([EventsDropped(ids)]))

    return drop


def changed(name: str, **parts: Any) -> Any:
    def change(store: Store) -> None:
        patch = CALLS[name](the(store)) if name else {}
        store.change("run", lambda _run, _entries: RunChange(run=patch, **parts))

    return change


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (ended_by_a_pass, []),
        (dropped(), []),
        (dropped("w"), ["x"]),
        (dropped("other"), ["w", "x"]),
        (changed("cancelled_at_once"), []),
        (changed("cancelled_with_rollback"), []),
        (changed("", deleted=["paid"]), ["x"]),
        (changed("", deleted=["else"]), ["w", "x"]),
        (changed(""), ["w", "x"]),
    ],
    ids=["pass", "all", "one", "unknown", "cancel", "cancel with rollback", "rewind", "rewind of others", "no change"],
)
def test_what_ends_waits(store: Store, end: Any, left: Sequence[str]) -> None:
    waits = [a_wait("w"), a_wait("x", location="again", queue=f"{QUEUE}.")]
    wait(store, *waits)
    wait(store, a_wait("other", "other"), run_id="other")
    end(store)
    [event] = put(store, an_event())
    assert [each.id for each in waits if due(store, each.id) is not None] == left
    assert deliver(store, event) == len(left) + 1
    assert len(bodies(store)) == len(left)
    assert len(bodies(store, "other")) == 1


def test_an_ended_run_gets_nothing_and_its_waits_are_forgotten(store: Store) -> None:
    """As a child that the database has cancelled with its parent."""
    held = started(store)
    commit(store, held, changes=by_class([a_wait()]))
    finished(store, held)
    assert store.forget_events(NOW, 10) == 0
    [event] = put(store, an_event())
    assert deliver(store, event) == 0
    assert due(store, "w") is None

    held = started(store, "second")
    commit(store, held, changes=by_class([a_wait("v", "second")]))
    finished(store, held)
    assert deliver(store, event) == 0
    assert bodies(store, "second") == []
    assert the(store, "second").state == RunState.COMPLETED


def test_old_events_are_forgotten_but_open_ones(store: Store) -> None:
    wait(store, a_wait())
    old, new = put(store, an_event("old"), an_event("new", published_at=at(60)))
    for event in put(store, an_event("other", key="8"), an_event("third", key="8")):
        assert store.close_event(event)
    moment = NOW + timedelta(seconds=60)
    assert store.forget_events(moment, 1) == 1
    assert store.forget_events(moment, 10) == 1
    assert store.forget_events(moment, 10) == 0
    assert deliver(store, old) == 1
    assert store.close_event(old)
    assert store.forget_events(moment, 10) == 1
    assert store.newest_event("order.paid", "7") == new.number
    again, is_new = store.put_event(an_event("old"))
    assert is_new
    assert again.number > new.number, "a number is never used again"
