"""Bulks in the admin: true numbers, a typed one before many runs are ended, the decision after a canary, the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import get_run, operations
from durable.core.records import ActionRecord
from durable.models import Cause, OperatorAction, Run
from durable.operations import Actor, acting_as, bulk
from durable.operations.bulk_decisions import Canary
from durable.runtime import current
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, hidden, read, text_of, url
from tests.support.plans import scans
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


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_the_number_confirms_where_the_project_groups_digits(operator: Client) -> None:
    stored_runs(1_100, "pending")
    fields = hidden(operator.post(url("bulk"), PENDING))
    assert fields["count"] == "1100"
    assert operator.post(url("bulk"), {**fields, **PENDING, "number": "1,100"}).status_code == 302
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


# -- the page of a bulk: its progress, the decision after a canary, what failed again, and recovering that


LogIn = Callable[..., Client]


#: Recovers all failed runs.
RECOVER = {"verb": "recover", "all": "on", "filter": "?state=failed"}


def failed_runs(stage: Stage, count: int) -> list[str]:
    flows.SWITCH["broken"] = True
    ids = [f"order-{number}" for number in range(count)]
    for each in ids:
        stage.start(flows.switched, id=each)
    assert set(Run.objects.filter(pk__in=ids).values_list("state", flat=True)) == {"failed"}
    return ids


def recovering(ids: list[str], **options: Any) -> str:
    with acting_as(Actor("cli", label="ops"), reason="the bank is back"):
        return bulk.apply("recover", ids, **options).bulk_id


def stopped(stage: Stage, count: int = 8) -> str:
    """A bulk that its canary of two has stopped; the two are failed again."""
    ids = failed_runs(stage, count)
    bulk_id = recovering(ids, canary=Canary(first=2))
    stage.settle(bulk_id)
    for each in ids[:2]:
        stage.settle(each)
    for _ in range(3):
        stage.advance(seconds=20)
        stage.settle(bulk_id)
    return bulk_id


def test_a_stopped_bulk_asks_for_a_decision(stage: Stage, operator: Client) -> None:
    bulk_id = stopped(stage)
    page = operator.get(url("bulk_result", bulk_id))
    body = text_of(page)
    assert "Stopped after the first 2: 2 of them failed again." in body
    assert [title for title, _ in page.context["decisions"]] == ["Go on with the rest", "Stop here"]
    assert page.context["bulk"].numbers == "2 of 8; 2 failed again"
    assert "The first 2 are tried alone, for 10 m at most; it stops after 1 of them failed." in body
    assert "Stopped after its first runs" in text_of(operator.get(url("change", bulk_id)))
    shown = text_of(operator.get(url("changelist"), {"q": bulk_id}))
    assert "Stopped after its first runs" in shown


@pytest.mark.parametrize(("count", "still"), [(2, "1 was still under way"), (3, "2 were still under way")])
def test_runs_under_way_when_another_one_fails_are_not_said_to_be_late(
    stage: Stage, operator: Client, count: int, still: str
) -> None:
    ids = failed_runs(stage, 5)
    bulk_id = recovering(ids, canary=Canary(first=count))
    stage.settle(bulk_id)
    stage.settle(ids[0])
    stage.advance(seconds=20)
    stage.settle(bulk_id)
    body = text_of(operator.get(url("bulk_result", bulk_id)))
    assert f"Stopped after the first {count}: 1 of them failed again, and {still}." in body
    assert "in time" not in body


def test_a_stopped_bulk_is_found_on_the_overview_until_it_is_decided(stage: Stage, operator: Client) -> None:
    bulk_id = stopped(stage)
    assert "waits for your decision" in text_of(operator.get(url("bulk_result", bulk_id)))
    overview = operator.get(url("overview"))
    [found] = [each for each in overview.context["rows"] if each.key.startswith("bulk_stopped")]
    assert found.is_urgent
    assert (found.url, found.list_title) == (url("bulk_result", bulk_id), "Decide")
    badge = f'<span class="durable-badge" aria-hidden="true">{sum(each.is_urgent for each in overview.context["rows"])}</span>'
    assert f"{badge} {overview.context['headline']}" in text_of(operator.get("/admin/"))
    confirm(operator, url("act", bulk_id, "stop_here"))
    stage.settle(bulk_id)
    rows = operator.get(url("overview")).context["rows"]
    assert not [each for each in rows if each.key.startswith("bulk_stopped")]


def test_it_goes_on_with_the_rest(stage: Stage, operator: Client) -> None:
    bulk_id = stopped(stage)
    flows.SWITCH["broken"] = False
    asked = operator.get(url("act", bulk_id, "go_on"))
    done = operator.post(url("act", bulk_id, "go_on"), {**hidden(asked), "reason": "known"})
    assert done["Location"] == url("bulk_result", bulk_id)
    assert operator.post(url("act", bulk_id, "go_on"), hidden(asked)).status_code == 409
    stage.settle(bulk_id)
    assert "Done: 8 of 8; 2 failed again" in text_of(operator.get(url("bulk_result", bulk_id)))


def test_a_bulk_after_which_runs_failed_again_is_no_success(stage: Stage, operator: Client) -> None:
    """Its own run has completed; the word and the colour of that said that all went well."""
    bulk_id = stopped(stage)
    confirm(operator, url("act", bulk_id, "stop_here"))
    assert stage.settle(bulk_id).state == "completed"
    shown = text_of(operator.get(url("bulk_result", bulk_id)))
    assert "Stopped by an operator: 2 of 8; 2 failed again" in shown
    assert '<span class="durable-state durable-bad">failed again</span>' in shown
    assert 'class="durable-state durable-completed"' not in shown
    flows.SWITCH["broken"] = False
    for run in Run.objects.filter(state="failed"):
        operations.recover(run.id)
        stage.settle(run.id)
    shown = text_of(operator.get(url("bulk_result", bulk_id)))
    assert 'class="durable-state durable-completed"' in shown


def test_the_result_names_the_step_of_a_join(stage: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.parcels, id="parcels")
    asked = operator.get(url("bulk"), {"verb": "recover", "id": "parcels"})
    assert "ship / label / charge" in text_of(asked)
    bulk_id = recovering(["parcels"])
    stage.settle("parcels")
    assert "ship / label / charge" in read(operator, url("bulk_result", bulk_id))


@pytest.mark.parametrize("in_background", [False, True])
def test_those_that_failed_again_are_recovered(stage: Stage, operator: Client, in_background: bool) -> None:
    ids = failed_runs(stage, 4)
    bulk_id = recovering(ids, in_background=in_background)
    if in_background:
        stage.settle(bulk_id)
    flows.SWITCH["broken"] = False
    for each in ids[:2]:
        stage.settle(each)
    flows.SWITCH["broken"] = True
    for each in ids[2:]:
        stage.settle(each)
    page = operator.get(url("bulk_result", bulk_id))
    assert [run.id for run, _ in page.context["failed"]] == ids[2:]
    asked = operator.get(page.context["recover_url"])
    assert "Recover <strong>2</strong> runs that failed again after an earlier bulk" in text_of(asked)
    given = {**hidden(asked), "verb": "recover", "bulk": bulk_id}
    result = operator.post(url("bulk"), given)["Location"]
    second = Run.objects.filter(workflow="durable.bulk").latest("created_at").id
    assert result == url("bulk_result", second)
    assert stage.settle(second).state == "completed"
    assert get_run(second).result()["done"] == 2
    assert f"that failed again after the bulk {bulk_id}" in text_of(operator.get(result))


def test_the_confirmation_names_causes_and_errors(stage: Stage, operator: Client) -> None:
    ids = failed_runs(stage, 3)
    page = operator.get(url("bulk"), RECOVER)
    [cause] = page.context["causes"]
    assert (cause.fingerprint, cause.number) == (Cause.objects.get().fingerprint, 3)
    assert "GatewayTimeout" in text_of(page)
    assert {run.id for run, _ in page.context["rows"]} == set(ids)
    chosen = operator.post(url("bulk"), {"verb": "recover", "id": ids[:2]})
    assert [each.number for each in chosen.context["causes"]] == [2]
    assert operator.post(url("bulk"), {"verb": "pause", "id": ids[:2]}).context["causes"] == []


def test_a_reason_that_asks_keeps_its_mark(stage: Stage, operator: Client) -> None:
    failed_runs(stage, 2)
    with acting_as(Actor("cli", label="ops"), reason="is the bank back?"):
        bulk_id = bulk.apply("recover", ["order-0", "order-1"], canary=Canary(first=1)).bulk_id
    assert "Reason: is the bank back?<" in text_of(operator.get(url("bulk_result", bulk_id)))


def test_a_bulk_whose_own_run_cannot_go_on_says_why(stage: Stage, operator: Client) -> None:
    failed = failed_runs(stage, 1)
    bulk.apply("recover", failed, in_background=True, as_id="many")
    assert "does not fit" not in text_of(operator.get(url("bulk_result", "many")))
    recorded = Run.objects.get(pk="many").input
    Run.objects.filter(pk="many").update(input=recorded.replace('"rate"', '"rate_of_a_newer_release"'))
    stage.run("many")
    assert "The code of the workers does not fit its history" in text_of(operator.get(url("bulk_result", "many")))


def test_the_order_of_one_run_has_no_plural(stage: Stage, operator: Client) -> None:
    failed_runs(stage, 1)
    operator.post(url("bulk"), {**hidden(operator.get(url("bulk"), RECOVER)), **RECOVER})
    body = text_of(operator.get(url("bulk_result", Run.objects.get(workflow="durable.bulk").pk)))
    assert "Recover 1 run in the state failed." in body


def test_a_canary_is_ordered_on_the_page(stage: Stage, operator: Client) -> None:
    failed_runs(stage, 3)
    asked = operator.get(url("bulk"), {**RECOVER, "first": "2", "stop_after": "1"})
    assert 'name="first" value="2"' in text_of(asked)
    posted = {**hidden(asked), **RECOVER, "first": "2", "stop_after": "2", "within": "5", "rate": "0.5"}
    assert operator.post(url("bulk"), posted).status_code == 302
    body = text_of(operator.get(url("change", Run.objects.get(workflow="durable.bulk").id)))
    assert "BulkOrder(verb" in body  # folded
    said = "Recover 3 runs in the state failed. The first 2 are tried alone, for 5 m at most; it stops after 2 of them"
    assert said in body
    assert "At most 0.5 runs a second." in body


def test_the_confirmation_of_a_canary_says_so(stage: Stage, operator: Client) -> None:
    failed_runs(stage, 3)
    asked = operator.get(url("bulk"), {**RECOVER, "first": "2"})
    page = text_of(asked)
    assert "Recover: try <strong>2</strong> of 3 runs first" in page
    assert 'value="Try 2 of 3"' in page
    assert "Recover <strong>3</strong> runs." not in page
    # without a number the button's promise would not hold
    refused = operator.post(url("bulk"), {**hidden(asked), **RECOVER, "first": ""})
    assert "The button said that some are tried first" in text_of(refused, 422)
    [everything] = re.findall(r'href="([^"]+)">Recover, all at once<', page)
    assert "Recover <strong>3</strong> runs." in text_of(operator.get(unescape(everything)))
    assert "Try 2" not in text_of(operator.get(unescape(everything)))


def test_a_stopped_bulk_offers_another_canary(stage: Stage, operator: Client) -> None:
    bulk_id = stopped(stage, 6)
    address = url("act", bulk_id, "go_on")
    assert 'name="canary"' in text_of(operator.get(address))
    assert confirm(operator, address, canary="on").status_code == 302
    [row] = OperatorAction.objects.filter(action="go_on")
    assert row.detail == "with another canary"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"first": "2", "stop_after": "3"}, "At most 2: no more are tried first."),
        ({"first": "0"}, "greater than or equal to 1"),
        ({"stop_after": "3"}, "Say how many are tried first."),
        ({"rate": "-1"}, "greater than or equal to 0.001"),
        ({"rate": "nan"}, "Enter a number."),
        ({"first": "x"}, "Enter a whole number."),
    ],
)
def test_a_canary_that_makes_no_sense_does_nothing(
    stage: Stage, operator: Client, given: dict[str, str], problem: str
) -> None:
    failed_runs(stage, 1)
    fields = hidden(operator.get(url("bulk"), RECOVER))
    assert problem in text_of(operator.post(url("bulk"), {**fields, **RECOVER, **given}), 422)
    assert bulks() == 0


# -- who sees it


def test_a_viewer_sees_the_result_without_verbs_and_words(stage: Stage, log_in: LogIn) -> None:
    bulk_id = stopped(stage, 3)
    client = log_in("view_run")
    page = client.get(url("bulk_result", bulk_id))
    body = text_of(page)
    assert (page.context["decisions"], page.context["words"], page.context["verb_urls"]) == ([], "", [])
    assert "Recover those" not in body
    for name in ("go_on", "stop_here"):
        assert client.get(url("act", bulk_id, name)).status_code == 403
        assert client.post(url("act", bulk_id, name), {"token": "x"}).status_code == 403
    denied = OperatorAction.objects.filter(outcome="denied").values_list("action", flat=True)
    assert set(denied) == {"go_on", "stop_here"}


@pytest.mark.parametrize("bulk_id", ["nowhere", "order-0", "\u202e"])
def test_what_is_no_bulk_has_no_result(stage: Stage, operator: Client, bulk_id: str) -> None:
    failed_runs(stage, 1)
    recovering(["order-0"])
    assert operator.get(url("bulk_result", bulk_id)).status_code == 404


def test_the_live_part_answers_304(stage: Stage, operator: Client) -> None:
    bulk_id = stopped(stage, 3)
    first = operator.get(url("bulk_live", bulk_id))
    assert first.status_code == 200
    assert operator.get(url("bulk_live", bulk_id), headers={"If-None-Match": first["ETag"]}).status_code == 304


def hide(workflow: str, field: str, value: Any) -> Any:
    return "****"


def test_redaction_holds(stage: Stage, operator: Client) -> None:
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide"}):
        bulk_id = stopped(stage, 3)
        body = text_of(operator.get(url("bulk_result", bulk_id)))
        assert "no answer" not in body
        assert "****" in body
        assert "no answer" not in text_of(operator.get(url("bulk"), RECOVER))


# -- what it costs


@pytest.mark.slow
@pytest.mark.postgres
def test_the_result_of_a_large_bulk_reads_along_indexes(db: None, operator: Client) -> None:
    stored_runs(3_000, "failed")
    stored_runs(3_000, "completed", minutes=5)
    an_action: dict[str, Any] = {"action": "recover", "source": "cli", "outcome": "done", "created_at": timezone.now()}
    failed = list(Run.objects.filter(state="failed").values_list("pk", flat=True))
    current().store.log([ActionRecord(**an_action, run_id="large")])
    current().store.log([ActionRecord(**an_action, run_id=each, bulk_id="large") for each in failed])
    current().store.log([ActionRecord(**an_action, run_id=f"r{n}", bulk_id=f"other-{n % 50}") for n in range(9_000)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with CaptureQueriesContext(connection) as queries:
        page = operator.get(url("bulk_result", "large"))
    assert page.context["bulk"].numbers == "3,000; 3,000 failed again"
    assert len(queries) <= 20
    assert scans(queries, {"durable_operatoraction"}) == []
