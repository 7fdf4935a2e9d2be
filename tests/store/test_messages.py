"""Sending, waking, and the inbox."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from durable.core.location import escape, waiting_text
from durable.core.records import Message, MessageState, OutgoingMessage, RunState
from durable.store import Store
from tests.store.making import (
    HOSTILE,
    LEASE,
    NOW,
    a_message,
    a_run,
    an_entry,
    at,
    commit,
    finished,
    park,
    parked,
    sent,
    started,
    the,
)


def test_a_sent_message_is_stored_pending_in_its_order(store: Store) -> None:
    store.create([a_run()])
    one, two = a_message(), a_message(idempotency_id="once", sent_at=at(1), body="2")
    stored, queues = store.send([one, two])
    assert (
        stored
        == store.messages("run")
        == [
            Message(id=one.id, run_id="run", queue="mail", body='"hi"', sent_at=NOW, order=1),
            Message(id=two.id, run_id="run", queue="mail", body="2", sent_at=at(1), order=2, idempotency_id="once"),
        ]
    )
    assert queues == frozenset()
    assert store.message(two.id) == stored[1]
    assert store.message("none") is None


def test_a_send_raises_the_signal_and_counts_the_messages(store: Store) -> None:
    store.create([a_run()])
    store.send([a_message(), a_message()])
    run = the(store)
    assert run.message_count == 2
    assert run.change_seq > 0


def test_a_message_to_a_run_that_is_not_there_is_none_and_the_others_arrive(store: Store) -> None:
    store.create([a_run("a"), a_run("b")])
    stored, _ = store.send([a_message("b"), a_message("none"), a_message("a"), a_message("b")])
    assert [m and (m.run_id, m.order) for m in stored] == [("b", 1), None, ("a", 1), ("b", 2)]


def test_sending_nothing_is_allowed(store: Store) -> None:
    assert store.send([]) == ([], frozenset())


def test_an_idempotency_id_that_the_run_has_seen_gives_the_message_stored_then(store: Store) -> None:
    store.create([a_run("run"), a_run("other")])
    first = sent(store, a_message(idempotency_id="x"))
    before = the(store)
    assert sent(store, a_message(idempotency_id="x", body="2", queue="q2")) == first
    assert the(store) == before
    assert sent(store, a_message("other", idempotency_id="x")).order == 1
    assert sent(store, a_message(idempotency_id="X")).order == 2
    assert store.sent_before("run", "x") == first
    assert store.sent_before("run", "y") is store.sent_before("none", "x") is None


def test_an_idempotency_id_given_twice_in_one_call_is_stored_once(store: Store) -> None:
    store.create([a_run()])
    [one, two, three], _ = store.send([a_message(idempotency_id="x"), a_message(idempotency_id="x"), a_message()])
    assert one == two
    assert three is not None
    assert [m.order for m in store.messages("run")] == [1, 2]


def test_a_message_received_long_ago_still_answers_its_idempotency_id(store: Store) -> None:
    held = started(store)
    first = sent(store, a_message(idempotency_id="x"))
    commit(store, held, received=[(first.id, "w")], completed=[(first.id, "1")])
    again = sent(store, a_message(idempotency_id="x"))
    assert again == replace(first, state=MessageState.COMPLETED, received_by="w", response="1")


@pytest.mark.parametrize("name", ["mail", *HOSTILE, "x" * 128, "\ud800" * 128])
def test_a_run_that_waits_for_a_queue_is_due_when_a_message_comes(store: Store, name: str) -> None:
    parked(store, waiting_for=waiting_text(frozenset({escape("zzz"), escape(name)})))
    _, queues = store.send([a_message(queue=name, sent_at=at(5))])
    assert queues == {"q"}
    assert the(store).wake_at == at(5)
    assert [m.queue for m in store.messages("run")] == [name]
    assert [m.queue for m in store.inbox("run", [name], 1, None)] == [name]


@pytest.mark.parametrize("name", ["b", "a/b", "*", "/", "%2F", "a%2Fb", "ab", "A", "\x00"])
def test_a_run_that_waits_for_other_queues_is_left_asleep(store: Store, name: str) -> None:
    parked(store, waiting_for=waiting_text(frozenset({escape("a"), escape("b/c")})), wake_at=at(60))
    _, queues = store.send([a_message(queue=name)])
    assert queues == frozenset()
    assert the(store).wake_at == at(60)
    assert the(store).message_count == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_a_run_that_waits_for_any_queue_is_woken_by_each(store: Store, name: str) -> None:
    parked(store, waiting_for=waiting_text(frozenset()))
    assert store.send([a_message(queue=name)])[1] == {"q"}


def test_a_run_that_waits_for_no_message_is_left_asleep(store: Store) -> None:
    parked(store, waiting_for=waiting_text(None))
    assert store.send([a_message()])[1] == frozenset()
    assert the(store).wake_at is None


def test_an_earlier_wake_up_stays(store: Store) -> None:
    parked(store, waiting_for="*", wake_at=at(1))
    store.send([a_message(sent_at=at(5)), a_message(sent_at=at(3))])
    assert the(store).wake_at == at(1)
    parked(store, "two", waiting_for="*", wake_at=at(60))
    store.send([a_message("two", sent_at=at(5)), a_message("two", sent_at=at(3))])
    assert the(store, "two").wake_at == at(3)


def test_each_queue_of_workers_is_notified_once(store: Store) -> None:
    for run_id, queue in (("a", "q1"), ("b", "q1"), ("c", "q2")):
        held = started(store, run_id, queue=queue)
        park(store, held, waiting_for="*")
    assert store.send([a_message("a"), a_message("b"), a_message("c")])[1] == {"q1", "q2"}


def test_a_paused_run_is_woken_without_a_notification(store: Store) -> None:
    park(store, started(store, pending_request="pause"), waiting_for="*", state=RunState.PAUSED, pending_request="")
    assert the(store).wake_at is None
    assert store.send([a_message()])[1] == frozenset()
    assert the(store).wake_at == NOW
    assert store.claim(queue="q", now=at(9), lease_until=at(99), worker="w", limit=1) == []


def test_a_run_claimed_by_a_worker_is_changed_without_a_notification(store: Store) -> None:
    held = started(store, waiting_for="*")
    assert store.send([a_message()])[1] == frozenset()
    assert the(store).change_seq != held.change_seq


def test_a_message_to_an_ended_run_is_stored_and_wakes_nothing(store: Store) -> None:
    held = started(store, waiting_for="*")
    finished(store, held)
    stored, queues = store.send([a_message()])
    assert queues == frozenset()
    assert store.messages("run") == stored
    assert the(store).wake_at is None


def test_the_inbox_shows_pending_messages_in_order(store: Store) -> None:
    held = started(store)
    started(store, "other")
    names = ["a", "b", "a", "c"]
    messages = [sent(store, a_message(queue=name, sent_at=at(10 - n))) for n, name in enumerate(names)]
    sent(store, a_message("other", queue="a"))
    assert store.inbox("run", [], 10, None) == messages
    assert store.inbox("run", ["a", "c"], 10, None) == [messages[0], messages[2], messages[3]]
    assert store.inbox("run", ["a", "c"], 2, None) == [messages[0], messages[2]]
    assert store.inbox("run", ["none"], 10, None) == []
    commit(store, held, received=[(messages[0].id, "w")])
    assert store.inbox("run", ["a"], 10, None) == [messages[2]]


def test_the_inbox_ends_strictly_before_the_deadline(store: Store) -> None:
    started(store)
    early, _ = sent(store, a_message(sent_at=at(4.999999))), sent(store, a_message(sent_at=at(5)))
    assert store.inbox("run", [], 10, at(5)) == [early]


# -- sends of a workflow


def test_a_commit_sends_in_the_order_given(store: Store) -> None:
    held = started(store)
    store.create([a_run("b")])
    sends = [a_message("b", body="1"), a_message("run", body="2"), a_message("b", body="3"), a_message("none")]
    commit(store, held, entries=[an_entry("send~0")], sends=sends)
    assert [(m.body, m.order) for m in store.messages("b")] == [("1", 1), ("3", 2)]
    assert [(m.body, m.order) for m in store.messages("run")] == [("2", 1)]
    assert (the(store, "b").message_count, the(store).message_count) == (2, 1)


def test_a_commit_wakes_the_run_it_sends_to_and_returns_the_queues_to_notify(store: Store) -> None:
    held = started(store, queue="mine")
    parked(store, "b", waiting_for="/mail/")
    committed = commit(store, held, sends=[a_message("b", sent_at=at(2))])
    assert committed.queues_to_notify == {"q"}
    assert the(store, "b").wake_at == at(2)
    assert the(store, "b").change_seq == 1
    assert commit(store, held, sends=[a_message("none")]).queues_to_notify == frozenset()


def test_a_workflow_sends_once_per_idempotency_id(store: Store) -> None:
    held = started(store)
    store.create([a_run("b")])
    commit(store, held, sends=[a_message("b", idempotency_id="x"), a_message("b", idempotency_id="x")])
    commit(store, held, sends=[a_message("b", idempotency_id="x"), a_message("b")])
    assert [m.order for m in store.messages("b")] == [1, 2]


def test_order_goes_on_over_senders_inside_and_outside(store: Store) -> None:
    held = started(store)
    sent(store, a_message())
    commit(store, held, sends=[a_message()])
    sent(store, a_message())
    assert [m.order for m in store.messages("run")] == [1, 2, 3]
    assert the(store).message_count == 3


# -- parking


def test_a_run_parks_when_nothing_happened_meanwhile(store: Store) -> None:
    held = started(store)
    committed = park(store, held, waiting_for="/mail/", wake_at=at(60))
    run = the(store)
    assert (run.state, run.wake_at, run.waiting_for, run.lease_expires_at) == (
        RunState.SLEEPING,
        at(60),
        "/mail/",
        None,
    )
    assert committed.queues_to_notify == frozenset()


@pytest.mark.parametrize("queue", ["mail", "other"])
def test_a_run_called_while_it_parks_is_due_at_once(store: Store, queue: str) -> None:
    held = started(store)
    sent(store, a_message(queue=queue))
    committed = park(store, held, waiting_for="/mail/", wake_at=at(60))
    run = the(store)
    assert (run.state, run.wake_at, run.lease_expires_at) == (RunState.SLEEPING, NOW, None)
    assert committed.queues_to_notify == {"q"}
    assert [each.id for each in store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=1)] == [
        "run"
    ]


def test_a_run_that_ends_is_not_due_although_it_was_called(store: Store) -> None:
    held = started(store)
    sent(store, a_message())
    committed = park(store, held, state=RunState.COMPLETED, finished_at=NOW)
    assert (the(store).state, the(store).wake_at) == (RunState.COMPLETED, None)
    assert committed.queues_to_notify == frozenset()


def test_a_pass_that_knows_of_the_call_parks(store: Store) -> None:
    held = started(store)
    sent(store, a_message(queue="other"))
    park(store, held, known_change_seq=the(store).change_seq, waiting_for="/mail/", wake_at=at(60))
    assert the(store).wake_at == at(60)


@pytest.mark.parametrize("deadline", [None, at(60)])
@pytest.mark.parametrize(
    ("before", "with_it", "due"),
    [
        ([a_message(queue="a")], [a_message(queue="b")], None),
        ([], [a_message(sent_at=at(-1))], at(-1)),
        ([a_message()], [], NOW),
        ([a_message(sent_at=at(20))], [], NOW),
    ],
    ids=["to other queues", "with the commit that parks", "before", "before, and the clock went back since"],
)
def test_a_run_that_parks_for_what_it_sends_to_itself_is_due(
    store: Store,
    before: list[OutgoingMessage],
    with_it: list[OutgoingMessage],
    due: datetime | None,
    deadline: datetime | None,
) -> None:
    held = started(store)
    commit(store, held, sends=before)
    committed = park(store, held, waiting_for="/mail/", wake_at=deadline, batch={"sends": with_it})
    assert the(store).wake_at == (due or deadline)
    assert committed.queues_to_notify == (frozenset() if due is None else {"q"})


def test_a_message_received_in_the_commit_that_parks_does_not_wake_the_run(store: Store) -> None:
    held = started(store)
    message = a_message()
    commit(store, held, sends=[message])
    park(store, held, waiting_for="/mail/", wake_at=at(60), batch={"received": [(message.id, "w")]})
    assert the(store).wake_at == at(60)


def test_messages_return_to_the_inbox_those_of_the_same_commit_included(store: Store) -> None:
    held = started(store)
    early, late, other = (sent(store, a_message(body=body)) for body in ("1", "2", "3"))
    commit(store, held, received=[(early.id, "gone"), (other.id, "kept")])
    commit(store, held, received=[(late.id, "gone")], returned=["gone"])
    assert store.inbox("run", [], 9, None) == [early, late]
    commit(store, held, returned=["gone", "elsewhere"])
    assert [m.received_by for m in store.messages("run")] == ["", "", "kept"]


def test_a_run_that_parks_for_a_message_that_returns_is_due(store: Store) -> None:
    held = started(store)
    message = sent(store, a_message())
    held = the(store)
    commit(store, held, received=[(message.id, "gone")])
    committed = park(store, held, waiting_for="/mail/", wake_at=at(60), batch={"returned": ["gone"]})
    assert the(store).wake_at == NOW
    assert committed.queues_to_notify == {"q"}


def test_a_message_to_itself_from_a_run_that_ends_wakes_nothing(store: Store) -> None:
    held = started(store, waiting_for="*")
    park(store, held, state=RunState.FAILED, finished_at=NOW, batch={"sends": [a_message()]})
    assert the(store).wake_at is None
    assert len(store.messages("run")) == 1
