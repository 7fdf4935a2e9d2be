"""Two transactions about one key on two connections at READ COMMITTED, in every order, on real locks.

Each transaction is a statement and an end, as in `test_interleavings`. No order may give a key to two open runs, refuse
it although it is free, lose a message or a move, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from django.db import connections

from durable import Context, runtime, workflow
from durable.core import transitions
from durable.core.records import ENDED, Batch, KeyedSend, MessageState, OutgoingMessage, RunChange, RunRecord
from durable.execution.commits import complete_and_pass_on
from durable.store.base import MessagesLeft
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import (
    LEASE,
    NOW,
    a_batch,
    a_run,
    at,
    the,
)
from tests.support.transitions import CALLS

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

TABLES = ("durable_keyedsend", "durable_runkey", "durable_queuemessage", "durable_run")


def open_holders(store: PostgresStore) -> list[str]:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT r.id FROM durable_runkey AS k JOIN durable_run AS r ON r.id = k.run_id "
            "WHERE k.is_open AND r.finished_at IS NULL ORDER BY r.id"
        )
        return [run_id for (run_id,) in cursor.fetchall()]


def end(store: PostgresStore, run_id: str) -> Callable[[], Any]:
    def ending() -> RunRecord:
        return store.change(run_id, lambda run, _entries: RunChange(run=CALLS["cancelled_at_once"](run)))

    return ending


def start(store: PostgresStore, run_id: str) -> Callable[[], Any]:
    return lambda: store.start_keyed(a_run(run_id), "k")


@pytest.mark.parametrize("order", ORDERS)
def test_two_starts(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        actors = both(pools, order, ends, start(store, "a"), start(store, "b"))
        committed = [name for name, how in zip("ab", ends, strict=True) if how == "COMMIT"]
        held = open_holders(store)
        assert len(held) == bool(committed)
        for name, actor in zip("ab", actors.values(), strict=True):
            found, is_new = actor.outcome
            assert is_new == (found.id == name)
            if name in committed and actor.end == "COMMIT":
                assert [found.id] == held, "what it was given is the open run"


@pytest.mark.parametrize("order", ORDERS)
def test_a_start_while_the_open_run_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        store.start_keyed(a_run("old"), "k")
        actors = both(pools, order, ends, end(store, "old"), start(store, "new"))
        found, is_new = actors["B"].outcome
        has_ended = the(store, "old").state in ENDED
        assert has_ended == (ends[0] == "COMMIT")
        if is_new:
            assert has_ended or ends[1] == "ROLLBACK"
            assert open_holders(store) == (["new"] if ends[1] == "COMMIT" else [])
        else:
            assert found.id == "old"
            assert open_holders(store) == ([] if has_ended else ["old"])


@pytest.mark.parametrize("order", ORDERS)
def test_a_send_to_the_open_run_while_it_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        store.start_keyed(a_run("old"), "k")

        def send() -> str | None:
            holder = store.key_holder("w", "k", lock=True)
            if holder is not None:
                store.send([OutgoingMessage(id="m", to=holder.id, queue="q", body="1", sent_at=NOW)])
            return None if holder is None else holder.id

        actors = both(pools, order, ends, end(store, "old"), send)
        sent_to = actors["B"].outcome
        messages = store.messages("old")
        if sent_to is None:
            assert the(store, "old").state in ENDED
            assert not messages
        elif ends[1] == "COMMIT":
            assert [each.id for each in messages] == ["m"]
            assert the(store, "old").message_count == 1, "sent before the run ended, if it has"


def claimed_with_a_message(store: PostgresStore) -> RunRecord:
    """A run with a key that a worker has, and that has received one message."""
    store.start_keyed(a_run("old"), "k")
    store.send([OutgoingMessage(id="first", to="old", queue="q", body="1", sent_at=NOW)])
    store.note_keyed_sends([KeyedSend(message_id="first", run_id="old", was_first=True)])
    held = store.claim_run("old", now=NOW, lease_until=NOW + LEASE, worker="w")
    assert held is not None
    return held


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
    received = [("first", "a")]
    patch = transitions.completed(held, now=NOW, output="1")
    return a_batch(held, run=patch, received=received)


@pytest.mark.parametrize("order", ORDERS)
def test_a_send_to_a_key_while_its_run_is_completed(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        batch = completion(claimed_with_a_message(store))

        def complete(batch: Batch = batch) -> str:
            try:
                store.commit(batch)
            except MessagesLeft:
                return "refused"
            return "completed"

        actors = both(pools, order, ends, complete, sending(store))
        has_ended = actors["A"].outcome == "completed" and ends[0] == "COMMIT"
        assert (the(store, "old").state in ENDED) == has_ended
        if ends[1] == "COMMIT":
            assert actors["B"].outcome in open_holders(store), "no run that has ended has a message which it never saw"
        if actors["A"].outcome == "refused":
            assert actors["B"].outcome == "old"


@pytest.mark.parametrize("order", ORDERS)
def test_a_send_to_a_key_while_its_messages_are_passed_on(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        batch = completion(claimed_with_a_message(store))
        store.send([OutgoingMessage(id="left", to="old", queue="q", body="1", sent_at=NOW)])
        store.note_keyed_sends([KeyedSend(message_id="left", run_id="old")])

        def complete(batch: Batch = batch) -> str | None:
            _, following = complete_and_pass_on(store, batch, NOW, lambda text, _old, _new: text)
            return None if following is None else following.id

        both(pools, order, ends, complete, sending(store))
        [holder] = open_holders(store)
        assert (holder == "old") == (ends[0] == "ROLLBACK")
        sent = {"left"} | ({"m"} if ends[1] == "COMMIT" else set())
        pending = {each.id for each in store.messages(holder) if each.state == MessageState.PENDING}
        assert pending - {"first"} == sent
        assert {each.id for each in store.messages("old")} - pending <= {"first"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_move_while_a_worker_claims_the_run(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
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

        actors = both(pools, order, ends, move, claim)
        run = the(store, "a")
        is_claimed = actors["B"].outcome == ["a"] and ends[1] == "COMMIT"
        is_moved = actors["A"].outcome == "moved" and ends[0] == "COMMIT"
        assert not (is_claimed and is_moved)
        assert (run.worker == "w") == is_claimed
        assert (run.input == '["new"]', run.wake_at == at(40)) == (is_moved, is_moved)


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_continues_while_another_starts(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        store.start_keyed(a_run("old"), "k")
        end(store, "old")()

        def reopen() -> str:
            try:
                store.change("old", lambda run, _entries: RunChange(run=CALLS["replayed"](run)))
            except Exception as error:
                return type(error).__name__
            return "reopened"

        actors = both(pools, order, ends, reopen, start(store, "new"))
        held = open_holders(store)
        assert len(held) <= 1
        found, is_new = actors["B"].outcome
        if is_new and ends[1] == "COMMIT":
            assert held == ["new"]
            assert actors["A"].outcome == "KeyConflictError" or ends[0] == "ROLLBACK"
        if actors["A"].outcome == "reopened" and ends[0] == "COMMIT":
            assert held == ["old"]
            assert found.id == "old" or ends[1] == "ROLLBACK"


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


@pytest.mark.parametrize("order", ORDERS)
def test_a_start_or_send_while_the_open_run_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    """The message goes to the run that is open, before its end, or to a new one: never to one that has ended."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        store.start_keyed(a_run("old", workflow=cart.name), "k")
        with in_force(store):
            actors = both(
                pools, order, ends, end(store, "old"), lambda: cart.using(key="k", id="new").start_or_send("item", 1)
            )
        sent_to = actors["B"].outcome.id
        has_ended = the(store, "old").state in ENDED
        assert has_ended == (ends[0] == "COMMIT")
        if ends[1] == "ROLLBACK":
            assert open_holders(store) == ([] if has_ended else ["old"])
            assert (store.get("new"), store.messages("old")) == (None, [])
        else:
            assert [len(store.messages(run_id)) for run_id in ("old", "new")] == [sent_to == "old", sent_to == "new"]
            assert open_holders(store) == (["new"] if sent_to == "new" else [] if has_ended else ["old"])
            if sent_to == "new":
                assert has_ended
            elif has_ended:
                assert not order.startswith("Aa"), "it was sent to before its end"
