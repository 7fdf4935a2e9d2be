"""Keys in each store: at most one open run of a workflow has one, or child, whatever ends it or lets it begin."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.errors import KeyConflictError
from durable.core.records import ChildStart, HoldKind, KeyedSend, KeyRecord, RunChange, RunRecord, RunState
from durable.core.records import Hold as HoldRecord
from durable.core.transitions import TRANSITIONS, starts_of
from durable.models import RunKey
from durable.store import Store
from durable.store.base import ChildIdTaken, ChildKeyTaken, MessagesLeft
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.children import a_child, finish, start_children
from tests.store.making import (
    HOSTILE,
    LEASE,
    NOW,
    a_message,
    a_run,
    an_entry,
    at,
    cancel,
    changed,
    claimed,
    commit,
    finished,
    started,
    the,
)
from tests.support.transitions import CALLS, ends

ENDINGS = [name for name in TRANSITIONS if ends(name)]
REOPENINGS = ["recovered", "rollback_recovered", "replayed"]


def holder(store: Store, key: str = "k", workflow: str = "w") -> str | None:
    found = store.key_holder(workflow, key)
    return None if found is None else found.id


def brought_to(store: Store, run_id: str, state: str) -> Any:
    patch: dict[str, Any] = {"state": state}
    if state in (RunState.RUNNING, RunState.ROLLING_BACK):
        patch |= {"lease_expires_at": NOW + LEASE, "worker": "w", "fence": 1}
    if state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
        patch |= {"finished_at": NOW, "wake_at": None}
    return store.change(run_id, lambda _run, _entries: RunChange(run=patch))  # type: ignore[arg-type]  # a patch


class TestStart:
    def test_one_open_run(self, store: Store) -> None:
        first, is_new = store.start_keyed(a_run("a"), "k")
        assert (first, is_new) == (a_run("a"), True)
        assert the(store, "a") == first
        second, is_new = store.start_keyed(a_run("b"), "k")
        assert (second, is_new) == (first, False)
        assert store.get("b") is None
        assert holder(store) == "a"

    def test_another_key_and_another_workflow_are_free(self, store: Store) -> None:
        for run, key in (("a", "k"), ("b", "K"), ("c", "k ")):
            assert store.start_keyed(a_run(run), key)[1], key
        assert store.start_keyed(a_run("d", workflow="v"), "k")[1]
        assert [holder(store, "k"), holder(store, "K"), holder(store, "k "), holder(store, "k", "v")] == [*"abcd"]

    def test_an_id_that_exists_comes_first(self, store: Store) -> None:
        store.create([a_run("taken")])
        found, is_new = store.start_keyed(a_run("taken"), "k")
        assert (found.id, is_new) == ("taken", False)
        assert holder(store) is None, "the key was not taken"
        store.start_keyed(a_run("a"), "k")
        assert store.start_keyed(a_run("taken"), "k")[0].id == "taken"
        assert store.start_keyed(a_run("a"), "k") == (the(store, "a"), False)
        assert store.start_keyed(a_run("a"), "other") == (the(store, "a"), False)
        assert holder(store, "other") is None

    def test_keys_of_any_text(self, store: Store) -> None:
        for number, key in enumerate(each for each in HOSTILE if each.isprintable()):
            store.start_keyed(a_run(f"a {number}"), key)
            assert holder(store, key) == f"a {number}"
            assert store.keys([f"a {number}"])[f"a {number}"].key == key
            assert not store.start_keyed(a_run(f"b {number}"), key)[1]

    def test_a_run_that_is_not_like_every_new_one(self, store: Store) -> None:
        run = a_run("a", generations={"x": 1})
        assert store.start_keyed(run, "k") == (run, True)
        assert not store.start_keyed(a_run("b", generations={"x": 1}), "k")[1]

    def test_a_held_workflow(self, store: Store) -> None:
        store.hold(HoldRecord(kind=HoldKind.WORKFLOW, name="w", held_at=NOW, held_by="me", reason=""))
        run, is_new = store.start_keyed(a_run("a"), "k")
        assert (run.state, is_new) == (RunState.PAUSED, True)
        assert run == the(store, "a")
        assert not store.start_keyed(a_run("b"), "k")[1]

    def test_a_holder_whose_row_was_deleted(self, database_store: SQLiteStore | PostgresStore) -> None:
        store = database_store
        store.start_keyed(a_run("a"), "k")
        with connections[store.alias].cursor() as cursor:
            cursor.execute("DELETE FROM durable_run")
        assert holder(store) is None
        assert store.start_keyed(a_run("b"), "k")[1]
        assert holder(store) == "b"

    def test_an_ended_run_whose_row_was_deleted(self, database_store: SQLiteStore | PostgresStore) -> None:
        store = database_store
        for generations in ({}, {"x": 1}):  # by the function, and by the statements of every store
            store.start_keyed(a_run("a"), "k")
            brought_to(store, "a", RunState.COMPLETED)
            with connections[store.alias].cursor() as cursor:
                cursor.execute("DELETE FROM durable_run")
            assert store.start_keyed(a_run("a", generations=generations), "k")[1]
            assert holder(store) == "a"
            brought_to(store, "a", RunState.COMPLETED)
            with connections[store.alias].cursor() as cursor:
                cursor.execute("DELETE FROM durable_run")

    def test_one_statement(self, postgres_store: PostgresStore, django_assert_num_queries: Any) -> None:
        postgres_store.start_keyed(a_run("warm"), "warm")
        with django_assert_num_queries(1, connection=connections[postgres_store.alias]):
            postgres_store.start_keyed(a_run("a"), "k")


class TestEnds:
    @pytest.mark.parametrize("name", ENDINGS)
    def test_each_end_frees_the_key(self, store: Store, name: str) -> None:
        for number, state in enumerate(starts_of(name)):
            run_id, key = f"run-{number}", f"key-{number}"
            store.start_keyed(a_run(run_id), key)
            run = brought_to(store, run_id, state)
            assert holder(store, key) == run_id
            changed(store, run_id, CALLS[name])
            assert holder(store, key) is None
            assert not store.keys([run_id])[run_id].is_open
            assert store.start_keyed(a_run(f"{run.id}-next"), key)[1]

    @pytest.mark.parametrize(
        "name", sorted({*TRANSITIONS} - {*ENDINGS} - {"started", "sent_to", "child_ended", "moved"})
    )
    def test_no_other_transition(self, store: Store, name: str) -> None:
        for number, state in enumerate(starts_of(name)):
            if state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
                continue
            run_id, key = f"run-{number}", f"key-{number}"
            store.start_keyed(a_run(run_id), key)
            brought_to(store, run_id, state)
            changed(store, run_id, CALLS[name])
            assert holder(store, key) == run_id

    def test_the_end_of_a_parent_frees_the_keys_of_its_children(self, store: Store) -> None:
        held = started(store, "parent")
        start_children(store, held, a_child("child", "parent"))
        other, _ = store.start_keyed(a_run("other"), "k")
        assert other.id == "other"
        grand = claimed(store, "child")
        start_children(store, grand, a_child("grandchild", "child"))
        for child, key in (("child", "c"), ("grandchild", "g")):
            _give(store, child, key)
        store.release([("child", grand.fence)], NOW)
        changed(store, "parent", CALLS["cancelled_at_once"])
        assert the(store, "grandchild").state == RunState.CANCELLED
        assert [holder(store, each) for each in "cgk"] == [None, None, "other"]

    @pytest.mark.parametrize("name", REOPENINGS)
    def test_a_run_that_continues_has_its_key_again(self, store: Store, name: str) -> None:
        store.start_keyed(a_run("a"), "k")
        brought_to(store, "a", RunState.FAILED)
        assert holder(store) is None
        changed(store, "a", CALLS[name])
        assert holder(store) == "a"
        assert not store.start_keyed(a_run("b"), "k")[1]

    @pytest.mark.parametrize("name", REOPENINGS)
    def test_not_while_another_run_has_it(self, store: Store, name: str) -> None:
        store.start_keyed(a_run("a"), "k")
        ended = brought_to(store, "a", RunState.FAILED)
        store.start_keyed(a_run("b"), "k")
        with pytest.raises(KeyConflictError) as caught:
            changed(store, "a", CALLS[name])
        assert (caught.value.run_id, caught.value.key) == ("b", "k")
        assert the(store, "a") == ended, "nothing was changed"
        assert holder(store) == "b"


class TestFree:
    def test_for_now(self, store: Store) -> None:
        store.start_keyed(a_run("a"), "k")
        store.free_key("a", for_good=False)
        assert store.start_keyed(a_run("b"), "k")[1]
        brought_to(store, "b", RunState.COMPLETED)
        brought_to(store, "a", RunState.FAILED)
        assert holder(store) is None
        changed(store, "a", transitions.recovered, now=NOW, generations={}, summary="")
        assert holder(store) == "a", "its recovery asked for the key again"

    def test_for_good(self, store: Store) -> None:
        store.start_keyed(a_run("a"), "k")
        store.free_key("a", for_good=True)
        assert store.start_keyed(a_run("b"), "k")[1]
        assert store.keys(["a", "b"]).keys() == {"b"}
        brought_to(store, "a", RunState.FAILED)
        changed(store, "a", transitions.recovered, now=NOW, generations={}, summary="")
        assert holder(store) == "b"

    def test_the_newest_follower_stays_the_newest_when_another_one_gives_up_its_key(self, store: Store) -> None:
        for number, run in enumerate("abc"):
            store.start_keyed(a_run(run, created_at=at(number)), f"k{number}")
        for run in "bc":
            store.note_follower(run, "a")
        store.free_key("b", for_good=False)
        assert store.followed_by("a") == "c"


class TestMove:
    @pytest.mark.parametrize("input", [None, '["new"]'])
    def test_of_a_pending_run(self, store: Store, input: str | None) -> None:
        run, _ = store.start_keyed(a_run("a", wake_at=at(30)), "k")
        moved = store.move(run, now=at(10), wake_at=at(40), input=input)
        assert the(store, "a") == moved
        assert (moved.wake_at, moved.input, moved.change_seq) == (at(40), input or "[]", 1)
        key = store.keys(["a"])["a"]
        assert (key.moves, key.moved_at, key.taken_at) == (1, at(10), NOW)

    def test_of_a_held_one(self, store: Store) -> None:
        store.hold(HoldRecord(kind=HoldKind.WORKFLOW, name="w", held_at=NOW, held_by="me", reason=""))
        run, _ = store.start_keyed(a_run("a", wake_at=at(30)), "k")
        moved = store.move(run, now=at(10), wake_at=at(40), input='["new"]')
        assert (moved.state, moved.wake_at, moved.input) == (RunState.PAUSED, None, '["new"]')
        assert the(store, "a") == moved
        store.lift(HoldKind.WORKFLOW, "w")
        [released] = store.release_starts(at(20), 10)
        assert released.wake_at == at(40)


def _give(store: Store, run_id: str, key: str) -> None:
    """Give a key to a run that was started without one."""
    if isinstance(store, MemoryStore):
        store._keys[run_id] = KeyRecord(run_id=run_id, workflow="w", key=key, taken_at=NOW)
        store._key_holders["w", key] = run_id
    else:
        assert isinstance(store, SQLiteStore | PostgresStore)
        RunKey.objects.using(store.alias).create(run_id=run_id, workflow="w", key=key, taken_at=NOW)


class TestMessagesLeft:
    """A run with a key is not completed while messages that were sent to the key are in its inbox."""

    @pytest.mark.parametrize("parts", [{}, {"entries": [an_entry()]}, {"received": [("other", "a")]}])
    def test_the_commit_is_refused_whole(self, store: Store, parts: dict[str, Any]) -> None:
        held = claimed_with(store, "mine", "other")
        with pytest.raises(MessagesLeft):
            complete(store, held, **parts)
        assert the(store) == held
        assert store.history("run") == []
        assert [each.state for each in store.messages("run")] == ["pending", "pending"]
        assert holder(store) == "run"

    def test_a_child_too(self, store: Store) -> None:
        parent = started(store, "parent")
        start_children(store, parent, a_child("run", "parent", key="k"))
        held = claimed_with(store, "mine", "other", is_new=False)
        with pytest.raises(MessagesLeft):
            complete(store, held, parent_id="parent")
        assert the(store) == held

    def test_it_goes_on_once_they_are_received_or_gone(self, store: Store) -> None:
        held = claimed_with(store, "mine", "other")
        complete(store, held, received=[("mine", "a")])
        assert the(store).state == "completed"
        assert holder(store) is None

    def test_only_a_completion_of_a_run_that_has_its_key(self, store: Store) -> None:
        held = claimed_with(store, "mine", "other")
        store.free_key("run", for_good=False)
        complete(store, held)
        assert the(store).state == "completed"

    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
    def test_other_ends_keep_them(self, store: Store, state: RunState) -> None:
        held = claimed_with(store, "mine", "other")
        finished(store, held, state)
        assert [each.message_id for each in store.keyed_sends("run")] == ["mine"]


def claimed_with(store: Store, keyed: str, other: str, *, is_new: bool = True) -> RunRecord:
    """A run with a key that a worker has: one message was sent to its key, another one to itself."""
    if is_new:
        store.start_keyed(a_run(), "k")
    store.send([a_message(id=keyed), a_message(id=other)])
    store.note_keyed_sends([KeyedSend(message_id=keyed, run_id="run")])
    return claimed(store, "run")


def complete(store: Store, held: RunRecord, **parts: Any) -> None:
    commit(store, held, run=transitions.completed(held, now=NOW, output="1"), **parts)


# -- keys of children, in each store: the commit of the parent takes them, and an end frees them


def test_the_commit_takes_the_key_and_the_end_frees_it(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a", key="k"), a_child("b", key="other"), a_child("c", key=None))
    assert (holder(store), holder(store, "other")) == ("a", "b")
    assert store.keys(["a", "c"])["a"].is_open
    assert "c" not in store.keys(["a", "c"])
    finish(store, "a", at(1))
    assert holder(store) is None
    start_children(store, held, a_child("d", key="k"))
    assert holder(store) == "d"


@pytest.mark.parametrize("first", ["start", "child"])
def test_nothing_is_written_if_the_key_is_taken(store: Store, first: str) -> None:
    if first == "start":
        store.start_keyed(a_run("a"), "k")
    else:
        start_children(store, started(store, "other"), a_child("a", "other", key="k"))
    held = started(store, "parent")
    with pytest.raises(ChildKeyTaken) as error:
        start_children_and_record(store, held, a_child("b", key="k"), a_child("c", key="free"))
    assert error.value.run_id == "b"
    assert store.get("b") is None
    assert (store.history("parent"), holder(store), holder(store, "free")) == ([], "a", None)
    cancel(store, "a")
    start_children_and_record(store, held, a_child("b", key="k"), a_child("c", key="free"))
    assert (holder(store), holder(store, "free"), len(store.history("parent"))) == ("b", "c", 1)


def start_children_and_record(store: Store, held: RunRecord, *starts: ChildStart) -> None:
    commit(store, held, starts=starts, entries=[an_entry("a")])


def test_a_worker_that_has_lost_its_lease_takes_no_key(store: Store) -> None:
    held = started(store, "parent")
    with pytest.raises(LeaseLost):
        commit(store, held, fence=held.fence - 1, starts=[a_child("a", key="k")])
    assert (holder(store), store.get("a")) == (None, None)
    assert store.keys(["a"]) == {}


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_commit_is_repeated(store: Store, has_ended: bool) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a", key="k"))
    if has_ended:
        cancel(store, "a")
        store.start_keyed(a_run("next"), "k")
    start_children(store, held, a_child("a", key="k"))
    assert holder(store) == ("next" if has_ended else "a")


def test_the_id_is_anothers(store: Store) -> None:
    store.create([a_run("a")])
    held = started(store, "parent")
    with pytest.raises(ChildIdTaken):
        start_children(store, held, a_child("a", key="k"))
    assert holder(store) is None


def test_the_end_of_a_parent_frees_the_keys_of_its_children(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a", key="k"))
    cancel(store, "parent")
    assert the(store, "a").state == RunState.CANCELLED
    assert holder(store) is None
    assert store.start_keyed(a_run("next"), "k")[1]
