"""Creating runs, reading them, and loading histories and outlines of them."""

from __future__ import annotations

import tracemalloc
from inspect import unwrap
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable.core.errors import ErrorInfo
from durable.core.records import EntryKind, EntryRecord, EntryStatus, RunState
from durable.core.rewind.replay import Replay
from durable.models.rows import BATCH_BYTES
from durable.operations.replay_plan import Relatives, build_plan, outlook_of
from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore, sql
from durable.store.rules import TableStore
from durable.store.sqlite import SQLiteStore
from tests.store.conftest import POSTGRES
from tests.store.making import HOSTILE, NOW, a_full_entry, a_message, a_run, an_entry, at, commit, sent, started, the


@pytest.mark.parametrize("kind", [MemoryStore, SQLiteStore, PostgresStore])
def test_a_store_has_each_method_of_the_contract(kind: type[Store]) -> None:
    # the stores are subclasses of it: a method that is missing would be found there, and return None
    names = [name for name in dir(Store) if not name.startswith("_")]
    assert len(names) > 100
    declared_only = {Store.__module__, TableStore.__module__}
    assert [name for name in names if unwrap(getattr(kind, name)).__module__ in declared_only] == []


def test_a_new_run_is_stored_as_given(store: Store) -> None:
    store.create([a_run("parent"), a_run("model")])
    run = a_run(
        "child",
        state=RunState.FAILED,
        output="1",
        error=ErrorInfo("E", "m", "t"),
        origins=["a/b"],
        wake_at=None,
        waiting_for="/x/",
        summary="waits",
        fence=3,
        worker="w1",
        crashes=2,
        change_seq=5,
        message_count=6,
        pending_request="pause",
        request_reason="because",
        state_after_rollback="failed",
        generations={"a": 2},
        diverged_at=at(1),
        started_at=at(2),
        finished_at=at(3),
        parent_id="parent",
        replay_of_id="model",
    )
    assert store.create([run]) == [(run, True)]
    assert store.get("child") == run
    assert store.get_many(["child", "none", "model"]) == {"child": run, "model": store.get("model")}
    assert store.get_many([]) == {}


def test_a_taken_id_gives_the_row_that_has_it(store: Store) -> None:
    held = started(store, "run")
    [(found, new)] = store.create([a_run("run", workflow="other", input="2")])
    assert not new
    assert found == held


def test_runs_are_answered_in_the_order_given_new_and_taken_mixed(store: Store) -> None:
    store.create([a_run("b")])
    created = store.create([a_run("c"), a_run("b", input="2"), a_run("a")])
    assert [(run.id, new) for run, new in created] == [("c", True), ("b", False), ("a", True)]
    assert the(store, "b").input == "[]"


def test_an_id_given_twice_is_created_once_with_its_first_input(store: Store) -> None:
    created = store.create([a_run("a", input="1"), a_run("a", input="2")])
    assert [(run.input, new) for run, new in created] == [("1", True), ("1", False)]


def test_creating_nothing_is_allowed(store: Store) -> None:
    assert store.create([]) == []


def test_ids_differ_in_case_accent_and_trailing_space(store: Store) -> None:
    ids = ["a", "A", "á", "a "]
    assert [new for _, new in store.create([a_run(each) for each in ids])] == [True] * 4
    assert [the(store, each).id for each in ids] == ids


def test_a_run_that_is_not_there_is_none_whatever_its_id(store: Store) -> None:
    for run_id in ["missing", "", *HOSTILE]:
        assert store.get(run_id) is None
        assert store.history(run_id) == []
        assert store.messages(run_id) == []
        assert store.attempts(run_id) == []


def test_what_a_caller_does_to_its_records_does_not_reach_the_store(store: Store) -> None:
    run = a_run("run", origins=["a"])
    [(returned, _)] = store.create([run])
    run.origins.append("b")
    run.state = RunState.FAILED
    returned.origins.append("c")
    the(store).origins.append("d")
    assert the(store).origins == ["a"]
    assert the(store).state == RunState.PENDING


def test_moments_keep_their_microseconds_and_are_aware(store: Store) -> None:
    store.create([a_run("run")])
    created_at = the(store).created_at
    assert created_at == NOW
    assert created_at.utcoffset() is not None


# -- histories of several runs at once: those that are short


def with_entries(store: Store, run_id: str, entries: list[EntryRecord]) -> dict[str, EntryRecord]:
    commit(store, started(store, run_id), entries=entries)
    return by_location(entries)


def by_location(entries: list[EntryRecord]) -> dict[str, EntryRecord]:
    return {entry.location: entry for entry in entries}


def test_each_short_history_comes_whole_and_a_long_one_not_at_all(store: Store) -> None:
    expected = {
        run_id: with_entries(store, run_id, [a_full_entry(f"{run_id}{number}", text) for number in range(length)])
        for run_id, length, text in [("one", 1, "x"), ("three", 3, "\x00"), ("four", 4, "y")]
    }
    started(store, "none")
    found = store.load_short(["four", "one", "none", "three", "nobody"], 3, 999)
    expected |= {"none": {}, "nobody": {}}
    del expected["four"]
    assert {run_id: by_location(history) for run_id, history in found.items()} == expected


def test_one_of_many_bytes_comes_not_at_all(store: Store) -> None:
    for run_id, length in (("small", 50), ("large", 51)):
        entries = [an_entry("a", output="x" * length), an_entry("b", arguments="y" * 50), an_entry("c")]
        with_entries(store, run_id, entries)
    assert list(store.load_short(["small", "large"], 9, 100)) == ["small"]


@pytest.mark.parametrize("run_id", [each for each in HOSTILE if each.isprintable() and "/" not in each])
def test_ids_are_kept_apart_whatever_they_are_made_of(store: Store, run_id: str) -> None:
    expected = with_entries(store, run_id, [an_entry("mine")])
    with_entries(store, "other", [an_entry("theirs")])
    found = store.load_short([run_id, "other"], 9, 999)
    assert by_location(found[run_id]) == expected
    assert list(by_location(found["other"])) == ["theirs"]


def test_of_no_runs_there_are_no_histories(store: Store) -> None:
    with_entries(store, "run", [an_entry()])
    assert store.load_short([], 9, 999) == {}


def test_observed_or_not_the_answer_is_the_same(postgres_store: PostgresStore) -> None:
    for run_id in "ab":
        with_entries(postgres_store, run_id, [a_full_entry("x", "ä\x1a"), an_entry("y")])
    plain = postgres_store.load_short(["a", "b"], 5, 999)
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        observed: Any = postgres_store.load_short(["a", "b"], 5, 999)
    assert len(captured) == 1
    assert {run: by_location(entries) for run, entries in observed.items()} == {
        run: by_location(entries) for run, entries in plain.items()
    }


@pytest.mark.usefixtures("new_tables")
def test_metadata_of_other_runs_is_not_read(postgres_store: PostgresStore) -> None:
    for run_id in ("one", "two"):
        with_entries(postgres_store, run_id, [an_entry(f"step-{number}") for number in range(2000)])
    asked: list[tuple[str, dict[str, Any]]] = [
        (sql.LOAD, {"run": "one"}),
        (sql.LOAD_SHORT, {"runs": ["one"], "most": 9999, "size": 99999}),
    ]
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("ANALYZE durable_entry, durable_entrymetadata")
        for statement, parameters in asked:
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on durable_entrymetadata" not in plan, plan


# -- the outline of a run has what a plan of a replay needs, and none of the values that steps and messages carry


VALUE = "VALUE"


def entries_of_every_kind(value: str) -> list[EntryRecord]:
    done: dict[str, Any] = {"status": EntryStatus.COMPLETED, "completed_at": at(1), "attempts": 1, "output": value}
    branch = {"status": "completed", "output": value, "open": {"m": "wait"}}
    found = [
        an_entry(
            "a", **done, arguments=value, finished_ordinal=1, data={"rollback": {"handler": "x.y", "attempts": 1}}
        ),
        an_entry("wait", kind=EntryKind.MESSAGE, data={"names": ["mail"], "received": [{"id": "m", "body": value}]}),
        an_entry("l", kind=EntryKind.LOOP, data={"iteration": 2, "state": value, "pruned": 1}),
        an_entry(
            "l/~2/b",
            status=EntryStatus.FAILED,
            error=ErrorInfo("E", value, value),
            rollback_error=ErrorInfo("E", value),
        ),
        an_entry(
            "j", kind=EntryKind.JOIN, data={"branches": {"one": branch, "two": {"status": "failed", "error": [value]}}}
        ),
        an_entry("j/one/c", **done, finished_ordinal=2),
        an_entry("r", kind=EntryKind.RACE, **done, data={"branches": {"x": branch}, "winner": "x"}),
        an_entry(
            "send~0", kind=EntryKind.SEND, arguments=value, data={"queue": "mail", "to": "run", "message_id": "m"}
        ),
        an_entry("late", kind=EntryKind.SLEEP, data={"state": "pending", "deadline": "2026-01-01"}),
    ]
    for number, entry in enumerate(found):
        entry.ordinal = number
    return found


def filled(store: Store, value: str) -> None:
    held = started(store)
    commit(store, held, entries=entries_of_every_kind(value))
    sent(store, a_message(id="m", body=value))
    sent(store, a_message(id="n", body=value))
    commit(store, held, received=[("m", "wait")], completed=[("m", value)])


def test_no_value_is_in_it(store: Store) -> None:
    filled(store, VALUE)
    entries, messages = store.outline("run")
    assert VALUE not in repr((entries, messages))
    assert [each.location for each in entries] == [each.location for each in store.history("run")]
    assert [each.id for each in messages] == ["m", "n"]
    assert [(each.received_by, each.state) for each in messages] == [("wait", "completed"), ("", "pending")]


def test_a_plan_made_of_it_is_the_plan(store: Store) -> None:
    filled(store, VALUE)
    run, outline = the(store), store.outline("run")
    whole = store.history("run"), store.messages("run")
    for target in [each.location for each in whole[0]] + ["l/~1", "j/two"]:
        plans = [
            build_plan(outlook_of(Replay(run, entries, messages, target), entries, Relatives(), NOW), NOW)
            for entries, messages in (outline, whole)
        ]
        assert plans[0] == plans[1]


def test_a_run_of_nothing(store: Store) -> None:
    started(store)
    assert store.outline("run") == ([], [])
    assert store.outline("nobody") == ([], [])


@pytest.mark.parametrize("kind", [EntryKind.STEP, EntryKind.MESSAGE, EntryKind.LOOP, EntryKind.JOIN])
def test_what_it_takes_does_not_grow_with_the_values(database_store: Store, kind: EntryKind) -> None:
    held, number = started(database_store), 12
    value = "x" * (BATCH_BYTES // 4)
    by_kind: dict[EntryKind, dict[str, Any]] = {
        EntryKind.STEP: {},
        EntryKind.MESSAGE: {"received": [{"id": "m", "body": value}]},
        EntryKind.LOOP: {"iteration": 0, "state": value},
        EntryKind.JOIN: {"branches": {"one": {"status": "completed", "output": value}}},
    }
    for each in range(number):
        commit(database_store, held, entries=[an_entry(f"e{each}", kind=kind, output=value, data=by_kind[kind])])
        sent(database_store, a_message(id=f"m{each}", body=value))
    tracemalloc.start()
    try:
        entries, messages = database_store.outline("run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(entries), len(messages)) == (number, number)
    assert peak < 3.5 * BATCH_BYTES < number * len(value) * 2
