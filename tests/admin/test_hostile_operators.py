"""Operators who forge what a page sends, or ask for more than is theirs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from django.test import Client, override_settings

from durable import Context, get_run, workflow
from durable.models import OperatorAction, QueueMessage, Run
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import hidden, log_url, text_of, traces, url

LogIn = Callable[..., Client]
CHANGING = ["send", "replay", "act"]


def page_of(name: str, run_id: str) -> str:
    if name == "act":
        return url("act", run_id, "wake")
    return url(name, run_id) + ("?at=prepare" if name in ("replay", "give_output") else "")


@pytest.mark.parametrize("name", [*CHANGING, "give_output", "edit_input"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_user_without_view_run_cannot_find_out_which_runs_exist(
    stage: Stage, log_in: LogIn, name: str, method: str
) -> None:
    stage.start(flows.approve, id="run")
    client = log_in()
    there = getattr(client, method)(page_of(name, "run"))
    nowhere = getattr(client, method)(page_of(name, "nowhere"))
    assert (there.status_code, nowhere.status_code) == (403, 403)
    assert there.context["why"] == nowhere.context["why"]


@pytest.mark.parametrize("name", CHANGING)
def test_the_right_to_act_shows_no_run(stage: Stage, log_in: LogIn, name: str) -> None:
    stage.start(flows.approve, id="run")
    client = log_in("operate_run", "replay_run")
    body = text_of(client.get(page_of(name, "run")), 403)
    assert "durable.view_run" in body
    assert "approved" not in body
    assert "durable.view_run" in text_of(client.post(page_of(name, "run"), {"queue": "q"}), 403)
    assert get_run("run").state == "sleeping"
    assert not QueueMessage.objects.exists()
    assert [outcome for _, _, outcome, _ in traces("run")] == ["denied"]


@pytest.mark.parametrize("verb", ["start", "replay", "prune", "restart"])
def test_a_bulk_of_what_no_bulk_does_wakes_nothing(stage: Stage, log_in: LogIn, verb: str) -> None:
    run = stage.start(flows.approve, id="run")
    client = log_in("view_run", "operate_run")
    client.post(url("bulk"), {"verb": verb, "id": ["run"], "confirmed": "1"})
    assert Run.objects.get().change_seq == run.change_seq
    assert not OperatorAction.objects.filter(outcome="done").exists()


def test_a_denied_bulk_is_one_row_of_the_log_and_of_one_run_it_names_it(stage: Stage, log_in: LogIn) -> None:
    stage.start(flows.approve, id="run-0")
    client = log_in("view_run")
    text_of(client.post(url("bulk"), {"verb": "cancel", "id": ["run-0", "run-1", "run-2"]}), 403)
    text_of(client.post(url("bulk"), {"verb": "pause", "id": ["run-0"]}), 403)
    rows = OperatorAction.objects.order_by("id").values_list("run_id", "action", "outcome", "actor_label")
    assert list(rows) == [("", "cancel", "denied", "ada"), ("run-0", "pause", "denied", "ada")]


def test_a_user_without_permissions_cannot_fill_the_log(stage: Stage, log_in: LogIn) -> None:
    stage.start(flows.approve, id="run")
    client = log_in()
    many = {"verb": "cancel", "id": [f"x{number}" for number in range(500)], "reason": "x" * 1_000}
    for _ in range(5):
        client.post(url("bulk"), many)
        client.post(url("act", "run", "pause"), {"reason": "because"})
    cancel, pause = OperatorAction.objects.order_by("action")
    assert (cancel.action, pause.action, pause.run_id) == ("cancel", "pause", "run")
    assert " (4 more like it until " in cancel.detail
    assert " (4 more like it until " in pause.detail


@pytest.mark.parametrize(
    "filter", ["?since=fortnight", "?created_from=soon", "?stat=failed", "?state=broken", f"?q={'x' * 501}"]
)
def test_a_filter_that_is_wrong_selects_nothing(stage: Stage, operator: Client, filter: str) -> None:
    stage.start(flows.approve, id="run")
    posted = {"verb": "cancel", "all": "on", "filter": filter}
    assert "Nothing was done" in text_of(operator.post(url("bulk"), posted, follow=True))
    fields = hidden(operator.post(url("bulk"), {**posted, "filter": "?since=day"}))
    assert fields["token"]
    operator.post(url("bulk"), {**fields, **posted, "confirmed": "1"})
    assert not Run.objects.filter(workflow="durable.bulk").exists()


def test_a_double_click_starts_one_bulk(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    posted = {"verb": "wake", "all": "on", "filter": "?since=day"}
    fields = hidden(operator.post(url("bulk"), posted))
    first = operator.post(url("bulk"), {**fields, **posted, "confirmed": "1"})
    stage.advance(seconds=1)
    again = operator.post(url("bulk"), {**fields, **posted, "confirmed": "1"})
    assert Run.objects.filter(workflow="durable.bulk").count() == 1
    assert first["Location"] == again["Location"]


def test_what_a_repeated_page_did_not_do_is_not_logged_as_done(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    message = {**hidden(operator.get(url("send", "run"))), "queue": "approved", "body": "1"}
    operator.post(url("send", "run"), message)
    operator.post(url("send", "run"), message)
    fields = hidden(operator.get(url("act", "run", "restart")))
    operator.post(url("act", "run", "restart"), fields)
    operator.post(url("act", "run", "restart"), fields)
    details = list(OperatorAction.objects.order_by("id").values_list("action", "detail"))
    was_there = [(action, "was there already" in detail) for action, detail in details]
    assert was_there == [("send", False), ("send", True), ("restart", False), ("restart", True)]


MOMENTS = ["created_from", "created_until", "finished_from", "finished_until"]
LIST = ["live", "sort", "columns", "worker", "cause", "place", "undone", "attention", "held"]
HOSTILE = ["%00", "%ED%A0%80", "%E2%80%AE", "x" * 100_000, "%0d%0aSet-Cookie:a=b", "'\"><script>", "9" * 400, "[]", "٣"]


@pytest.mark.slow
@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_addresses_break_no_page(stage: Stage, operator: Client, value: str) -> None:
    stage.start(flows.approve, id="run")
    pages = {
        "changelist": ["q", "after", "state", "workflow", "queue", "waiting_queue", "since", *MOMENTS, *LIST],
        "change": ["start", "only", "part"],
        "live": ["start", "before"],
        "payload": ["of", "at", "id", "part"],
        "raw": ["of", "at", "id"],
        "step": ["at"],
        "replay": ["at"],
        "send": ["queue"],
    }
    for name, parameters in pages.items():
        for each in parameters:
            address = url(name) if name == "changelist" else url(name, "run")
            answer = operator.get(f"{address}?{each}={value}")
            assert answer.status_code < 500, (name, each)
            assert "<script>'" not in answer.content.decode()
    log = log_url()
    for each in ["q", "action", "outcome", "source__exact", "p", "o"]:
        assert operator.get(f"{log}?{each}={value}").status_code < 500, each


def test_moments_at_the_ends_of_time(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="run")
    ends = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01", "9999-12-31")
    for name, moment in product(MOMENTS, ends):
        assert operator.get(url("changelist"), {name: moment}).status_code == 200, (name, moment)


#: What each page reads, beside what all of them read.
FIELDS = {
    "send": ["queue", "body"],
    "replay": ["plan_hash"],
    "act": [],
    "bulk": ["verb", "id", "filter", "all"],
}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["\x00", "\u202e", "\r\nX: y", "x" * 9_999, "{{ run }}<b>"])
def test_hostile_texts_break_no_action(stage: Stage, operator: Client, text: str) -> None:
    stage.start(flows.approve, id="run")
    for name, fields in FIELDS.items():
        address = url("bulk") if name == "bulk" else page_of(name, "run")
        for each in ["reason", "expected", "token", *fields]:
            posted = {"queue": "q", "anyway": "on", "verb": "wake", "id": "run", "confirmed": "1", each: text}
            assert operator.post(address, posted).status_code < 500, (name, each)


@workflow(name="tests.secret")
def secret(ctx: Context) -> None:
    ctx.queue.send("out/side", "card-number-of-ada", to="other")


def hide_messages(workflow: str, field: str, value: Any) -> Any:
    return "****" if field == "message:out/side" else value


def test_a_message_is_redacted_where_it_is_sent_too(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="other")
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide_messages"}):
        stage.start(secret, id="run")
        for address in (url("step", "run") + "?at=send~0", url("export", "run"), url("change", "other")):
            assert "card-number-of-ada" not in text_of(operator.get(address)), address


def test_the_audit_log_answers_no_question_that_reads_all_of_it_and_has_one_order(operator: Client) -> None:
    for lookup in ("reason__regex=(a%2B)%2B$", "detail__contains=x", "actor__password__startswith=p"):
        assert operator.get(f"{log_url()}?{lookup}").status_code == 400, lookup
    ordered = operator.get(f"{log_url()}?o=7").context["cl"].queryset.query.order_by
    assert tuple(ordered) == ("-created_at", "-id")
