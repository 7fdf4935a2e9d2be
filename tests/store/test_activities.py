"""Activities: what runs now, as each store notes it, and what a lease has to do with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable.core.records import Activity, ActivityKind, AskedOfActivity, RunChange, RunRecord
from durable.models import Activity as ActivityModel
from durable.models import Run
from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.conftest import POSTGRES
from tests.store.making import HOSTILE, NOW, a_run, again, at, held, the

LONG_NAME = "n" * 1_000


def running(fence: int, location: str = "charge", **values: Any) -> Activity:
    usual = {
        "run_id": "run",
        "attempt": 1,
        "kind": ActivityKind.STEP.value,
        "worker": "w",
        "began_at": NOW,
        "timeout": 9.5,
    }
    return Activity(**{**usual, "location": location, "fence": fence, **values})


def noted(store: Store) -> list[Activity]:
    """The activities of the store by run and location."""
    if isinstance(store, MemoryStore):
        return sorted(store._activities.running(), key=lambda each: (each.run_id, each.location))
    assert isinstance(store, SQLiteStore | PostgresStore)
    names = list(Activity.__slots__)
    rows = ActivityModel.objects.using(store.alias).order_by("run_id", "location")
    return [Activity(**{name: getattr(row, name) for name in names}) for row in rows]


def test_what_has_begun_is_noted_and_what_has_ended_is_deleted(store: Store) -> None:
    fence = held(store)
    first, second = running(fence), running(fence, "label", attempt=3, kind="rollback", timeout=0.0)
    assert store.report([second, first], [], ["run"]) == ({}, [])
    assert noted(store) == [first, second]
    store.report([], [first], ["run"])
    assert noted(store) == [second]
    store.report([running(fence, "mail")], [second], ["run"])
    assert [each.location for each in noted(store)] == ["mail"]


def test_the_next_attempt_replaces_the_one_before(store: Store) -> None:
    fence = held(store)
    store.report([running(fence)], [], [])
    store.report([running(fence, attempt=2, began_at=at(60))], [], [])
    assert noted(store) == [running(fence, attempt=2, began_at=at(60))]


def test_a_worker_without_the_lease_notes_nothing(store: Store) -> None:
    old = held(store)
    new = again(store)
    store.report([running(old), running(new, "unknown", run_id="unknown")], [], ["run", "unknown"])
    assert noted(store) == []
    store.report([running(new)], [], [])
    store.report([running(old)], [running(old)], [])
    assert noted(store) == [running(new)]


def test_a_later_lease_takes_over_what_a_dead_worker_has_left(store: Store) -> None:
    old = held(store)
    store.report([running(old), running(old, "label")], [], [])
    new = again(store)
    store.report([running(new)], [], [])
    assert noted(store) == [running(new), running(old, "label")]
    store.forget_activities()
    assert noted(store) == [running(new)]


def test_a_released_run_has_no_activities(store: Store) -> None:
    fence = held(store)
    store.report([running(fence)], [], [])
    store.release([("run", fence)], NOW)
    store.forget_activities()
    assert noted(store) == []


def test_names_of_any_text_and_length_are_noted(store: Store) -> None:
    fence = held(store)
    every = [running(fence, f"step {name}", worker=name) for name in [*HOSTILE, LONG_NAME]]
    store.report(every, [], [])
    assert {(each.location, each.worker) for each in noted(store)} == {(each.location, each.worker) for each in every}
    store.report([], every, [])
    assert noted(store) == []


def test_requests_of_the_watched_runs_come_with_it(store: Store) -> None:
    fence = held(store)
    store.create([a_run("other")])
    for run_id in ("run", "other"):
        store.change(run_id, lambda run, _: _paused(run))
    assert store.report([running(fence)], [], ["run"]) == ({"run": "pause"}, [])
    assert store.report([], [], ["run", "other"]) == ({"run": "pause", "other": "pause"}, [])


def _paused(run: RunRecord) -> RunChange:
    return RunChange(run={"pending_request": "pause", "change_seq": run.change_seq + 1})


def test_what_operators_ask_is_sent_until_it_is_answered(store: Store) -> None:
    fence = held(store)
    store.report([running(fence), running(fence, "label", began_at=at(1))], [], [])
    run = the(store, "run")
    assert store.ask_activities(run, "charge", NOW, stack=True) == ["charge"]
    wish = AskedOfActivity(run_id="run", location="charge", attempt=1, fence=fence, stack=True, abandon=False)
    assert store.report([], [], ["run"]) == ({}, [wish])
    assert store.report([], [], ["other"]) == ({}, [])
    store.answer_stack(wish, "line 1\x00\ud800", at(3))
    assert store.report([], [], ["run"]) == ({}, [])
    assert store.ask_activities(run, "", NOW, abandon=True) == ["charge", "label"]
    _, wishes = store.report([], [], ["run"])
    assert sorted((each.location, each.stack, each.abandon) for each in wishes) == [
        ("charge", False, True),
        ("label", False, True),
    ]
    assert store.ask_activities(run, "unknown", NOW, stack=True) == []
    assert store.ask_activities(replace(run, fence=fence + 1), "", NOW, stack=True) == []


def test_a_stack_of_any_text_is_stored(database_store: SQLiteStore | PostgresStore) -> None:
    store, fence = database_store, held(database_store)
    store.report([running(fence)], [], [])
    store.ask_activities(the(store, "run"), "", NOW, stack=True)
    [wish] = store.report([], [], ["run"])[1]
    store.answer_stack(wish, "line 1\x00\ud800", at(3))
    [row] = ActivityModel.objects.using(store.alias)
    assert (row.stack, row.stack_taken_at) == ("line 1\x00\ud800", at(3))
    store.ask_activities(the(store, "run"), "", at(5), stack=True)
    [row] = ActivityModel.objects.using(store.alias)
    assert (row.stack, row.stack_taken_at) == ("", None)


def test_what_was_asked_of_an_attempt_is_not_asked_of_the_next(store: Store) -> None:
    fence = held(store)
    store.report([running(fence)], [], [])
    store.ask_activities(the(store, "run"), "", NOW, stack=True, abandon=True)
    _, asked = store.report([running(fence, attempt=2)], [], ["run"])
    assert {each.attempt for each in asked} <= {1}  # PostgreSQL answers from before the statement
    assert store.report([], [], ["run"]) == ({}, [])


def test_only_live_leases_have_current_activities(database_store: SQLiteStore | PostgresStore) -> None:
    store, fence = database_store, held(database_store)
    store.report([running(fence)], [], [])
    rows = ActivityModel.objects.using(store.alias)
    assert rows.current(NOW).count() == 1
    assert rows.current(at(31)).count() == 0
    Run.objects.using(store.alias).update(fence=fence + 1)
    assert rows.current(NOW).count() == 0


@pytest.mark.parametrize("changed", [True, False])
def test_on_postgresql_a_report_is_one_statement(postgres_store: PostgresStore, changed: bool) -> None:
    fence = held(postgres_store)
    begun = [running(fence)] if changed else []
    with CaptureQueriesContext(connections[POSTGRES]) as queries:
        postgres_store.report(begun, [running(fence, "label")] if changed else [], ["run"])
    assert len(queries) == 1
