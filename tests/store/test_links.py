"""Links: opened and closed by a run's commits, used once, and woken for."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from durable.core.location import escape, waiting_text
from durable.core.records import EntryKind, EntryStatus, LinkClosed, LinkOpened, LinkRecord, MessageState, RunRecord
from durable.store import Store
from tests.store.making import HOSTILE, NOW, a_message, a_run, an_entry, at, by_class, commit, park, started, the

TOKEN = "dlk_" + "a" * 43
QUEUE = "durable.link:0123456789abcdef:paid"


def an_opening(**values: Any) -> LinkOpened:
    whole = {
        "token": TOKEN,
        "link_id": "0123456789abcdef",
        "location": "paid",
        "queue": QUEUE,
        "verify": "shop.bank:signature",
        "expires_at": at(60),
    }
    return LinkOpened(**{**whole, **values})


def opened(store: Store, held: RunRecord, **values: Any) -> LinkRecord:
    """A link that a commit of the run has opened, with its entry."""
    opening = an_opening(**values)
    entry = an_entry(
        opening.location,
        kind=EntryKind.LINK,
        status=EntryStatus.COMPLETED,
        data={"id": opening.link_id, "queue": opening.queue, "verify": opening.verify, "expires_at": None},
    )
    commit(store, held, entries=[entry], changes=by_class([opening]))
    link = store.link(hashlib.sha256(opening.token.encode()).hexdigest())
    assert link is not None
    return link


def test_a_commit_opens_a_link_which_is_found_by_the_hash_of_its_token(store: Store) -> None:
    held = started(store)
    link = opened(store, held)
    assert link == LinkRecord(
        token_hash=hashlib.sha256(TOKEN.encode()).hexdigest(),
        run_id="run",
        link_id="0123456789abcdef",
        location="paid",
        queue=QUEUE,
        generation=0,
        verify="shop.bank:signature",
        opened_at=link.opened_at,
        expires_at=at(60),
    )
    assert store.links("run") == [link]
    assert store.link(TOKEN) is None
    assert store.links("other") == []
    assert store.is_link_open(link)


def test_the_same_opening_twice_is_one_link(store: Store) -> None:
    """A commit whose answer got lost is made again."""
    held = started(store)
    opened(store, held)
    commit(store, held, changes=by_class([an_opening()]))
    assert len(store.links("run")) == 1


def test_a_late_worker_opens_and_closes_nothing(store: Store) -> None:
    from durable.core.control_flow import LeaseLost

    held = started(store)
    link = opened(store, held)
    late = replace(held, fence=held.fence - 1)
    for change in (an_opening(token=TOKEN[:-1] + "b"), LinkClosed(link.link_id)):
        with pytest.raises(LeaseLost):
            commit(store, late, changes=by_class([change]))
    assert store.links("run") == [link]


def test_generations_are_counted_by_location(store: Store) -> None:
    held = started(store)
    for number, location in enumerate(["paid", "paid", "other", "paid"]):
        opened(store, held, token=f"dlk_{number}" + "a" * 42, link_id=f"{number}" * 16, location=location)
    found = {each.link_id[0]: each.generation for each in store.links("run")}
    assert found == {"0": 0, "1": 1, "2": 0, "3": 2}
    assert [store.is_link_open(each) for each in store.links("run")] == [False, False, True, True]


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 128])
def test_any_name_may_stand_in_a_location(store: Store, name: str) -> None:
    held = started(store)
    location = f"loop/~0/{escape(name)}"
    link = opened(store, held, location=location)
    assert (link.location, store.is_link_open(link)) == (location, True)


def test_a_link_is_used_and_closed_once(store: Store) -> None:
    held = started(store)
    link = opened(store, held)
    store.use_link(link, "message", at(1))
    [used] = store.links("run")
    assert (used.used_at, used.message_id, used.closed_at) == (at(1), "message", None)
    commit(store, held, changes=by_class([LinkClosed(link.link_id)]), now=at(2))
    commit(store, held, changes=by_class([LinkClosed(link.link_id)]), now=at(3))
    [closed] = store.links("run")
    assert closed.closed_at is not None
    assert closed.closed_at < at(3)


def test_an_entry_of_another_link_is_not_this_one(store: Store) -> None:
    held = started(store)
    link = opened(store, held)
    assert not store.is_link_open(replace(link, link_id="f" * 16))
    assert not store.is_link_open(replace(link, location="elsewhere"))
    assert not store.is_link_open(replace(link, run_id="gone"))
    commit(store, held, entries=[an_entry("step")])
    assert not store.is_link_open(replace(link, location="step"))


def test_an_answer_wakes_who_waits_for_the_link_and_nobody_else(store: Store) -> None:
    waits = {
        "link": waiting_text(frozenset({QUEUE})),
        "any": waiting_text(frozenset()),
        "both": waiting_text(frozenset({"", QUEUE})),
        "another": waiting_text(frozenset({"", QUEUE.replace("0123", "9999")})),
        "queue": waiting_text(frozenset({"mail"})),
    }
    for name, waiting_for in waits.items():
        park(store, started(store, name), waiting_for=waiting_for)
    store.send([a_message(name, queue=QUEUE, sent_at=at(5)) for name in waits])
    woken = {name for name in waits if the(store, name).wake_at is not None}
    assert woken == {"link", "both"}
    store.send([a_message(name, queue="mail", sent_at=at(6)) for name in waits])
    assert {name for name in waits if the(store, name).wake_at is not None} == {*waits}


def test_a_run_parks_although_an_answer_is_there_that_it_does_not_wait_for(store: Store) -> None:
    for name, waiting_for, is_due in (
        ("any", waiting_text(frozenset()), False),
        ("both", waiting_text(frozenset({"", QUEUE})), True),
        ("link", waiting_text(frozenset({QUEUE})), True),
    ):
        held = started(store, name)
        store.send([a_message(name, queue=QUEUE, sent_at=NOW)])
        park(store, held, known_change_seq=the(store, name).change_seq, waiting_for=waiting_for)
        assert (the(store, name).wake_at is not None) is is_due, name


def test_the_inbox_without_names_leaves_answers_of_links_out(store: Store) -> None:
    store.create([a_run()])
    store.send([a_message(queue=QUEUE), a_message(queue="mail"), a_message(queue="durable.other")])
    assert [each.queue for each in store.inbox("run", (), 10, None)] == ["mail", "durable.other"]
    assert [each.queue for each in store.inbox("run", (QUEUE,), 10, None)] == [QUEUE]
    assert all(each.state == MessageState.PENDING for each in store.messages("run"))


def test_what_a_transaction_takes_back_was_no_use(store: Store) -> None:
    link = opened(store, started(store))

    with suppress(ZeroDivisionError), store.transaction():
        store.use_link(link, "message", at(1))
        raise ZeroDivisionError
    assert store.links("run") == [link]
