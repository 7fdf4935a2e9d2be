"""Retention: what is deleted, what stays, and that no other session waits for it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import ProtectedError
from django.db.models.signals import pre_delete
from django.test import override_settings
from django.utils import timezone

from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, EntryKind, EntryStatus, MessageState, RunState
from durable.models import (
    Attempt,
    Cascade,
    Cause,
    Child,
    ChildGroup,
    ChildReader,
    Entry,
    EntryMetadata,
    Failure,
    OperatorAction,
    QueueMessage,
    Run,
    Turn,
)
from durable.retention import Policy, Pruned, Pruner
from durable.store import store_for
from durable.worker import timer
from durable.worker.timer import Sweep

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = 86_400.0
_numbers = itertools.count()


@pytest.fixture
def _rows(db: None) -> None:
    """Rows in a transaction that is rolled back."""


def a_run(
    run_id: str, state: str = "completed", *, days: float = 10, workflow: str = "shop.fulfil", **more: Any
) -> Run:
    """A run that ended so many days before NOW."""
    ended_at = NOW - timedelta(days=days) if state in ENDED else None
    return Run.objects.create(
        id=run_id,
        workflow=workflow,
        queue="default",
        state=state,
        input="{}",
        created_at=NOW - timedelta(days=days, hours=1),
        finished_at=ended_at,
        **more,
    )


def with_all(run: Run, entries: int = 1) -> Run:
    """The run with entries, a failed attempt and a message."""
    for _ in range(entries):
        entry = Entry.objects.create(run=run, location=f"step {next(_numbers)}", kind=EntryKind.STEP, ordinal=1)
        EntryMetadata.objects.create(entry=entry, status=EntryStatus.COMPLETED, created_at=NOW)
    Attempt.objects.create(
        run=run, location="step", number=1, started_at=NOW, finished_at=NOW, error=ErrorInfo("ValueError", "no")
    )
    QueueMessage.objects.create(
        id=f"m{next(_numbers)}", run=run, queue="news", body="1", sent_at=NOW, order=1, state=MessageState.PENDING
    )
    return run


def a_cause(name: str, **more: Any) -> Cause:
    """A cause that was first seen before all runs."""
    values = {"error_type": "E", "first_seen_at": NOW - timedelta(days=99), **more}
    return Cause.objects.create(fingerprint=name, **values)


def fail(run: Run, cause: Cause) -> None:
    """Record the failure of a failed run."""
    assert run.finished_at is not None
    Failure.objects.create(
        run=run,
        cause=cause,
        workflow=run.workflow,
        queue=run.queue,
        failed_at=run.finished_at,
        run_created_at=run.created_at,
    )


def an_action(days: float, run_id: str = "") -> OperatorAction:
    return OperatorAction.objects.create(
        source="cli", action="cancel", run_id=run_id, outcome="done", created_at=NOW - timedelta(days=days)
    )


def prune(policy: Policy) -> Pruned:
    return sum(Pruner(policy, "default").batches(NOW), Pruned())


def runs() -> set[str]:
    return set(Run.objects.values_list("id", flat=True))


class TestPolicy:
    def test_nothing_goes_unless_it_is_said(self) -> None:
        assert Policy.of(None).keeps_all
        assert Policy.of({}).keeps_all
        assert Policy.of({"workflows": {"a": None}}).keeps_all

    def test_one_time_is_for_all(self) -> None:
        policy = Policy.of(timedelta(days=30))
        assert {policy.of_run("any", state) for state in ENDED} == {30 * DAY}
        assert policy.audit == 30 * DAY

    def test_a_workflow_says_what_differs(self) -> None:
        policy = Policy.of(
            {
                "completed": DAY,
                "failed": None,
                "workflows": {"a": {"failed": 2 * DAY}, "b": None, "c": timedelta(hours=1)},
            }
        )
        assert [policy.of_run("other", state) for state in ("completed", "failed", "cancelled")] == [DAY, None, None]
        assert [policy.of_run("a", state) for state in ("completed", "failed", "cancelled")] == [DAY, 2 * DAY, None]
        assert [policy.of_run("b", state) for state in ("completed", "failed")] == [None, None]
        assert [policy.of_run("c", state) for state in ("completed", "cancelled")] == [3600, 3600]
        assert policy.audit is None


@pytest.mark.usefixtures("_rows")
class TestPruning:
    def test_a_run_goes_with_all_that_is_its_own(self) -> None:
        with_all(a_run("old"), entries=3)
        with_all(a_run("young", days=1))
        gone = prune(Policy.of({"completed": 7 * DAY}))
        assert gone == Pruned(runs=1, entries=3, attempts=1, messages=1)
        assert runs() == {"young"}
        for model in (Entry, Attempt, QueueMessage):
            assert model.objects.values_list("run_id", flat=True).get() == "young"
        assert EntryMetadata.objects.count() == 1

    def test_a_failure_goes_with_its_run_and_a_cause_with_its_last_failure(self) -> None:
        shared, lone = a_cause("shared"), a_cause("lone")
        muted, new = a_cause("muted", muted_at=NOW), a_cause("new", first_seen_at=NOW)
        for run_id, cause, days in [("a", lone, 9), ("b", shared, 9), ("c", shared, 1), ("d", muted, 9)]:
            fail(a_run(run_id, "failed", days=days), cause)
        gone = prune(Policy.of({"failed": 7 * DAY}))
        assert gone == Pruned(runs=3)
        assert runs() == {"c"} == set(Failure.objects.values_list("run_id", flat=True))
        assert set(Cause.objects.all()) == {shared, muted, new}

    def test_each_state_has_its_time_and_what_has_not_ended_none(self) -> None:
        for state in RunState:
            a_run(str(state), str(state), days=10)
        prune(Policy.of({"completed": 7 * DAY, "failed": 30 * DAY, "cancelled": DAY}))
        assert runs() == {str(state) for state in RunState} - {"completed", "cancelled"}

    def test_each_workflow_has_its_time(self) -> None:
        for workflow in ("kept", "other", "short"):
            a_run(f"{workflow} old", workflow=workflow, days=10)
            a_run(f"{workflow} young", workflow=workflow, days=2)
        prune(Policy.of({"completed": 7 * DAY, "workflows": {"kept": None, "short": DAY}}))
        assert runs() == {"kept old", "kept young", "other young"}

    def test_a_child_and_a_replay_stay_and_forget_where_they_came_from(self) -> None:
        old = a_run("old")
        a_run("child", "sleeping", parent=old)
        a_run("replay", "failed", days=1, replay_of=old)
        prune(Policy.of(7 * DAY))
        assert runs() == {"child", "replay"}
        assert not Run.objects.exclude(parent=None, replay_of=None).exists()

    def test_a_child_stays_as_long_as_its_failed_parent_can_be_recovered(self) -> None:
        a_run("parent", "failed")
        child = a_run("child", parent_id="parent")
        Child.objects.create(run=child, parent_id="parent", location="c", when_parent_ends="cancel", position=1)
        prune(Policy.of({"completed": 7 * DAY, "failed": 30 * DAY}))
        assert runs() == {"parent", "child"}

    @pytest.mark.parametrize(("state", "is_kept"), [("failed", True), ("sleeping", True), ("completed", False)])
    def test_a_child_stays_as_long_as_a_replay_of_its_parent_may_read_it(self, state: str, is_kept: bool) -> None:
        a_run("parent")
        child = a_run("child", parent_id="parent")
        Child.objects.create(run=child, parent_id="parent", location="c", when_parent_ends="cancel", position=1)
        a_run("reader", state, days=1)
        ChildReader.objects.create(run_id="reader", child_id="child")
        prune(Policy.of({"completed": 7 * DAY, "failed": 30 * DAY}))
        assert runs() == {"reader", *(["child"] if is_kept else [])}
        assert ChildReader.objects.count() == is_kept

    def test_an_ended_parent_stays_as_long_as_children_of_its_group_wait_for_their_turns(self) -> None:
        parent = a_run("parent")
        waiting = a_run("waiting", "pending", days=1, parent_id="parent")
        group = ChildGroup.objects.create(
            id="parent:bills",
            parent=parent,
            location="bills",
            size=2,
            position=1,
            at_once=1,
            on_failure="finish",
            when_parent_ends="leave",
        )
        Turn.objects.create(run=waiting, group=group, position=2, due_at=timezone.now())
        prune(Policy.of(7 * DAY))
        assert runs() == {"parent", "waiting"}
        Turn.objects.all().delete()
        prune(Policy.of(7 * DAY))
        assert runs() == {"waiting"}

    def test_a_child_stays_as_long_as_its_parent_is_open(self) -> None:
        for state in ("sleeping", "completed"):
            a_run(f"parent {state}", state, days=1)
            child = a_run(f"child {state}", parent_id=f"parent {state}")
            Child.objects.create(
                run=child, parent_id=f"parent {state}", location="c", when_parent_ends="cancel", position=1
            )
        prune(Policy.of(7 * DAY))
        assert runs() == {"parent sleeping", "child sleeping", "parent completed"}
        assert Child.objects.get().run_id == "child sleeping"

    def test_a_family_that_is_past_its_time_goes_together(self) -> None:
        old = a_run("old")
        a_run("child", parent=old, replay_of=old)
        assert prune(Policy.of(7 * DAY)).runs == 2

    def test_the_audit_log_goes_by_its_own_age(self) -> None:
        a_run("old")
        an_action(10, "old"), an_action(40, "old"), an_action(40)
        gone = prune(Policy.of({"completed": DAY, "audit": 30 * DAY}))
        assert (gone.runs, gone.actions) == (1, 2)
        assert OperatorAction.objects.get().run_id == "old"

    def test_many_go_in_batches_that_are_not_too_heavy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 4)
        monkeypatch.setattr("durable.retention.WEIGHT", 5)
        monkeypatch.setattr("durable.retention.ACTIONS", 2)
        for number in range(9):
            with_all(a_run(f"run {number}", days=20 - number), entries=2)
        with_all(a_run("heavy", days=1), entries=8)
        for _ in range(5):
            an_action(30)
        batches = list(Pruner(Policy.of(DAY / 2), "default").batches(NOW))
        assert [each.runs for each in batches if each.runs] == [2, 2, 2, 2, 1, 1]
        assert [each.actions for each in batches if each.actions] == [2, 2, 1]
        assert runs() == set()

    def test_runs_that_ended_at_one_moment_are_all_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 2)
        for number in range(7):
            a_run(f"run {number}", days=3)
        assert prune(Policy.of(DAY)).runs == 7

    def test_what_something_refers_to_stays_and_keeps_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 3)
        for number in range(8):
            with_all(a_run(f"run {number}", days=20 - number))

        def protect(instance: Run, **_: object) -> None:
            if instance.id in {"run 1", "run 2", "run 6"}:
                raise ProtectedError("an invoice refers to it", set())

        pre_delete.connect(protect, sender=Run)
        try:
            gone = prune(Policy.of(DAY))
        finally:
            pre_delete.disconnect(protect, sender=Run)
        assert gone.runs == gone.entries == 5
        assert runs() == {"run 1", "run 2", "run 6"}
        assert Entry.objects.count() == 3
        assert len([record for record in caplog.records if "an invoice" in record.message]) == 3

    def test_the_preview_says_what_would_go_and_stops_counting(self) -> None:
        for number in range(5):
            a_run(f"run {number}")
            an_action(10)
        pruner = Pruner(Policy.of(7 * DAY), "default")
        assert pruner.preview(NOW, 1000) == Pruned(runs=5, actions=5)
        assert pruner.preview(NOW, 3) == Pruned(runs=3, actions=3)
        assert len(runs()) == 5


class TestByHand:
    def test_states_and_a_workflow_narrow_it_and_leave_the_audit_log_alone(self) -> None:
        assert Policy.older_than(5.0) == Policy.of(5.0)
        failed = Policy.older_than(5.0, states=["failed"])
        assert (failed.of_run("a", "failed"), failed.of_run("a", "completed"), failed.audit) == (5.0, None, None)
        one = Policy.older_than(5.0, workflow="a")
        assert (one.of_run("a", "cancelled"), one.of_run("b", "cancelled"), one.audit) == (5.0, None, None)


@pytest.mark.postgres
@pytest.mark.django_db
def test_what_goes_is_found_along_an_index_however_much_is_kept() -> None:
    Run.objects.bulk_create(
        Run(
            id=f"run {number}",
            workflow="kept" if number % 2 else "short",
            queue="default",
            state="completed",
            input="{}",
            created_at=NOW,
            finished_at=NOW - timedelta(days=10 if number % 2 or number < 200 else 0, seconds=number),
        )
        for number in range(5_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run")
    pruner = Pruner(Policy.of({"completed": DAY, "workflows": {"kept": None}}), "default")
    (ended,) = pruner._ended(NOW)
    for query in (
        ended.order_by("finished_at", "id")[:200],
        Run.objects.ended_in("completed").order_by("workflow")[:1],
    ):
        plan = query.explain()
        assert "durable_run_ended" in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
    assert sum(pruner.batches(NOW), Pruned()).runs == 100


class Elsewhere:
    """A transaction in a thread of its own, on a connection of its own, that is open for the block."""

    def __init__(self, sql: str, *params: str) -> None:
        self.sql, self.params = sql, params
        self._has_begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(self.sql, self.params)
                self._has_begun.set()
                assert self._may_end.wait(120)
        finally:
            connections.close_all()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._has_begun.wait(120)

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestLocks:
    """Nothing here would end, were a prune to wait for what the other thread holds."""

    LOCK = "SELECT id FROM durable_run WHERE id = %s FOR UPDATE"

    def test_a_locked_run_is_left_for_the_next_time(self) -> None:
        a_run("held")
        a_run("free")
        with Elsewhere(self.LOCK, "held"):
            assert prune(Policy.of(DAY)).runs == 1
        assert runs() == {"held"}
        assert prune(Policy.of(DAY)).runs == 1

    def test_a_run_with_a_locked_child_is_left_for_the_next_time(self) -> None:
        old = a_run("old")
        a_run("child", "running", parent=old)
        a_run("free")
        with Elsewhere(self.LOCK, "child"):
            assert prune(Policy.of(DAY)).runs == 1
        assert runs() == {"old", "child"}
        assert Run.objects.get(id="child").parent_id == "old"
        assert prune(Policy.of(DAY)).runs == 1

    def test_a_run_to_which_rows_refer_that_django_does_not_know_stays(self, caplog: pytest.LogCaptureFixture) -> None:
        """The database says so at the commit, of the whole batch."""
        with_all(a_run("referred to"))
        with_all(a_run("free"))
        with connection.cursor() as cursor:
            cursor.execute(
                'CREATE TABLE invoice (run_id varchar(200) COLLATE "C" REFERENCES durable_run (id) '
                "DEFERRABLE INITIALLY DEFERRED)"
            )
            cursor.execute("INSERT INTO invoice VALUES ('referred to')")
        try:
            assert prune(Policy.of(DAY)).runs == 1
            assert runs() == {"referred to"}
            assert Entry.objects.count() == 1
            assert "invoice" in caplog.text
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP TABLE invoice")

    def test_a_cause_that_a_failing_run_holds_is_left_for_the_next_time(self) -> None:
        a_cause("idle")
        with Elsewhere("SELECT id FROM durable_cause WHERE fingerprint = %s FOR KEY SHARE", "idle"):
            prune(Policy.of({"failed": DAY}))
        assert Cause.objects.count() == 1
        prune(Policy.of({"failed": DAY}))
        assert Cause.objects.count() == 0

    def test_a_run_that_is_recovered_meanwhile_stays(self) -> None:
        store = store_for("default")
        a_run("old", "failed", error=ErrorInfo("ValueError", "no"))
        recover = "UPDATE durable_run SET state = 'pending', finished_at = NULL WHERE id = %s"
        with Elsewhere(recover, "old"):
            assert prune(Policy.of(DAY)).runs == 0
        assert prune(Policy.of(DAY)).runs == 0
        found = store.get("old")
        assert found is not None
        assert found.state == "pending"


@pytest.mark.redis
@pytest.mark.usefixtures("redis_connection")
@pytest.mark.django_db
class TestSweep:
    @pytest.fixture
    def sweep(self) -> Sweep:
        return Sweep(store_for("default"))

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 2)
        monkeypatch.setattr(timer._log_this, "_said", {})

    def test_it_cancels_what_the_ends_of_parents_have_left_of_their_children(self, sweep: Sweep) -> None:
        number = 30
        a_run("parent", "completed")
        runs_of = [Run(id=f"c{each}", workflow="w", queue="q", input="{}", created_at=NOW) for each in range(number)]
        Run.objects.bulk_create(runs_of)
        values = {"parent_id": "parent", "location": "c", "when_parent_ends": "cancel", "position": 1}
        Child.objects.bulk_create(Child(run=each, **values) for each in runs_of)
        Cascade.objects.create(run_id="parent", began_at=NOW)
        sweep.tick(NOW)
        assert Run.objects.filter(id__startswith="c", state="cancelled").count() == number
        assert not Cascade.objects.exists()

    def test_without_a_setting_everything_stays(self, sweep: Sweep) -> None:
        a_run("old")
        with override_settings(DURABLE={}):
            sweep.tick(NOW)
        assert runs() == {"old"}

    def test_a_round_goes_on_from_sweep_to_sweep(self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer, "PRUNE_FOR", 0)
        for number in range(5):
            a_run(f"run {number}", days=20 - number)
        left = []
        with override_settings(DURABLE={"RETENTION": DAY}):
            for _ in range(4):
                sweep.tick(NOW)
                left.append(len(runs()))
            a_run("next", days=5)  # for the next round, for which it is not yet time
            sweep.tick(NOW)
        assert left == [3, 1, 0, 0]
        assert runs() == {"next"}

    def test_the_audit_log_says_what_went_and_seldom(self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer, "PRUNE_FOR", 0)
        for number in range(6):
            a_run(f"run {number}", days=20 - number)
        with override_settings(DURABLE={"RETENTION": {"completed": DAY}}):
            for _ in range(4):
                sweep.tick(NOW)
            row = OperatorAction.objects.get()
            assert (row.action, row.source, row.outcome) == ("prune", "code", "done")
            assert row.actor_label.startswith("the sweep of ")
            assert row.detail == "2 runs, 0 rows of the audit log"
            monkeypatch.setattr(sweep, "_next_row", 0.0)  # an hour later, when nothing is left to prune
            sweep.tick(NOW)
            assert OperatorAction.objects.order_by("id").last().detail.startswith("4 runs, ")  # type: ignore[union-attr]  # there is one
            sweep.tick(NOW)
        assert OperatorAction.objects.count() == 2

    def test_a_round_ends_within_a_sweep_if_there_is_time(self, sweep: Sweep) -> None:
        for number in range(5):
            a_run(f"run {number}")
        with override_settings(DURABLE={"RETENTION": {"completed": DAY}, "SWEEP_INTERVAL": 3600}):
            sweep.tick(NOW)
        assert runs() == set()

    def test_an_error_ends_the_round_and_not_the_notifying(
        self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(self: Pruner, now: datetime) -> Iterator[Pruned]:
            raise RuntimeError("out of order")
            yield

        a_run("old")
        with override_settings(DURABLE={"RETENTION": DAY}):
            with monkeypatch.context() as patch:
                patch.setattr(Pruner, "batches", broken)
                sweep._tick_safely()
            assert "the sweep failed" in caplog.text
            sweep.tick(NOW)  # not at once again
            assert runs() == {"old"}
            monkeypatch.setattr(timer, "PRUNE_EVERY", 0)
            sweep._next_round = 0.0
            sweep.tick(timezone.now())
        assert runs() == set()

    def test_a_setting_that_cannot_be_read_prunes_nothing_and_is_logged_once(
        self, sweep: Sweep, caplog: pytest.LogCaptureFixture
    ) -> None:
        a_run("old")
        with override_settings(DURABLE={"RETENTION": {"completed": "30 days"}}):
            sweep.tick(NOW)
            sweep.tick(NOW)
        assert runs() == {"old"}
        assert len([record for record in caplog.records if "RETENTION" in record.message]) == 1
