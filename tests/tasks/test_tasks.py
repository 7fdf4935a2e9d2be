"""Tasks of Django's framework as durable runs: of Django's own where it has one, else of the backport."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import CheckMessage
from django.db import transaction
from django.dispatch import Signal
from django.test import override_settings

from durable import Context, Handle, get_run, operations, workflow
from durable.models import Run
from durable.tasks import DurableBackend
from durable.tasks.backend import TaskCall, call_task
from durable.testing import Harness

HAS_ITS_OWN = find_spec("django.tasks") is not None
if TYPE_CHECKING or not HAS_ITS_OWN:
    from django_tasks import TaskContext, TaskResultStatus, default_task_backend, task
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
else:
    from django.tasks import TaskContext, TaskResultStatus, default_task_backend, task
    from django.tasks.exceptions import InvalidTask as InvalidTaskError
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started

TASKS = {
    "default": {"BACKEND": "durable.tasks.DurableBackend", "QUEUES": ["default", "high"]},
    "retrying": {
        "BACKEND": f"durable.tasks.{'builtin' if HAS_ITS_OWN else 'backport'}.DurableBackend",
        "OPTIONS": {"max_retries": 2, "priorities": {50: "high", -10: "low"}},
    },
}
calls: list[Any] = []


@task
def double(number: int) -> int:
    calls.append(number)
    return number * 2


@task
async def triple(number: int) -> int:
    return number * 3


@task
def fail(message: str) -> None:
    raise UnlikelyError(message)


@task
def fail_plainly() -> None:
    raise KeyError("no")


@task
def fail_at_first() -> str:
    calls.append("attempt")
    if len(calls) < 3:
        raise UnlikelyError("not yet")
    return "at last"


@task
def give(what: str) -> Any:
    calls.append(what)
    return {"a tuple": (1, (2,)), "a set": {1}}[what]


@task(takes_context=True)
def attempt(context: TaskContext, *, add: int) -> list[Any]:
    return [context.attempt + add, context.task_result.status, context.task_result.args]


class UnlikelyError(Exception):
    pass


@workflow(name="tests.tasks.enqueuing")
def enqueuing(ctx: Context) -> None:
    double.enqueue(1)


def not_a_task() -> None:
    calls.append("called")


@pytest.fixture(autouse=True)
def _tasks() -> Iterator[None]:
    calls.clear()
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as found:
        yield found


class TestCalls:
    def test_a_task_is_called_with_what_it_was_enqueued_with(self, harness: Harness) -> None:
        result = double.enqueue(21)
        assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.READY, 0, None)
        assert result.enqueued_at == harness.now
        assert (result.args, result.kwargs, result.backend, calls) == ([21], {}, "default", [])
        assert harness.run(result.id).state == "completed"
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 42, 1)
        assert result.is_finished
        assert None not in (result.started_at, result.finished_at, result.last_attempted_at)
        assert calls == [21]

    def test_an_async_task_from_async_code(self, harness: Harness) -> None:
        result = triple.enqueue(number=5)
        harness.settle()
        assert default_task_backend.get_result(result.id).return_value == 15

    def test_what_it_returns_is_what_json_has_of_it(self, harness: Harness) -> None:
        result = give.enqueue("a tuple")
        harness.settle()
        result.refresh()
        assert result.return_value == [1, [2]]

    def test_what_json_has_not_is_a_failure_and_no_reason_to_call_it_again(self, harness: Harness) -> None:
        result = give.using(backend="retrying").enqueue("a set")
        harness.finish(result.id)
        result.refresh()
        assert (result.status, calls) == (TaskResultStatus.FAILED, ["a set"])
        assert "JSON" in result.errors[0].traceback

    def test_the_context_tells_the_attempt(self, harness: Harness) -> None:
        result = attempt.enqueue(add=1)
        harness.settle()
        result.refresh()
        assert result.return_value == [2, "RUNNING", []]

    def test_an_error_is_a_failure_at_once_unless_it_is_to_be_tried_again(self, harness: Harness) -> None:
        result = fail.enqueue("it is Friday")
        harness.settle()
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
        (error,) = result.errors
        assert error.exception_class is UnlikelyError
        assert "it is Friday" in error.traceback
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value

    def test_an_error_of_pythons_own(self, harness: Harness) -> None:
        result = fail_plainly.enqueue()
        harness.settle()
        result.refresh()
        assert result.errors[0].exception_class is KeyError

    def test_a_retry_is_a_further_attempt(self, harness: Harness) -> None:
        result = fail_at_first.using(backend="retrying").enqueue()
        harness.run(result.id)
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.READY, 1)
        harness.finish(result.id)
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, "at last", 3)
        assert [each.exception_class for each in result.errors] == [UnlikelyError] * 2
        assert len(result.worker_ids) == 3

    def test_a_task_that_is_cancelled_has_failed(self, harness: Harness) -> None:
        result = double.enqueue(1)
        get_run(result.id).cancel(reason="no need")
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class.__name__ == "RunCancelledError"
        assert "no need" in result.errors[0].traceback

    def test_what_is_no_task_is_not_called(self, harness: Harness) -> None:
        call = TaskCall(
            framework="django.tasks" if HAS_ITS_OWN else "django_tasks",
            task=f"{__name__}.not_a_task",
            backend="default",
            args=[],
            kwargs={},
            queue_name="default",
            priority=0,
            run_after=None,
            max_retries=3,
            timeout=0,
        )
        handle = call_task.start(call)
        assert harness.finish(handle).state == "failed"
        assert calls == []
        assert handle.error is not None
        assert "not_a_task is not a task of " in str(handle.error)

    def test_a_task_that_is_gone(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        result = double.enqueue(1)
        monkeypatch.delattr(f"{__name__}.double")
        assert harness.run(result.id).state == "failed"
        assert "cannot be imported" in str(get_run(result.id).error)


class TestWhenAndWhere:
    def test_later(self, harness: Harness) -> None:
        result = double.using(run_after=harness.now + timedelta(hours=2)).enqueue(1)
        assert result.task.run_after == harness.now + timedelta(hours=2)
        harness.advance("119 minutes")
        assert harness.run_due() == 0
        harness.advance("1 minute")
        assert harness.run_due() == 1

    def test_the_queue_of_a_task(self, harness: Harness) -> None:
        assert _queue(double.enqueue(1)) == "default"
        assert _queue(double.using(queue_name="high").enqueue(1)) == "high"
        with pytest.raises(InvalidTaskError):
            double.using(queue_name="low")

    @pytest.mark.parametrize(
        ("priority", "queue"),
        [(0, "default"), (49, "default"), (50, "high"), (100, "high"), (-9, "default"), (-10, "low"), (-100, "low")],
    )
    def test_a_priority_is_another_queue(self, harness: Harness, priority: int, queue: str) -> None:
        result = double.using(backend="retrying", priority=priority).enqueue(1)
        assert _queue(result) == queue
        assert result.task.priority == priority

    def test_without_queues_for_them_there_are_no_priorities(self, harness: Harness) -> None:
        with pytest.raises(InvalidTaskError, match="priority"):
            double.using(priority=1)

    def test_between_the_steps_of_a_workflow_it_is_refused(self, harness: Harness) -> None:
        assert harness.finish(enqueuing.start()).state == "failed"
        assert [run.workflow for run in _runs(harness)] == ["tests.tasks.enqueuing"]


def _queue(result: Any) -> str:
    return operations.record(result.id).queue


def _runs(harness: Harness) -> list[Any]:
    return list(harness._store._runs.values())


class TestResults:
    def test_there_is_none_by_another_id_or_of_another_workflow(self, harness: Harness) -> None:
        handle: Handle = harness.start(lambda ctx: None)
        for run_id in ("nothing", handle.id):
            with pytest.raises(TaskResultDoesNotExist):
                default_task_backend.get_result(run_id)

    def test_of_another_task(self, harness: Harness) -> None:
        result = double.enqueue(1)
        assert default_task_backend.get_result(result.id) == result
        with pytest.raises(TaskResultMismatch):
            fail.get_result(result.id)


class TestSignals:
    @pytest.fixture
    def received(self) -> Iterator[list[tuple[str, str]]]:
        seen: list[tuple[str, str]] = []
        receivers = []
        for name, signal in {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}.items():

            def receive(task_result: Any, name: str = name, **_: object) -> None:
                seen.append((name, str(task_result.status)))

            signal.connect(receive, weak=False)
            receivers.append((signal, receive))
        yield seen
        for signal, receive in receivers:
            signal.disconnect(receive)

    def test_each_is_sent_once(self, harness: Harness, received: list[tuple[str, str]]) -> None:
        result = double.enqueue(1)
        harness.finish(result.id)
        fail.enqueue("no")
        harness.settle()
        assert received == [
            *(("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")),
            *(("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")),
        ]

    def test_a_receiver_breaks_no_task(self, harness: Harness) -> None:
        def broken(**_: object) -> None:
            raise RuntimeError("a broken receiver")

        signals: list[Signal] = [task_enqueued, task_started, task_finished]
        for signal in signals:
            signal.connect(broken)
        try:
            result = double.enqueue(1)
            assert harness.finish(result.id).state == "completed"
        finally:
            for signal in signals:
                signal.disconnect(broken)


@pytest.mark.redis
@pytest.mark.django_db
@pytest.mark.usefixtures("redis_connection")
class TestTransactions:
    def test_it_is_enqueued_if_and_when_the_transaction_commits(self, django_capture_on_commit_callbacks: Any) -> None:
        received: list[str] = []

        def receive(task_result: Any, **_: object) -> None:
            received.append(task_result.id)

        task_enqueued.connect(receive)
        with transaction.atomic():
            double.enqueue(1)
            transaction.set_rollback(True)
        assert not Run.objects.exists()
        with django_capture_on_commit_callbacks(execute=True):
            result = double.enqueue(1)
            assert received == []
        assert received == [result.id]
        assert Run.objects.get().id == result.id
        task_enqueued.disconnect(receive)


class TestChecks:
    def check(self, **settings: Any) -> list[CheckMessage]:
        return list(DurableBackend("default", settings).check())

    def test_what_is_right_is_not_mentioned(self) -> None:
        assert self.check(QUEUES=["default", "high"], OPTIONS={"timeout": 5, "priorities": {1: "high"}}) == []

    def test_a_queue_that_rq_lacks(self) -> None:
        messages = self.check(QUEUES=["default", "hgih"], OPTIONS={"priorities": {1: "low"}})
        assert [message.id for message in messages] == ["durable.E021"] * 2
        assert all("default" in str(message.hint) for message in messages)

    def test_an_option_that_there_is_not(self) -> None:
        (message,) = self.check(OPTIONS={"retries": 5})
        assert (message.id, "max_retries" in str(message.hint)) == ("durable.E020", True)
