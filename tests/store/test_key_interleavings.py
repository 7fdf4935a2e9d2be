"""Two transactions about one key on two connections at READ COMMITTED, in every order, on real locks.

No order may give a key to two open runs, refuse
it although it is free, lose a message or a move, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import Any

import pytest
from django.db import connections, transaction

from durable import Context, runtime, workflow
from durable.core import transitions
from durable.core.records import ENDED, Batch, ChildStart, KeyedSend, MessageState, OutgoingMessage, RunRecord
from durable.execution.commits import complete_and_pass_on
from durable.store.base import ChildKeyTaken, MessagesLeft
from durable.store.postgres import PostgresStore
from tests.store.actors import Race
from tests.store.children import a_child, finish, start_children
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_batch, a_run, at, cancel, changed, claimed, park, started, the
from tests.support.transitions import CALLS

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def open_holders(store: PostgresStore) -> list[str]:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT r.id FROM durable_runkey AS k JOIN durable_run AS r ON r.id = k.run_id "
            "WHERE k.is_open AND r.finished_at IS NULL ORDER BY r.id"
        )
        return [run_id for (run_id,) in cursor.fetchall()]


def end(store: PostgresStore, run_id: str) -> Callable[[], Any]:
    return lambda: cancel(store, run_id)


def start(store: PostgresStore, run_id: str) -> Callable[[], Any]:
    return lambda: store.start_keyed(a_run(run_id), "k")


def test_two_starts(race: Race) -> None:
    store = race.store
    answers = race.run(start(store, "a"), start(store, "b"))
    held = open_holders(store)
    assert len(held) == any(race.commits)
    for name, (found, is_new), commits in zip("ab", answers, race.commits, strict=True):
        assert is_new == (found.id == name)
        if commits:
            assert [found.id] == held, "what it was given is the open run"


def test_a_start_while_the_open_run_ends(race: Race) -> None:
    store = race.store
    store.start_keyed(a_run("old"), "k")
    _, (found, is_new) = race.run(end(store, "old"), start(store, "new"))
    has_ended = the(store, "old").state in ENDED
    assert has_ended == race.a_commits
    if is_new:
        assert has_ended or not race.b_commits
        assert open_holders(store) == (["new"] if race.b_commits else [])
    else:
        assert found.id == "old"
        assert open_holders(store) == ([] if has_ended else ["old"])


def test_a_send_to_the_open_run_while_it_ends(race: Race) -> None:
    store = race.store
    store.start_keyed(a_run("old"), "k")

    def send() -> str | None:
        holder = store.key_holder("w", "k", lock=True)
        if holder is not None:
            store.send([OutgoingMessage(id="m", to=holder.id, queue="q", body="1", sent_at=NOW)])
        return None if holder is None else holder.id

    _, sent_to = race.run(end(store, "old"), send)
    messages = store.messages("old")
    if sent_to is None:
        assert the(store, "old").state in ENDED
        assert not messages
    elif race.b_commits:
        assert [each.id for each in messages] == ["m"]
        assert the(store, "old").message_count == 1, "sent before the run ended, if it has"


def claimed_with_a_message(store: PostgresStore) -> RunRecord:
    """A run with a key that a worker has, and that has received one message."""
    store.start_keyed(a_run("old"), "k")
    store.send([OutgoingMessage(id="first", to="old", queue="q", body="1", sent_at=NOW)])
    store.note_keyed_sends([KeyedSend(message_id="first", run_id="old", was_first=True)])
    return claimed(store, "old")


def sending(store: PostgresStore) -> Callable[[], str]:
    """What `start_or_send` does; return the run that has the message."""

    def send() -> str:
        while True:
            found, is_new = store.start_keyed(a_run("new"), "k")
            holder = found if is_new else store.key_holder("w", "k", lock=True)
            if holder is not None and holder.id == found.id:
                break
        store.send([OutgoingMessage(id="m", to=holder.id, queue="q", body="1", sent_at=NOW)])
        store.note_keyed_sends([KeyedSend(message_id="m", run_id=holder.id, was_first=is_new)])
        return holder.id

    return send


def completion(held: RunRecord) -> Batch:
    patch = transitions.completed(held, now=NOW, output="1")
    return a_batch(held, run=patch, received=[("first", "a")])


def test_a_send_to_a_key_while_its_run_is_completed(race: Race) -> None:
    store = race.store
    batch = completion(claimed_with_a_message(store))

    def complete() -> str:
        try:
            store.commit(batch)
        except MessagesLeft:
            return "refused"
        return "completed"

    outcome, sent_to = race.run(complete, sending(store))
    has_ended = outcome == "completed" and race.a_commits
    assert (the(store, "old").state in ENDED) == has_ended
    if race.b_commits:
        assert sent_to in open_holders(store), "no run that has ended has a message which it never saw"
    if outcome == "refused":
        assert sent_to == "old"


def test_a_send_to_a_key_while_its_messages_are_passed_on(race: Race) -> None:
    store = race.store
    batch = completion(claimed_with_a_message(store))
    store.send([OutgoingMessage(id="left", to="old", queue="q", body="1", sent_at=NOW)])
    store.note_keyed_sends([KeyedSend(message_id="left", run_id="old")])

    def complete() -> str | None:
        _, following = complete_and_pass_on(store, batch, NOW, lambda text, _old, _new: text)
        return None if following is None else following.id

    race.run(complete, sending(store))
    [holder] = open_holders(store)
    assert (holder == "old") == (not race.a_commits)
    sent = {"left"} | ({"m"} if race.b_commits else set())
    pending = {each.id for each in store.messages(holder) if each.state == MessageState.PENDING}
    assert pending - {"first"} == sent
    assert {each.id for each in store.messages("old")} - pending <= {"first"}


def test_a_move_while_a_worker_claims_the_run(race: Race) -> None:
    store = race.store
    store.start_keyed(a_run("a"), "k")

    def move() -> str:
        holder = store.key_holder("w", "k", lock=True)
        assert holder is not None
        if holder.started_at is not None:
            return "begun"
        store.move(holder, now=at(1), wake_at=at(40), input='["new"]')
        return "moved"

    def claim() -> list[str]:
        found = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=5)
        return [run.id for run in found]

    outcome, found = race.run(move, claim)
    run = the(store, "a")
    is_claimed = found == ["a"] and race.b_commits
    is_moved = outcome == "moved" and race.a_commits
    assert not (is_claimed and is_moved)
    assert (run.worker == "w") == is_claimed
    assert (run.input == '["new"]', run.wake_at == at(40)) == (is_moved, is_moved)


def test_a_run_continues_while_another_starts(race: Race) -> None:
    store = race.store
    store.start_keyed(a_run("old"), "k")
    end(store, "old")()

    def reopen() -> str:
        try:
            changed(store, "old", CALLS["replayed"])
        except Exception as error:
            return type(error).__name__
        return "reopened"

    outcome, (found, is_new) = race.run(reopen, start(store, "new"))
    held = open_holders(store)
    assert len(held) <= 1
    if is_new and race.b_commits:
        assert held == ["new"]
        assert outcome == "KeyConflictError" or not race.a_commits
    if outcome == "reopened" and race.a_commits:
        assert held == ["old"]
        assert found.id == "old" or not race.b_commits


@workflow(name="key_interleavings.cart")
def cart(ctx: Context) -> None:
    ctx.queue.next("item")


@contextmanager
def in_force(store: PostgresStore) -> Iterator[None]:
    """Let verbs use this store; they tell no worker."""
    at = replace(runtime.production(), store=store, now=lambda: NOW, notify=lambda _: None, notify_at=lambda *_: None)
    runtime.activate(at)
    try:
        yield
    finally:
        runtime.deactivate(at)


def test_a_start_or_send_while_the_open_run_ends(race: Race) -> None:
    """The message goes to the run that is open, before its end, or to a new one: never to one that has ended."""
    store = race.store
    store.start_keyed(a_run("old", workflow=cart.name), "k")
    with in_force(store):
        _, run = race.run(end(store, "old"), lambda: cart.using(key="k", id="new").start_or_send("item", 1))
    sent_to = run.id
    has_ended = the(store, "old").state in ENDED
    assert has_ended == race.a_commits
    if not race.b_commits:
        assert open_holders(store) == ([] if has_ended else ["old"])
        assert (store.get("new"), store.messages("old")) == (None, [])
    else:
        assert [len(store.messages(run_id)) for run_id in ("old", "new")] == [sent_to == "old", sent_to == "new"]
        assert open_holders(store) == (["new"] if sent_to == "new" else [] if has_ended else ["old"])
        if sent_to == "new":
            assert has_ended
        elif has_ended:
            assert not race.order.startswith("Aa"), "it was sent to before its end"


# -- keys of children


def starting(store: PostgresStore, held: RunRecord, *starts: ChildStart) -> Callable[[], str]:
    """The commit of a parent, which says whether it has started its children."""

    def start() -> str:
        try:
            with transaction.atomic(using=POSTGRES):
                start_children(store, held, *starts)
        except ChildKeyTaken:
            return "taken"
        return "started"

    return start


def test_two_parents_start_children_with_one_key(race: Race) -> None:
    store = race.store
    p, q = started(store, "p"), started(store, "q")
    outcomes = race.run(starting(store, p, a_child("a", "p", key="k")), starting(store, q, a_child("b", "q", key="k")))
    begun = [name for name, outcome in compress(zip("ab", outcomes, strict=True), race.commits) if outcome == "started"]
    assert open_holders(store) == begun
    if race.both_commit:
        assert len(begun) == 1
    assert (store.get("a") is not None) == ("a" in begun)


def test_two_parents_take_two_keys_in_other_orders(race: Race) -> None:
    store = race.store
    p, q = started(store, "p"), started(store, "q")
    outcomes = race.run(
        starting(store, p, a_child("p1", "p", key="k1"), a_child("p2", "p", key="k2")),
        starting(store, q, a_child("q2", "q", key="k2"), a_child("q1", "q", key="k1")),
    )
    begun = [name for name, outcome in compress(zip("pq", outcomes, strict=True), race.commits) if outcome == "started"]
    assert open_holders(store) == [f"{name}{number}" for name in begun for number in (1, 2)]


def test_a_child_ends_while_its_parent_starts_another_with_its_key(race: Race) -> None:
    """The end frees the key and locks the parent then; the commit must not lock them the other way round."""
    store = race.store
    held = started(store, "parent")
    start_children(store, held, a_child("a", key="k"))
    claimed(store, "a")
    _, outcome = race.run(lambda: finish(store, "a", at(1)), starting(store, held, a_child("b", key="k")))
    assert outcome in ("started", "taken")
    has_started = outcome == "started" and race.b_commits
    assert open_holders(store) == ["b"] * has_started + ["a"] * (not race.a_commits and not has_started)
    if has_started:
        assert race.a_commits


def test_a_start_and_the_start_of_a_child(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    park(store, started(store, "other"))
    (found, is_new), outcome = race.run(start(store, "a"), starting(store, held, a_child("b", key="k")))
    expected = ["a"] * (is_new and race.a_commits) + ["b"] * (outcome == "started" and race.b_commits)
    assert open_holders(store) == expected
    assert len(expected) <= 1
    if not is_new:
        assert found.id == "b"
