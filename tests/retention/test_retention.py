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
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable.alerts.conditions import look_for
from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, EntryKind, EntryStatus, MessageState, RunState
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.metrics.rows import RowsCollector
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
from durable.retention import Policy, Pruned, Pruner, note_progress, waiting_since
from durable.store import store_for
from durable.worker import timer
from durable.worker.timer import Sweep
from tests.support.plans import parts_of

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

    def test_runs_of_many_workflows_share_a_transaction_and_those_expired_longest_go_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 4)
        for number in range(5):
            a_run(f"done {number}", workflow=f"w{number}", days=20 - number)
            a_run(f"lost {number}", "cancelled", workflow=f"w{number}", days=10 - number)
        left = []
        for batch in Pruner(Policy.of({"completed": 7 * DAY, "cancelled": 3 * DAY}), "default").batches(NOW):
            assert batch.runs in (4, 2)
            left.append(runs())
        assert left == [
            {"done 4", *(f"lost {number}" for number in range(5))},  # 9 days beyond 7, and all others less
            {"lost 3", "lost 4"},
            set(),
        ]

    def test_a_round_with_nothing_to_delete_costs_the_same_for_any_number_of_workflows(self) -> None:
        counts = []
        for workflows in (3, 40):
            for number in range(workflows):
                a_run(f"{workflows} {number}", workflow=f"w{number}", days=1)
            with CaptureQueriesContext(connection) as queries:
                assert prune(Policy.of({"completed": 7 * DAY, "failed": 7 * DAY})) == Pruned()
            counts.append(len([each for each in queries if "SAVEPOINT" not in each["sql"]]))
        assert counts[0] == counts[1] <= 4

    def test_causes_and_the_audit_log_do_not_wait_for_all_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 1)
        for number in range(9):
            a_run(f"run {number}")
        a_cause("idle")
        an_action(10)
        batches = Pruner(Policy.of(7 * DAY), "default").batches(NOW)
        for _ in range(3):
            next(batches)
        assert (Cause.objects.count(), OperatorAction.objects.count()) == (0, 0)
        assert len(runs()) >= 7

    def test_a_batch_that_breaks_takes_nothing_with_it(self) -> None:
        for number in range(3):
            with_all(a_run(f"run {number}"))

        def breaks(**_: object) -> None:
            raise SystemExit

        pre_delete.connect(breaks, sender=Run)
        try:
            with pytest.raises(SystemExit):
                prune(Policy.of(DAY))
        finally:
            pre_delete.disconnect(breaks, sender=Run)
        assert (len(runs()), Entry.objects.count(), EntryMetadata.objects.count()) == (3, 3, 3)
        assert prune(Policy.of(DAY)).runs == 3

    def test_a_run_that_ended_again_before_it_was_locked_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a_run("again")
        a_run("moved")
        a_run("old")
        pruner = Pruner(Policy.of({"completed": 7 * DAY, "workflows": {"kept": None}}), "default")
        found = pruner._next

        def meanwhile(*args: Any) -> list[str]:
            ids = found(*args)
            Run.objects.filter(id="again").update(finished_at=NOW - timedelta(days=1))
            Run.objects.filter(id="moved").update(workflow="kept")
            return ids

        monkeypatch.setattr(pruner, "_next", meanwhile)
        assert sum(pruner.batches(NOW), Pruned()).runs == 1
        assert runs() == {"again", "moved"}

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
    (expired,) = pruner._expired(NOW)
    plan = expired.runs(NOW, "default")[:200].explain()
    assert all(index in plan for index in parts_of("default", "durable_run_ended")), plan
    assert "Seq Scan" not in plan, plan
    assert "Sort  (" not in plan, plan
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

    @pytest.mark.slow
    def test_a_pruner_takes_what_another_one_is_not_at_and_waits_for_none_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of the same workflows, of failures of one cause, and of the causes and the audit log afterwards."""
        monkeypatch.setattr("durable.retention.BATCH", 8)
        cause = a_cause("lost")
        for number in range(60):
            fail(with_all(a_run(f"run {number:02}", "failed", days=90 - number, workflow=f"w{number % 20}")), cause)
            an_action(10)
        has_begun, may_end = threading.Event(), threading.Event()

        class Slow(Pruner):
            """Its first transaction stays open when everything in it is deleted."""

            def _delete(self, ids: list[str]) -> Pruned:
                pruned = super()._delete(ids)
                if not has_begun.is_set():
                    has_begun.set()
                    assert may_end.wait(120)
                return pruned

        by_slow: list[Pruned] = []

        def work() -> None:
            try:
                by_slow.extend(Slow(Policy.of(DAY), "default").batches(NOW))
            finally:
                connections.close_all()

        slow = threading.Thread(target=work)
        slow.start()
        try:
            assert has_begun.wait(120)
            by_other = prune(Policy.of(DAY))
            assert slow.is_alive()
            assert by_other == Pruned(runs=52, entries=52, attempts=52, messages=52, actions=60)
            assert len(runs()) == 8  # of the open transaction
        finally:
            may_end.set()
            slow.join()
        assert sum(by_slow, Pruned()) == Pruned(runs=8, entries=8, attempts=8, messages=8)
        assert (runs(), Failure.objects.exists(), OperatorAction.objects.exists()) == (set(), False, False)
        prune(Policy.of(DAY))  # a cause goes once its last failure has
        assert not Cause.objects.exists()

    @pytest.mark.slow
    def test_two_processes_share_the_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.retention.BATCH", 5)
        for number in range(60):
            with_all(a_run(f"run {number}", workflow=f"w{number % 7}"))
        together = threading.Barrier(2)
        gone: list[Pruned] = []

        def work() -> None:
            try:
                batches = Pruner(Policy.of(DAY), "default").batches(NOW)
                gone.append(next(batches))
                together.wait(120)  # each has deleted a batch
                gone.extend(batches)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gone.append(prune(Policy.of(DAY)))  # what each has left because the other had locked it
        assert sum(gone, Pruned()) == Pruned(runs=60, entries=60, attempts=60, messages=60)
        assert runs() == set()


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

    @pytest.mark.slow
    def test_a_round_that_is_not_over_gets_more_of_the_next_sweeps(
        self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Clock:
            """A second passes whenever it is read."""

            now = 0.0

            def monotonic(self) -> float:
                self.now += 1.0
                return self.now

        monkeypatch.setattr(timer, "time", Clock())
        for number in range(60):
            a_run(f"run {number}", days=90 - number)
        left = []
        with override_settings(DURABLE={"RETENTION": {"completed": DAY}, "SWEEP_INTERVAL": 10.0}):
            for _ in range(4):
                sweep._prune(NOW)
                left.append(len(runs()))
        assert left == [56, 48, 32, 16]  # batches of two: for 2, 4, 8 and, of ten, no more than 8 seconds

    def test_it_notes_how_far_it_has_come(self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer, "PRUNE_FOR", 0)
        for number in range(4):
            a_run(f"run {number}", days=20 - number)
        late, kept = timedelta(days=19 - 7), {"RETENTION": {"completed": 7 * DAY}}
        with override_settings(DURABLE=kept):
            assert waiting_since() is None
            sweep.tick(NOW)  # two are gone
            sweep.tick(NOW)  # the others are; the last but one batch ended with a run of 19 days
            assert waiting_since() == NOW - late
            sweep.tick(NOW)
            assert waiting_since() == NOW
        with override_settings(DURABLE={"RETENTION": {"audit": DAY}}):
            assert waiting_since() is None

    def test_a_run_that_must_stay_is_not_late(self, sweep: Sweep) -> None:
        a_run("parent", "sleeping")
        child = a_run("child", parent_id="parent", days=50)
        Child.objects.create(run=child, parent_id="parent", location="c", when_parent_ends="cancel", position=1)
        with override_settings(DURABLE={"RETENTION": {"completed": 7 * DAY}}):
            sweep.tick(NOW)
            assert runs() == {"parent", "child"}
            assert waiting_since() == NOW

    @pytest.mark.parametrize(("hours", "is_late"), [(0.9, False), (3, True)])
    def test_doctor_alert_and_metric_say_how_late_it_is(self, hours: float, is_late: bool) -> None:
        now = timezone.now()
        note_progress(now - timedelta(hours=hours))
        with override_settings(DURABLE={"RETENTION": 7 * DAY}):
            found = [each for each in collect_findings(now, worker_overview()) if each.kind == "retention_late"]
            alerts = look_for(frozenset({"retention"}), now, ()).conditions
            [gauge] = [
                sample.value
                for family in RowsCollector().collect()
                for sample in family.samples
                if sample.name == "durable_retention_late_seconds"
            ]
        assert (len(found), len(alerts)) == (is_late, is_late)
        assert 3600 * hours <= gauge < 3600 * hours + 120
        if is_late:
            assert "3 h" in found[0].title
            assert "for 3 h" in alerts[0].text

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

    def test_a_round_ends_within_a_sweep_if_there_is_time(self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer, "PRUNE_FOR", 3600)
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
