"""The failure of a run: written with the commit that makes it failed, closed by the verb that lets it continue."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo, Origin
from durable.core.records import Cause, FailureRecord, RunChange, RunState
from durable.models import Cause as CauseModel
from durable.models import CauseBuild, Failure
from durable.models.causes import names_of
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.conftest import POSTGRES
from tests.store.family import a_child, start_children
from tests.store.making import DECLINED, HOSTILE, LEASE, NOW, a_failure, a_run, at, commit, finished, started, the

ENDS: dict[str, Any] = {"state": RunState.FAILED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}


def failed(store: Store, run_id: str = "run", **values: Any) -> FailureRecord:
    """The failure of a new run."""
    failure = a_failure(run_id, **values)
    commit(store, started(store, run_id), run=ENDS, failure=failure)
    return failure


def recover(store: Store, run_id: str = "run") -> None:
    patch: Any = {"state": RunState.PENDING, "wake_at": NOW, "finished_at": None}
    store.change(run_id, lambda _run, _entries: RunChange(run=patch))


def test_a_failure_is_written_with_its_run(store: Store) -> None:
    failure = failed(store)
    assert store.failure("run") == failure
    assert the(store).state == RunState.FAILED


def test_a_run_that_does_not_fail_has_none(store: Store) -> None:
    finished(store, started(store))
    assert store.failure("run") is None
    assert store.failure("no such run") is None


def test_any_text_is_kept(store: Store) -> None:
    for number, text in enumerate(HOSTILE):
        failure = failed(store, f"run {number}", cause=Cause(place=text, error_type=text, pattern=text), worker=text)
        assert store.failure(failure.run_id) == failure


def test_the_error_of_a_run_keeps_what_it_comes_from(store: Store) -> None:
    for number, text in enumerate(HOSTILE):
        error = ErrorInfo("JoinError", text, text, Origin(text, text, text, text))
        commit(store, started(store, f"run {number}"), run={**ENDS, "error": error}, failure=a_failure(f"run {number}"))
        assert the(store, f"run {number}").error == error


def test_a_run_that_was_lost_gets_none(store: Store) -> None:
    held = started(store)
    with pytest.raises(LeaseLost):
        commit(store, replace(held, fence=held.fence - 1), run=ENDS, failure=a_failure())
    assert store.failure("run") is None


def test_a_recovery_closes_the_failure_and_the_next_one_replaces_it(store: Store) -> None:
    failure = failed(store)
    recover(store)
    assert store.failure("run") == replace(failure, is_open=False)
    held = store.claim_run("run", now=at(9), lease_until=at(99), worker="other")
    assert held is not None
    other = a_failure(cause=replace(DECLINED, error_type="Other"), worker="other", failed_at=at(10))
    commit(store, held, run=ENDS, failure=other)
    assert store.failure("run") == other


def test_a_verb_that_leaves_a_run_failed_leaves_its_failure_open(store: Store) -> None:
    failure = failed(store)
    store.change("run", lambda _run, _entries: RunChange(run={"summary": "seen"}))
    assert store.failure("run") == failure


def test_a_change_that_is_refused_closes_nothing(store: Store) -> None:
    failure = failed(store)
    patch: Any = {"state": RunState.PENDING}  # which has no `finished_at`
    with pytest.raises(Exception, match="finished"):
        store.change("run", lambda _run, _entries: RunChange(run=patch))
    assert store.failure("run") == failure


def test_a_failure_is_undone_with_its_transaction(store: Store) -> None:
    def fail_and_raise() -> None:
        with store.transaction():
            failed(store)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_and_raise()
    assert store.failure("run") is None


def test_a_name_differs_with_each_part() -> None:
    parts = [("a", "b", "c"), ("x", "b", "c"), ("a", "x", "c"), ("a", "b", "x"), ("ab", "", "c"), ("a", "\udfff", "c")]
    found = {names_of(Cause(place=one, error_type=two, pattern=three))[0] for one, two, three in parts}
    assert len(found) == len(parts)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in found)


def test_nobody_finds_a_cause_by_trying_patterns(database_store: SQLiteStore | PostgresStore) -> None:
    """Its name is shown to users who may not see its pattern."""
    failed(database_store, "a")
    name = CauseModel.objects.using(database_store.alias).get().fingerprint
    text = f"{DECLINED.place}\0{DECLINED.error_type}\0{DECLINED.pattern}"
    assert name != hashlib.sha256(text.encode()).hexdigest()[:16]
    with override_settings(SECRET_KEY="another"):
        assert names_of(DECLINED)[0] != name


def test_a_known_cause_keeps_its_name(database_store: SQLiteStore | PostgresStore) -> None:
    """That of earlier versions, and of keys that were rotated."""
    causes = CauseModel.objects.using(database_store.alias)
    failed(database_store, "a")
    causes.update(fingerprint=names_of(DECLINED)[-1])
    failed(database_store, "b")
    assert causes.get().fingerprint == names_of(DECLINED)[-1]
    causes.update(fingerprint=names_of(DECLINED)[0])
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        failed(database_store, "c")
        assert causes.count() == 1
    with override_settings(SECRET_KEY="another"):
        failed(database_store, "d")
        assert causes.count() == 2


def test_failures_of_one_cause_share_its_row(database_store: SQLiteStore | PostgresStore) -> None:
    failed(database_store, "a")
    failed(database_store, "b", failed_at=at(5))
    failed(database_store, "c", cause=replace(DECLINED, pattern="other"))
    rows = CauseModel.objects.using(database_store.alias).order_by("id")
    assert [row.record for row in rows] == [DECLINED, replace(DECLINED, pattern="other")]
    assert [row.first_seen_at for row in rows] == [at(1), at(1)]
    assert [row.fingerprint for row in rows] == [names_of(row.record)[0] for row in rows]
    shared = Failure.objects.using(database_store.alias).filter(cause=rows[0])
    assert set(shared.values_list("run_id", flat=True)) == {"a", "b"}


def test_the_builds_that_have_seen_a_cause_are_noted_once(database_store: SQLiteStore | PostgresStore) -> None:
    assert failed(database_store, "a", build="7f3a").build == "7f3a"
    failed(database_store, "b", build="7f3a", failed_at=at(5))
    failed(database_store, "c", build="8a0c\x00", failed_at=at(6))
    failed(database_store, "d")
    stored = database_store.failure("c")
    assert stored is not None
    assert stored.build == "8a0c\x00"
    rows = CauseBuild.objects.using(database_store.alias).order_by("first_seen_at")
    assert [(row.build, row.first_seen_at) for row in rows] == [("7f3a", at(1)), ("8a0c\x00", at(6))]


def test_a_commit_that_fails_a_run_is_one_statement_too(postgres_store: PostgresStore) -> None:
    held = [started(postgres_store, each) for each in "abc"]
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        for each in held:
            commit(postgres_store, each, run=ENDS, failure=a_failure(each.id))
    assert ["durable_fail_2" in each["sql"] for each in captured.captured_queries] == [True] * 3


def test_the_failure_of_a_child_names_its_parent(database_store: SQLiteStore | PostgresStore) -> None:
    start_children(database_store, started(database_store, "parent"), a_child("child"))
    database_store.create([a_run("other", parent_id="parent")])  # as a step starts one
    rows = Failure.objects.using(database_store.alias)
    for run_id, parent in {"child": "parent", "other": None}.items():
        for _ in range(2):  # and once more after a recovery
            held = database_store.claim_run(run_id, now=NOW, lease_until=NOW + LEASE, worker="w")
            assert held is not None
            commit(database_store, held, run=ENDS, failure=a_failure(run_id))
            assert rows.get(run_id=run_id).parent_id == parent
            recover(database_store, run_id)
