"""The confirmation page of a bulk: true numbers, and a typed one before many runs are ended."""

import re
from datetime import UTC, datetime
from html import unescape

import pytest
from django.test import Client

from durable import get_run
from durable.models import OperatorAction, Run
from durable.operations import bulk
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import hidden, text_of, url
from tests.support.runs import stored_runs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PENDING = {"verb": "cancel", "all": "on", "filter": "?state=pending"}


def bulks() -> int:
    return Run.objects.filter(workflow="durable.bulk").count()


def test_the_page_counts_all_that_the_verb_acts_on(operator: Client) -> None:
    stored_runs(900, "pending")
    stored_runs(160, "sleeping", "refunds")
    stored_runs(1_100, "completed", minutes=5)
    body = text_of(operator.post(url("bulk"), {"verb": "pause", "all": "on", "filter": "?"}))
    assert "Pause <strong>1,060</strong> runs." in body
    assert "Left alone, because their state does not allow it: 1,100 completed." in body
    assert '<th scope="row">orders</th><td class="durable-number">900</td>' in body
    assert '<th scope="row">refunds</th><td class="durable-number">160</td>' in body
    assert 'name="number"' not in body  # a pause can be taken back


def test_the_largest_workflows_are_named(operator: Client) -> None:
    for number in range(1, 8):
        stored_runs(number, "pending", f"w{number}")
    rows = operator.post(url("bulk"), PENDING).context["workflows"]
    assert rows == [("w7", "7"), ("w6", "6"), ("w5", "5"), ("w4", "4"), ("w3", "3"), ("2 others", "3")]


def test_a_cancel_without_a_filter_is_refused(operator: Client) -> None:
    stored_runs(2, "pending")
    for more in ({}, {"confirmed": "1"}):
        body = text_of(operator.post(url("bulk"), {**PENDING, "filter": "?", **more}, follow=True))
        assert "choose a workflow or a state first" in body
    assert bulks() == 0


def test_all_runs_of_a_queue_without_a_worker_are_moved(stage: Stage, operator: Client) -> None:
    flows.nap.using(queue="nowhere").start_many([()] * 3, ids=["a", "b", "c"])
    stage.start(flows.quick, id="other", settle=False)
    stage.advance(minutes=5)
    overview = text_of(operator.get(url("overview")))
    [address] = re.findall(r'href="([^"]+nowhere[^"]*)"[^>]*>Move its runs<', overview)
    page = operator.get(unescape(address))
    assert "Move to a queue <strong>3</strong> runs." in text_of(page)
    given = {name: unescape(value) for name, value in hidden(page).items()} | {"reason": "nobody serves it"}
    refused = operator.post(url("bulk"), {**given, "queue": ""})
    assert "errorlist" in text_of(refused, 422)
    assert bulks() == 0
    operator.post(url("bulk"), {**given, "queue": "high"})
    assert Run.objects.get(workflow="durable.bulk").queue == "high"  # its own queue may be the one without a worker
    stage.settle(Run.objects.get(workflow="durable.bulk").pk)
    assert set(Run.objects.filter(pk__in="abc").values_list("queue", flat=True)) == {"high"}
    assert get_run("other").info().queue == "default"
    logged = OperatorAction.objects.filter(action="move", run_id="a").get()
    assert (logged.detail, logged.reason) == ('from the queue "nowhere" to "high"', "nobody serves it")


@pytest.mark.parametrize("typed", ["", "100", "1011", "all"])
def test_a_wrong_number_does_nothing(operator: Client, typed: str) -> None:
    stored_runs(101, "pending")
    fields = hidden(operator.post(url("bulk"), PENDING))
    assert fields["count"] == "101"
    body = text_of(operator.post(url("bulk"), {**fields, **PENDING, "number": typed}), 422)
    assert "Type the number of runs that is shown above. Nothing was done." in body
    del fields["count"]
    operator.post(url("bulk"), {**fields, **PENDING, "number": ""})
    assert bulks() == 0
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("typed", ["1100", "1,100", " 1 100 "])
def test_the_typed_number_confirms(operator: Client, typed: str) -> None:
    stored_runs(1_100, "pending")
    fields = hidden(operator.post(url("bulk"), PENDING))
    for _ in range(2):  # and twice is once
        assert operator.post(url("bulk"), {**fields, **PENDING, "number": typed}).status_code == 302
    assert bulks() == 1


def test_few_runs_need_no_number(operator: Client) -> None:
    stored_runs(100, "pending")
    page = operator.post(url("bulk"), PENDING)
    assert 'name="number"' not in text_of(page)
    assert operator.post(url("bulk"), {**hidden(page), **PENDING}).status_code == 302


def test_more_runs_than_were_shown_are_shown_first(operator: Client) -> None:
    stored_runs(101, "pending")
    fields = hidden(operator.post(url("bulk"), PENDING))
    stored_runs(3, "pending", "late", minutes=1)
    page = operator.post(url("bulk"), {**fields, **PENDING, "number": "101"})
    assert "the page showed 101 runs, and there are 104 now" in text_of(page, 409)
    assert 'name="count" value="104"' in text_of(page, 409)
    assert bulks() == 0
    Run.objects.filter(workflow="late").delete()  # fewer than were shown need no second look
    assert operator.post(url("bulk"), {**fields, **PENDING, "count": "104", "number": "104"}).status_code == 302


def test_chosen_runs_are_counted_by_workflow_too(operator: Client) -> None:
    stored_runs(2, "pending")
    stored_runs(1, "completed")
    ids = [*Run.objects.values_list("id", flat=True), "nowhere"]
    page = operator.post(url("bulk"), {"verb": "cancel", "id": ids})
    assert page.context["workflows"] == [("orders", "2")]
    assert page.context["left_alone"] == "1 completed, 1 that do not exist"
    assert "Cancel <strong>2</strong> runs of the 4 that were chosen." in text_of(page)


@pytest.mark.parametrize("in_background", [False, True])
def test_the_result_lists_what_was_refused_by_reason(stage: Stage, operator: Client, in_background: bool) -> None:
    stage.start(flows.approve, id="asleep")
    stage.start(flows.quick, id="ended")
    report = bulk.apply("pause", ["asleep", "ended", "nowhere"], in_background=in_background)
    if report.run_id is not None:
        stage.settle(report.run_id)
    page = operator.get(url("bulk_result", report.bulk_id))
    assert page.context["bulk"].headline == "Done: 3 of 3; 2 refused" if in_background else "Done: 3; 2 refused"
    found = {each.outcome: each for each in page.context["refusals"]}
    assert {outcome: each.runs for outcome, each in found.items()} == {"refused": ("ended",), "missing": ("nowhere",)}
    assert "cannot pause a run that is completed" in found["refused"].reason
    assert url("change", "ended") in text_of(page)
