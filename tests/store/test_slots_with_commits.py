"""A commit that gives up slots is one statement on PostgreSQL, whatever else it writes, and however it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.limits.slot_records import SlotChange, SlotWant
from durable.core.records import RunRecord, RunState
from durable.store import sessions
from durable.store.postgres import PostgresStore
from tests.store.family import a_child
from tests.store.making import LEASE, NOW, a_failure, an_entry, at, commit, started

ONE = SlotWant("gpu", "a/b 🎉", at_once=1)
GIVEN_UP = SlotChange(released=["it's / here"])

#: What a commit writes besides, by the function that writes it.
PARTS: dict[str, Callable[[RunRecord], dict[str, Any]]] = {
    "record": lambda _: {"entries": [an_entry("it's / here")]},
    "flush": lambda _: {"entries": [an_entry("it's / here"), an_entry("b")]},
    "complete": lambda held: {"run": transitions.completed(held, now=NOW, output="1")},
    "complete a child": lambda held: {"run": transitions.completed(held, now=NOW, output="1"), "parent_id": "parent"},
    "commit": lambda _: {"run": {"waiting_for": "x", "summary": ""}, "entries": [an_entry("b")]},
    "fail": lambda held: {
        "run": {"state": RunState.FAILED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW},
        "failure": a_failure(held.id),
    },
    "children": lambda held: {"starts": (a_child("child", held.id),)},
}


def holding(store: PostgresStore) -> tuple[RunRecord, RunRecord]:
    """A run that has the one slot, and one that waits for it."""
    first, second = started(store, "first"), started(store, "second")
    assert store.acquire("first", first.fence, "it's / here", [ONE], NOW).is_granted
    assert not store.acquire("second", second.fence, "x", [ONE], NOW).is_granted
    return first, second


def holders(store: PostgresStore) -> list[str]:
    return [each.run_id for each in store.slots(["first", "second"]) if each.is_held]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("is_observed", [False, True], ids=["directly", "through a cursor"])
def test_the_slot_is_handed_on_in_the_statement(postgres_store: PostgresStore, parts: str, is_observed: bool) -> None:
    first, _ = holding(postgres_store)
    given = {**PARTS[parts](first), "slots": GIVEN_UP}
    if is_observed:
        with CaptureQueriesContext(connections[postgres_store.alias]) as queries:
            commit(postgres_store, first, **given)
        assert len(queries) == 1, [each["sql"] for each in queries.captured_queries]
    else:
        commit(postgres_store, first, **given)
    assert holders(postgres_store) == ["second"]


@pytest.mark.parametrize("parts", PARTS)
def test_a_session_with_leftovers_does_it_too(postgres_store: PostgresStore, parts: str) -> None:
    first, _ = holding(postgres_store)
    with sessions.guarded():
        with connections[postgres_store.alias].cursor() as cursor:
            cursor.execute("SET work_mem = '5MB'")
        commit(postgres_store, first, **PARTS[parts](first), slots=GIVEN_UP)
    assert holders(postgres_store) == ["second"]


@pytest.mark.parametrize("parts", PARTS)
def test_an_older_fence_gives_up_nothing(postgres_store: PostgresStore, parts: str) -> None:
    first, _ = holding(postgres_store)
    newer = postgres_store.claim_run("first", now=at(9_999), lease_until=at(9_999) + LEASE, worker="other")
    assert newer is not None
    assert newer.fence > first.fence
    with pytest.raises(LeaseLost):
        commit(postgres_store, first, **PARTS[parts](first), slots=GIVEN_UP)
    assert holders(postgres_store) == ["first"]
