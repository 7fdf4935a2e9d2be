"""Keys of children, in each store: the commit of the parent takes them, and an end frees them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from django.db import connections, transaction

from durable.core.control_flow import LeaseLost
from durable.core.records import ChildRecord, ChildStart, RunChange, RunRecord, RunState
from durable.core.time_limits import NewRun
from durable.store import Store
from durable.store.base import ChildIdTaken, ChildKeyTaken
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.family import finish, start_children
from tests.store.making import (
    LEASE,
    NOW,
    a_run,
    an_entry,
    at,
    commit,
    park,
    started,
    the,
)
from tests.support.transitions import CALLS

TABLES = ("durable_runkey", "durable_cascade", "durable_child", "durable_entry", "durable_run")


def keyed(run_id: str, parent_id: str = "parent", key: str | None = "k") -> ChildStart:
    """A child that is to be started with a key."""
    run = NewRun(
        id=run_id, workflow="w", queue="q", input="[]", created_at=NOW, wake_at=NOW, parent_id=parent_id, key=key
    )
    return ChildStart(run, ChildRecord(run_id=run_id, parent_id=parent_id, location=run_id, position=1))


def cancel(store: Store, run_id: str) -> RunRecord:
    return store.change(run_id, lambda run, _entries: RunChange(run=CALLS["cancelled_at_once"](run)))


def holder(store: Store, key: str = "k") -> str | None:
    found = store.key_holder("w", key)
    return None if found is None else found.id


def test_the_commit_takes_the_key_and_the_end_frees_it(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, keyed("a"), keyed("b", key="other"), keyed("c", key=None))
    assert (holder(store), holder(store, "other")) == ("a", "b")
    assert store.keys(["a", "c"])["a"].is_open
    assert "c" not in store.keys(["a", "c"])
    finish(store, "a", at(1))
    assert holder(store) is None
    start_children(store, held, keyed("d"))
    assert holder(store) == "d"


@pytest.mark.parametrize("first", ["start", "child"])
def test_nothing_is_written_if_the_key_is_taken(store: Store, first: str) -> None:
    if first == "start":
        store.start_keyed(a_run("a"), "k")
    else:
        start_children(store, started(store, "other"), keyed("a", "other"))
    held = started(store, "parent")
    with pytest.raises(ChildKeyTaken) as error:
        start_children_and_record(store, held, keyed("b"), keyed("c", key="free"))
    assert error.value.run_id == "b"
    assert store.get("b") is None
    assert (store.history("parent"), holder(store), holder(store, "free")) == ([], "a", None)
    cancel(store, "a")
    start_children_and_record(store, held, keyed("b"), keyed("c", key="free"))
    assert (holder(store), holder(store, "free"), len(store.history("parent"))) == ("b", "c", 1)


def start_children_and_record(store: Store, held: RunRecord, *starts: ChildStart) -> None:
    commit(store, held, starts=starts, entries=[an_entry("a")])


def test_a_worker_that_has_lost_its_lease_takes_no_key(store: Store) -> None:
    held = started(store, "parent")
    with pytest.raises(LeaseLost):
        commit(store, held, fence=held.fence - 1, starts=[keyed("a")])
    assert (holder(store), store.get("a")) == (None, None)
    assert store.keys(["a"]) == {}


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_commit_is_repeated(store: Store, has_ended: bool) -> None:
    held = started(store, "parent")
    start_children(store, held, keyed("a"))
    if has_ended:
        cancel(store, "a")
        store.start_keyed(a_run("next"), "k")
    start_children(store, held, keyed("a"))
    assert holder(store) == ("next" if has_ended else "a")


def test_the_id_is_anothers(store: Store) -> None:
    store.create([a_run("a")])
    held = started(store, "parent")
    with pytest.raises(ChildIdTaken):
        start_children(store, held, keyed("a"))
    assert holder(store) is None


def test_the_end_of_a_parent_frees_the_keys_of_its_children(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, keyed("a"))
    cancel(store, "parent")
    # a worker has the parent, so that `cancelled_at_once` is what an operator does after its lease
    assert the(store, "a").state == RunState.CANCELLED
    assert holder(store) is None
    assert store.start_keyed(a_run("next"), "k")[1]


# -- two connections


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


def open_ones() -> list[str]:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT r.id FROM durable_runkey AS k JOIN durable_run AS r ON r.id = k.run_id "
            "WHERE k.is_open AND r.finished_at IS NULL ORDER BY r.id"
        )
        return [run_id for (run_id,) in cursor.fetchall()]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("order", ORDERS)
def test_two_parents_start_children_with_one_key(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        p, q = started(store, "p"), started(store, "q")
        actors = both(pools, order, ends, starting(store, p, keyed("a", "p")), starting(store, q, keyed("b", "q")))
        started_ones = [
            name
            for name, actor in zip("ab", actors.values(), strict=True)
            if actor.outcome == "started" and actor.end == "COMMIT"
        ]
        assert open_ones() == started_ones
        if "COMMIT" in ends and "ROLLBACK" not in ends:
            assert len(started_ones) == 1
        assert (store.get("a") is not None) == ("a" in started_ones)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("order", ORDERS)
def test_two_parents_take_two_keys_in_other_orders(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        p, q = started(store, "p"), started(store, "q")
        actors = both(
            pools,
            order,
            ends,
            starting(store, p, keyed("p1", "p", "k1"), keyed("p2", "p", "k2")),
            starting(store, q, keyed("q2", "q", "k2"), keyed("q1", "q", "k1")),
        )
        outcomes = [actor.outcome for actor in actors.values()]
        expected = [
            f"{name}{number}"
            for name, outcome, how in zip("pq", outcomes, ends, strict=True)
            for number in (1, 2)
            if outcome == "started" and how == "COMMIT"
        ]
        assert open_ones() == expected


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_its_parent_starts_another_with_its_key(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    """The end frees the key and locks the parent then; the commit must not lock them the other way round."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        start_children(store, held, keyed("a"))
        store.claim_run("a", now=NOW, lease_until=NOW + LEASE, worker="w")
        actors = both(pools, order, ends, lambda: finish(store, "a", at(1)), starting(store, held, keyed("b")))
        assert actors["B"].outcome in ("started", "taken")
        has_ended = ends[0] == "COMMIT"
        has_started = actors["B"].outcome == "started" and ends[1] == "COMMIT"
        assert open_ones() == ["b"] * has_started + ["a"] * (not has_ended and not has_started)
        if has_started:
            assert has_ended


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("order", ORDERS)
def test_a_start_and_the_start_of_a_child(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        park(store, started(store, "other"))
        actors = both(pools, order, ends, lambda: store.start_keyed(a_run("a"), "k"), starting(store, held, keyed("b")))
        found, is_new = actors["A"].outcome
        expected = ["a"] * (is_new and ends[0] == "COMMIT")
        expected += ["b"] * (actors["B"].outcome == "started" and ends[1] == "COMMIT")
        assert open_ones() == expected
        assert len(expected) <= 1
        if not is_new:
            assert found.id == "b"
