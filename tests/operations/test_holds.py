"""Pausing queues and holding starts: permissions, reasons, the log, refusals, and what runs and surfaces then say."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from durable import Context, get_run, workflow
from durable.core.errors import HoldError
from durable.core.records import HoldKind
from durable.inspection.explanation import explain_fully
from durable.inspection.findings import collect_findings
from durable.inspection.queues import find_hold, list_queues
from durable.inspection.workers import worker_overview
from durable.models import HeldStart, OperatorAction, Run
from durable.operations import holds
from durable.operations.audit import Actor, acting_as
from durable.store import store_for
from durable.worker import timer
from durable.worker.timer import Sweep
from tests.support.worker import a_worker, work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]


@workflow(name="tests.holds.order")
def order(ctx: Context, number: int) -> int:
    return ctx.step("charge", int, number)


def run_of(run_id: str) -> Run:
    return Run.objects.get(pk=run_id)


def finding(kind: str) -> Any:
    return {each.kind: each for each in collect_findings(timezone.now(), worker_overview())}.get(kind)


def user_with(*permissions: str) -> User:
    user = User.objects.create_user("ada")
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


class TestQueues:
    def test_a_paused_queue_rests_and_everything_says_so(self) -> None:
        with acting_as(Actor("cli", label="ada"), reason="bank is down"):
            holds.pause_queue("default")
        handle = order.start(1)
        work_off()
        run = run_of(handle.id)
        assert run.state == "pending"
        told = explain_fully(run, timezone.now())
        assert told.headline.startswith('Due, and its queue "default" is paused by ada for ')
        assert told.headline.endswith(": bank is down")
        found = finding("queue_paused")
        assert (found.title, found.count.number) == ('The queue "default" is paused by ada: bank is down', 1)
        assert found.command == "python manage.py durable resume-queue default"
        [queue] = list_queues(timezone.now(), name="default")
        assert queue.is_paused
        assert (queue.due.number, queue.came.per_minute) == (1, 0.1)
        holds.resume_queue("default")
        work_off()
        assert get_run(handle.id).result(0) == 1
        assert finding("queue_paused") is None

    def test_late_runs_of_a_paused_queue_are_told_once(self) -> None:
        a_worker()  # without one, that is what is told of them
        order.start(1)
        Run.objects.update(wake_at=timezone.now() - timedelta(hours=1))
        assert finding("unclaimed") is not None
        holds.pause_queue("default")
        assert finding("unclaimed") is None
        assert finding("queue_paused").count.number == 1

    def test_each_is_logged_with_its_reason(self) -> None:
        user = user_with("pause_queue")
        with acting_as(Actor("admin", user=user), reason="bank is down"):
            holds.pause_queue("default")
            holds.resume_queue("default")
        rows = OperatorAction.objects.order_by("id").values_list("action", "reason", "detail", "before", "after")
        assert list(rows) == [
            ("pause_queue", "bank is down", 'queue "default"', "", "held"),
            ("resume_queue", "bank is down", 'queue "default"', "held", ""),
        ]

    def test_what_is_so_already_is_refused_and_says_who_did_it(self) -> None:
        with acting_as(Actor("cli", label="ada"), reason="bank is down"):
            holds.pause_queue("default")
        with pytest.raises(HoldError, match=r"is paused already, since .* by ada: bank is down"):
            holds.pause_queue("default")
        holds.resume_queue("default")
        with pytest.raises(HoldError, match='queue "default" is not paused'):
            holds.resume_queue("default")

    def test_an_operator_who_saw_another_state_is_refused(self) -> None:
        seen = holds.revision_of(None)
        holds.pause_queue("default")
        with acting_as(Actor("cli"), expected=seen), pytest.raises(HoldError, match="it has changed since"):
            holds.pause_queue("default")
        seen = holds.revision_of(find_hold(HoldKind.QUEUE, "default"))
        holds.resume_queue("default")
        holds.pause_queue("default")
        with acting_as(Actor("cli"), expected=seen), pytest.raises(HoldError, match="it has changed since"):
            holds.resume_queue("default")

    @pytest.mark.parametrize("name", ["nobody-knows-it", "", "a\n"])
    def test_a_queue_that_nobody_knows_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="queue"):
            holds.pause_queue(name)

    def test_a_sweep_notifies_no_paused_queue(self) -> None:
        order.start(1)
        store = store_for("default")
        assert store.due_queues(timezone.now()) == ["default"]
        holds.pause_queue("default")
        assert store.due_queues(timezone.now()) == []


class TestWorkflows:
    def test_a_start_is_accepted_and_waits_until_the_release(self) -> None:
        with acting_as(Actor("cli", label="ada"), reason="bank is down"):
            holds.hold_starts(order)
        one, *more = order.start(1), *order.start_many([(2,), (3,)])
        work_off()
        for handle in (one, *more):
            run = run_of(handle.id)
            assert (run.state, run.started_at) == ("paused", None)
            wanted = 'new starts of "tests.holds.order" are held by ada: bank is down'
            assert wanted in run.summary
            assert wanted in explain_fully(run, timezone.now()).headline
        found = finding("starts_held")
        assert found.count.number == 3
        assert found.command == "python manage.py durable release tests.holds.order"
        assert holds.release_starts(order) == 3
        work_off()
        assert [each.result(0) for each in (one, *more)] == [1, 2, 3]
        assert finding("starts_held") is None
        assert not HeldStart.objects.exists()

    def test_a_delay_is_kept(self) -> None:
        holds.hold_starts(order)
        handle = order.using(delay="1 hour").start(1)
        created = run_of(handle.id).created_at
        holds.release_starts("tests.holds.order")
        assert run_of(handle.id).wake_at == created + timedelta(hours=1)

    def test_a_run_that_an_operator_has_paused_stays_paused(self) -> None:
        kept = order.start(1)
        kept.pause()
        holds.hold_starts(order)
        handle = order.start(2)
        handle.resume()
        handle.pause()
        assert holds.release_starts(order) == 0
        assert {run_of(each.id).state for each in (kept, handle)} == {"paused"}

    def test_what_a_release_leaves_is_resumed_by_the_sweep(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holds, "_AT_ONCE", 1)
        monkeypatch.setattr(holds, "RELEASE_FOR", 0.0)
        monkeypatch.setattr(timer, "RELEASE_AT_ONCE", 1)
        holds.hold_starts(order)
        handles = order.start_many([(1,), (2,), (3,)])
        assert holds.release_starts(order) == 1
        Sweep(store_for("default")).tick(timezone.now())
        assert {run_of(each.id).state for each in handles} == {"pending"}

    def test_a_release_goes_on_behind_runs_that_were_resumed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holds, "_AT_ONCE", 2)
        holds.hold_starts(order)
        handles = [order.using(id=each).start(1) for each in "abcdef"]
        for handle in handles[:3]:
            handle.resume()
        assert holds.release_starts(order) == 3
        assert {run_of(each.id).state for each in handles} == {"pending"}

    def test_a_repeated_start_finds_the_held_run(self) -> None:
        holds.hold_starts(order)
        assert order.using(id="a").start(1).id == order.using(id="a").start(1).id == "a"
        assert Run.objects.count() == 1

    def test_durables_own_workflow_and_unknown_ones_are_refused(self) -> None:
        with pytest.raises(Exception, match="durable"):
            holds.hold_starts("durable.bulk")
        with pytest.raises(ValueError, match="no workflow"):
            holds.hold_starts("nobody.knows.it")

    def test_a_workflow_that_only_rows_know_can_be_held(self) -> None:
        order.using(id="a").start(1)
        Run.objects.update(workflow="old.code")
        assert holds.hold_starts("old.code").name == "old.code"
