"""The pages of queues and of workers: their numbers, and the way from a page to a paused queue and back."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.models import Run, WorkerProcess
from durable.operations import holds
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, statements, text_of, url
from tests.support.worker import a_worker

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
    page = text_of(confirm(client, url("queue_hold", "default", "pause"), reason="bank is down", follow=True))
    for expected in ("The queue is paused.", "bank is down", "Resume the queue", "It is paused"):
        assert expected in page, expected
    for address in (url("change", "one"), url("changelist")):
        assert "is paused by ada" in text_of(client.get(address))
    assert "The queue is resumed." in text_of(confirm(client, url("queue_hold", "default", "resume"), follow=True))
    assert find_hold(HoldKind.QUEUE, "default") is None
    other = log_in(*OPERATOR, name="bob")
    assert url("queue_hold", "default", "pause") not in text_of(other.get(url("queue", "default")))


def test_what_is_not_there_is_not_found(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "pause_queue")
    assert "There is no queue" in text_of(client.get(url("queue", "nobody")), 404)
    assert "There is no verb" in text_of(client.get(url("queue_hold", "default", "hold")), 404)
    assert "no queue has the name" in text_of(confirm(client, url("queue_hold", "nobody", "pause")), 422)


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
        counts.append(len(statements(operator, url("queues")) + statements(operator, url("queue", "default"))))
    assert counts[0] == counts[1]


# -- the pages of workers: what each shows, what it does, and who may see it


HOSTILE = '<b>\u202e"&' + "x" * 250


def test_all_workers_are_listed_with_what_they_tell(operator: Client) -> None:
    assert "python manage.py durable_worker" in text_of(operator.get(url("workers")))
    assert "There is no worker" in text_of(operator.get(url("worker", "nobody:1:a")), 404)
    a_worker()
    a_worker("gone:1:a", host="gone", pid=1, last_seen_at=timezone.now() - timedelta(minutes=5))
    a_worker("leaving:2:b", host="leaving", pid=2, state="stopping")
    page = text_of(operator.get(url("workers")))
    for expected in ("host:4711", "7f3a", "0 of 8", "2 h 10 m", "184 MB", "dead: no sign", "handing over"):
        assert expected in page, expected


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_a_process_id_has_no_separators(operator: Client) -> None:
    a_worker()
    for address in (url("workers"), url("worker", "host:4711:abc"), url("overview")):
        page = text_of(operator.get(address))
        assert "4711" in page
        assert "4,711" not in page


def test_a_worker_has_a_page_with_its_runs(operator: Client, stage: Stage) -> None:
    stage.start(flows.quick, id="held", settle=False)
    assert stage.claim("held") is not None
    page = text_of(operator.get(url("worker", "host:4711:abc")))
    assert "It holds runs and has not reported anything about itself." in page
    a_worker()
    page = text_of(operator.get(url("worker", "host:4711:abc")))
    for expected in ("1 of 8 slots in use", "held", "tests.quick", "busy"):
        assert expected in page, expected
    assert url("worker", "host:4711:abc") in text_of(operator.get(url("change", "held")))


def test_a_page_says_in_words_what_is_wrong(operator: Client) -> None:
    a_worker(state="stopping")
    assert "It takes no more runs." in text_of(operator.get(url("worker", "host:4711:abc")))
    WorkerProcess.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    assert "It was killed" in text_of(operator.get(url("worker", "host:4711:abc")))


def test_any_name_is_shown_as_text(operator: Client) -> None:
    a_worker(HOSTILE, host=HOSTILE, queues=[HOSTILE], build=HOSTILE[:200])
    for page in (operator.get(url("workers")), operator.get(url("worker", HOSTILE))):
        assert page.status_code == 200
        assert "<b>" not in page.content.decode().partition('id="content-main"')[2]
        assert "\u202e" not in page.content.decode()


def test_the_statements_do_not_grow_with_the_runs(operator: Client, stage: Stage) -> None:
    a_worker()
    counts = []
    for numbers in (range(1), range(1, 12)):
        for number in numbers:
            stage.start(flows.quick, id=f"held-{number}", settle=False)
        lease = timezone.now() + timedelta(minutes=1)
        Run.objects.update(worker="host:4711:abc", lease_expires_at=lease, state="running")
        with CaptureQueriesContext(connection) as captured:
            assert f"{len(numbers) + (numbers[0] > 0)} of 8" in text_of(operator.get(url("worker", "host:4711:abc")))
        counts.append(len(captured))
    assert counts[0] == counts[1] < 15
