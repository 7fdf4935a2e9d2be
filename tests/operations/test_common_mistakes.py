"""Common mistakes, on the real store: what was expected, what was found, what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connection, transaction
from django.test import override_settings

from durable import Limit, get_run, runtime, workflow
from durable.core.summary import Summary, SummaryKind
from durable.models import Run
from durable.testing import Harness

pytestmark = [pytest.mark.redis, pytest.mark.django_db]
LATER = datetime(2126, 1, 1, tzinfo=UTC)


@workflow(name="tests.first_week.greet")
def greet(ctx: Any, name: str) -> str:
    return name


@workflow(name="tests.first_week.named")
def named(ctx: Any, id: str) -> str:
    return id


class Impatient(Exception):
    """A user presses Ctrl-C."""


@pytest.fixture
def impatient() -> Iterator[None]:
    """The production backend, for a caller that gives up at the third look."""
    looks = iter(range(2))

    def pause(_seconds: float) -> None:
        if next(looks, None) is None:
            raise Impatient

    used = replace(runtime.production(), poll_wait=pause)
    runtime.activate(used)
    yield
    runtime.deactivate(used)


def test_how_to_start_is_not_an_argument() -> None:
    with pytest.raises(TypeError, match=r"\.using\(delay=\.\.\., id=\.\.\.\)\.start"):
        greet.start("ada", id="a", delay=3)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError) as refused:
        greet.start("ada", 1)  # type: ignore[call-arg]  # the mistake
    assert "using" not in str(refused.value)
    named.start(id="it is the workflow's own")
    with pytest.raises(TypeError) as refused:
        named.start("given twice", id="given twice")  # type: ignore[misc]  # the mistake
    assert "using" not in str(refused.value)


def test_a_start_before_the_migrations_says_so() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_run RENAME TO elsewhere")
    with pytest.raises(Error) as failed:
        greet.start("ada")
    assert failed.value.__notes__ == ["Are all of durable's migrations applied? Run manage.py migrate."]


def test_a_start_from_async_code_names_the_twin() -> None:
    async def view() -> None:
        greet.start("ada")

    with pytest.raises(SynchronousOnlyOperation) as refused:
        asyncio.run(view())
    assert "astart" in refused.value.__notes__[0]


def test_a_wait_in_the_transaction_that_starts_the_run_says_why_nothing_comes() -> None:
    with transaction.atomic():
        run = greet.start("ada")
        with pytest.raises(TimeoutError, match="wait after it"):
            run.result(timeout=0.01)
        with pytest.raises(TimeoutError, match="wait after it"):
            get_run(run.id).ask("name", timeout=0.01)


@pytest.mark.usefixtures("impatient")
def test_a_wait_without_end_in_a_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "durable.operations")
    with transaction.atomic(), pytest.raises(Impatient):
        greet.start("ada").result()
    [record] = caplog.records
    assert "has not ended, and the wait has no timeout" in record.getMessage()
    assert "wait after it" in record.getMessage()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {},
            "it is pending, due for 0 s and not yet taken by a worker: see that one serves its queue (manage.py durable_w",
        ),
        ({"state": "paused"}, "it is paused until resume()"),
        (
            {"state": "sleeping", "wake_at": LATER, "summary": "sleeping until 2126-01-01 00:00:00 UTC"},
            "it is sleeping: sleeping until 2126-01-01 00:00:00 UTC",
        ),
        ({"wake_at": LATER}, "it is pending, until 2126-01-01 00:00:00 UTC"),
        ({"state": "running", "worker": "w1", "lease_expires_at": LATER}, "it is running: worker w1 has it"),
        (
            {"summary": Summary(SummaryKind.UNKNOWN_WORKFLOW, workflow="x"), "wake_at": LATER},
            'the worker that took it does not know its workflow "tests.first_week.greet": have the function in the workflows.py',
        ),
    ],
)
def test_a_wait_outside_of_a_transaction_says_where_the_run_is(columns: dict[str, Any], text: str) -> None:
    run = greet.start("ada")
    Run.objects.filter(pk=run.id).update(**columns)
    with pytest.raises(TimeoutError) as caught:
        run.result(timeout=0.01)
    assert text in str(caught.value)
    assert f"`manage.py durable why {run.id}` says more" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"), [("countdown", "delay"), ("task_id", "id"), ("dead_line", "deadline"), ("qeue", "queue")]
)
def test_an_option_of_a_start_that_does_not_exist_asks_for_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"[Dd]id you mean .{meant}.") as refused:
        greet.using(**{given: 10})  # type: ignore[arg-type]  # the mistake
    assert "before start(arguments)" in str(refused.value)


def test_an_option_of_a_limit_that_does_not_exist_asks_for_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"[Dd]id you mean .at_once."):
        Limit("crm", at_onc=1)  # type: ignore[call-arg]  # the mistake


def test_a_start_on_a_queue_that_the_settings_lack_asks_for_the_one_that_was_meant() -> None:
    """Its run would wait for ever."""
    meant = r'no worker can serve the queue "hihg": did you mean "high"\? RQ_QUEUES has default, high'
    with pytest.raises(ValueError, match=meant):
        greet.using(queue="hihg").start("ada")
    with pytest.raises(ValueError, match=meant):
        greet.using(queue="hihg").start_many([("ada",)])
    with pytest.raises(ValueError, match='the queue "nope": RQ_QUEUES has default, high'):
        greet.using(queue="nope", key="k").start_or_send("news", 1, "ada")
    assert not Run.objects.exists()
    assert Run.objects.get(pk=greet.using(queue="high").start("ada").id).queue == "high"
    with override_settings(DURABLE={"REDIS": False}):  # a durable_worker without names serves any queue
        greet.using(queue="nope").start("ada")
    with Harness() as h:
        assert h.finish(greet.using(queue="nope").start("ada")).state == "completed"


def test_a_child_on_a_queue_that_the_settings_lack_is_told_of_and_replayed(caplog: pytest.LogCaptureFixture) -> None:
    @workflow(name="tests.first_week.parent")
    def parent(ctx: Any) -> Any:
        return ctx.child("greet", greet.using(queue="children"), "ada")

    with Harness() as h:
        assert h.finish(h.start(parent)).state == "completed"
    assert caplog.text.count('RQ_QUEUES lacks the queue "children", and has default, high') == 1
