"""The pages of queues: their numbers and workers, and the way from a page to a paused queue and back."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.models import Run
from durable.operations import holds
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import hidden, text_of, url
from tests.support.worker_rows import a_worker

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


def test_all_queues_are_listed_with_their_numbers(operator: Client, stage: Stage) -> None:
    a_worker(queues=["default"])
    stage.start(flows.quick, id="one", settle=False)
    Run.objects.update(wake_at=stage.now - timedelta(minutes=4))
    page = text_of(operator.get(url("queues")))
    for expected in (">default<", ">high<", "4 m", "late", "served by no worker"):
        assert expected in page, expected


def test_a_queue_says_what_is_due_and_who_serves_it(operator: Client, stage: Stage) -> None:
    stage.start(flows.quick, id="one", settle=False)
    stage.advance(minutes=4)
    page = text_of(operator.get(url("queue", "default")))
    for expected in ("1 run is due in", "the oldest for 4 m", "served by no worker", "durable_worker default", "one"):
        assert expected in page, expected
    a_worker(queues=["default"])
    assert "host:4711" in text_of(operator.get(url("queue", "default")))


def test_an_operator_pauses_and_resumes_a_queue(log_in: Callable[..., Client], stage: Stage) -> None:
    client = log_in("view_run", "pause_queue")
    stage.start(flows.quick, id="one", settle=False)
    assert url("queue_hold", "default", "pause") in text_of(client.get(url("queue", "default")))
    form = hidden(client.get(url("queue_hold", "default", "pause")))
    answer = client.post(url("queue_hold", "default", "pause"), {**form, "reason": "bank is down"}, follow=True)
    page = text_of(answer)
    for expected in ("The queue is paused.", "bank is down", "Resume the queue", "It is paused"):
        assert expected in page, expected
    for address in (url("change", "one"), url("changelist")):
        assert "is paused by ada" in text_of(client.get(address))
    form = hidden(client.get(url("queue_hold", "default", "resume")))
    assert "The queue is resumed." in text_of(client.post(url("queue_hold", "default", "resume"), form, follow=True))
    assert find_hold(HoldKind.QUEUE, "default") is None


def test_a_verb_is_offered_to_those_who_may(operator: Client) -> None:
    assert url("queue_hold", "default", "pause") not in text_of(operator.get(url("queue", "default")))


def test_what_is_not_there_is_not_found(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "pause_queue")
    assert "There is no queue" in text_of(client.get(url("queue", "nobody")), 404)
    assert "There is no verb" in text_of(client.get(url("queue_hold", "default", "hold")), 404)
    form = hidden(client.get(url("queue_hold", "nobody", "pause")))
    assert "no queue has the name" in text_of(client.post(url("queue_hold", "nobody", "pause"), form), 422)


def test_a_paused_queue_that_nothing_else_knows_is_listed(operator: Client) -> None:
    Run.objects.create(id="a", workflow="w", queue="old", input="[]", created_at=timezone.now(), wake_at=timezone.now())
    holds.pause_queue("old")
    Run.objects.all().delete()
    assert ">old<" in text_of(operator.get(url("queues")))


def test_the_statements_do_not_grow(operator: Client, stage: Stage) -> None:
    counts = []
    for numbers in (range(1), range(1, 12)):
        for number in numbers:
            stage.start(flows.quick, id=f"run-{number}", settle=False)
        with CaptureQueriesContext(connection) as captured:
            operator.get(url("queues"))
            operator.get(url("queue", "default"))
        counts.append(len(captured))
    assert counts[0] == counts[1]
