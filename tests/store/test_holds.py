"""Holds in every store: a paused queue gives no run to a claim, and a held workflow pauses its new runs."""

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from durable.core import transitions
from durable.core.records import Hold, HoldKind, RunChange, RunRecord, RunState
from durable.core.summary import Summary, SummaryKind
from durable.models import HeldStart
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.conftest import POSTGRES
from tests.store.making import HOSTILE, NOW, a_run, at, cancel, changed, the
from tests.support.locks import until_sessions_wait_for_locks

SUMMARY = 'paused at its start: new starts of "w" are held by ada: bank is down'


def a_hold(kind: HoldKind = HoldKind.WORKFLOW, name: str = "w") -> Hold:
    return Hold(kind=kind, name=name, held_at=NOW, held_by="ada", reason="bank is down")


def claim(store: Store, *queues: str, now: datetime = NOW) -> list[str]:
    return [
        run.id for each in queues for run in store.claim(queue=each, now=now, lease_until=at(30), worker="w", limit=9)
    ]


def held(run: RunRecord) -> RunRecord:
    return replace(run, **transitions.paused_at_once(run, summary=SUMMARY))


class TestEither:
    @pytest.mark.parametrize("kind", HoldKind)
    def test_it_is_there_until_it_is_lifted(self, store: Store, kind: HoldKind) -> None:
        for name in ["w", *HOSTILE]:
            hold = a_hold(kind, name)
            assert store.held(kind, name) is None
            assert store.hold(hold)
            assert not store.hold(replace(hold, held_by="eve", held_at=at(5)))
            assert store.held(kind, name) == hold
            other = HoldKind.QUEUE if kind is HoldKind.WORKFLOW else HoldKind.WORKFLOW
            assert store.held(other, name) is None
            assert store.lift(kind, name)
            assert not store.lift(kind, name)
            assert store.held(kind, name) is None


class TestAPausedQueue:
    def test_its_runs_are_not_claimed_until_it_is_resumed(self, store: Store) -> None:
        store.create([a_run("a", queue="slow"), a_run("b", queue="fast")])
        store.hold(a_hold(HoldKind.QUEUE, "slow"))
        assert claim(store, "slow") == []
        assert claim(store, "slow", "fast") == ["b"]
        assert store.claim_run("a", now=NOW, lease_until=at(30), worker="w") is None
        assert store.due_queues(at(1)) == []
        assert store.due_queues(at(1), queues=["slow"]) == []
        assert the(store, "a") == a_run("a", queue="slow")
        store.lift(HoldKind.QUEUE, "slow")
        assert store.due_queues(at(1)) == ["slow"]
        assert claim(store, "slow") == ["a"]

    def test_a_run_of_a_dead_worker_waits_too(self, store: Store) -> None:
        store.create([a_run("a", queue="slow")])
        assert claim(store, "slow") == ["a"]
        store.hold(a_hold(HoldKind.QUEUE, "slow"))
        assert claim(store, "slow", now=at(60)) == []

    def test_its_runs_may_be_steered(self, store: Store) -> None:
        store.hold(a_hold(HoldKind.QUEUE, "slow"))
        store.create([a_run("a", queue="slow")])
        patch = transitions.woken(the(store, "a"), now=at(3))
        assert store.change("a", lambda _run, _entries: RunChange(run=patch)).wake_at == at(3)

    def test_a_hold_of_a_workflow_of_that_name_pauses_no_queue(self, store: Store) -> None:
        store.create([a_run("a", queue="slow")])
        store.hold(a_hold(HoldKind.WORKFLOW, "slow"))
        assert claim(store, "slow") == ["a"]

    def test_a_claim_is_one_statement_and_says_that_the_queue_is_paused(self, postgres_store: PostgresStore) -> None:
        postgres_store.hold(a_hold(HoldKind.QUEUE, "q"))
        postgres_store.create([a_run("a", queue="q")])
        with CaptureQueriesContext(connections[POSTGRES]) as captured:
            found = postgres_store.claim(queue="q", now=NOW, lease_until=at(30), worker="w", limit=9)
        assert (list(found), found.is_paused, len(captured)) == ([], True, 1)
        postgres_store.lift(HoldKind.QUEUE, "q")
        assert not postgres_store.claim(queue="q", now=NOW, lease_until=at(30), worker="w", limit=9).is_paused


class TestAHeldWorkflow:
    def test_new_runs_are_paused_and_say_why(self, store: Store) -> None:
        store.hold(a_hold())
        one, two, other = a_run("one"), a_run("two"), a_run("other", workflow="x")
        assert store.create([one]) == [(held(one), True)]
        assert store.create([two, other, one]) == [(held(two), True), (other, True), (held(one), False)]
        for run in (one, two):
            assert the(store, run.id) == held(run)
            assert Summary.load(the(store, run.id).summary).kind is SummaryKind.HELD
        assert the(store, "other") == other
        assert claim(store, "q", one.queue) == ["other"]

    def test_runs_that_are_there_go_on(self, store: Store) -> None:
        run = a_run("a")
        store.create([run])
        store.hold(a_hold())
        assert store.create([run]) == [(run, False)]
        assert store.release_starts(NOW, 9) == []
        assert claim(store, run.queue) == ["a"]

    def test_a_release_resumes_what_the_hold_has_paused_and_no_others(self, store: Store) -> None:
        before = a_run("before")
        store.create([before])
        changed(store, "before", transitions.paused_at_once, summary="paused")
        store.hold(a_hold())
        names = ("held", "later", "resumed", "cancelled", "paused again")
        store.create([a_run(each, wake_at=at(900) if each == "later" else NOW) for each in names])
        for each in ("resumed", "paused again"):
            changed(store, each, transitions.resumed, now=NOW, summary="")
        changed(store, "paused again", transitions.paused_at_once, summary="paused")
        cancel(store, "cancelled")
        rows = {each: the(store, each) for each in (*names, "before")}
        assert store.release_starts(at(5), 9) == []  # the hold is still there
        store.lift(HoldKind.WORKFLOW, "w")
        resumed = Summary(SummaryKind.RESUMED)
        wanted = {
            "held": transitions.resumed(rows["held"], now=at(5), summary=resumed),
            "later": transitions.resumed(rows["later"], now=at(900), summary=resumed),
        }
        expected = {each: replace(rows[each], **patch) for each, patch in wanted.items()}
        assert {run.id: run for run in store.release_starts(at(5), 9)} == expected
        assert {each: the(store, each) for each in rows} == rows | expected
        assert store.release_starts(at(5), 9) == []

    def test_a_release_is_made_in_parts(self, store: Store) -> None:
        store.hold(a_hold())
        store.create([a_run(str(number)) for number in range(5)])
        store.lift(HoldKind.WORKFLOW, "w")
        parts = [[run.id for run in store.release_starts(NOW, 2)] for _ in range(4)]
        assert [len(each) for each in parts] == [2, 2, 1, 0]
        assert sorted(run_id for part in parts for run_id in part) == list("01234")

    def test_what_operators_have_resumed_meanwhile_ends_no_part(self, store: Store) -> None:
        store.hold(a_hold())
        store.create([a_run(str(number)) for number in range(7)])
        for each in "01235":
            changed(store, each, transitions.resumed, now=NOW, summary="")
        for each in "35":
            changed(store, each, transitions.paused_at_once, summary="paused")
        store.lift(HoldKind.WORKFLOW, "w")
        assert [run.id for run in store.release_starts(NOW, 2)] == ["4", "6"]
        assert store.release_starts(NOW, 2) == []

    def test_a_run_that_is_not_new_is_not_held(self, store: Store) -> None:
        store.hold(a_hold())
        planted = a_run("a", state=RunState.PAUSED, wake_at=None, summary="planted")
        assert store.create([planted]) == [(planted, True)]
        store.lift(HoldKind.WORKFLOW, "w")
        assert store.release_starts(NOW, 9) == []

    def test_a_start_is_still_one_statement(self, postgres_store: PostgresStore) -> None:
        for is_held in (False, True):
            if is_held:
                postgres_store.hold(a_hold())
            with CaptureQueriesContext(connections[POSTGRES]) as captured:
                postgres_store.create([a_run(f"one {is_held}", parent_id=None)])
                postgres_store.create([a_run(f"{each} {is_held}") for each in ("two", "three")])
            assert len(captured) == 2
        assert HeldStart.objects.using(POSTGRES).count() == 3

    def test_a_start_that_is_undone_leaves_nothing(self, database_store: SQLiteStore | PostgresStore) -> None:
        database_store.hold(a_hold())

        with suppress(ZeroDivisionError), database_store.transaction():
            database_store.create([a_run("a")])
            raise ZeroDivisionError
        assert not HeldStart.objects.using(database_store.alias).exists()

    def test_a_release_waits_for_a_start_that_has_met_the_hold(self, postgres_store: PostgresStore) -> None:
        """Otherwise the run would be committed, paused, after the hold has gone, and nobody would resume it."""
        postgres_store.hold(a_hold())
        lifted = threading.Event()

        def lift() -> None:
            postgres_store.lift(HoldKind.WORKFLOW, "w")
            lifted.set()
            connections.close_all()

        release = threading.Thread(target=lift)
        with transaction.atomic(using=POSTGRES):
            postgres_store.create([a_run("a", parent_id=None)])
            postgres_store.create([a_run("b"), a_run("c")])
            release.start()
            until_sessions_wait_for_locks(POSTGRES)
            assert not lifted.is_set()
        release.join(60)
        assert lifted.is_set()
        assert sorted(run.id for run in postgres_store.release_starts(NOW, 9)) == ["a", "b", "c"]
