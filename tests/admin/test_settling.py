"""The page that asks whether a step was done, and the bulk of one answer for many runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from durable import Context, Found, Unknown, get_run, workflow
from durable.models import Cause, OperatorAction, Run
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, hidden, read, text_of, url
from tests.support.browsers import look

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('order')</script>"
ALL = (*OPERATOR, "settle_step")
LogIn = Callable[..., Client]
CALLS: list[Any] = []
STATE = {"error": "timeout <b>bold</b>", "is_down": True}


def charge(order: Any, _amount: int) -> str:
    CALLS.append(order)
    if STATE["is_down"]:
        raise OSError(STATE["error"])
    return f"r-{order}"


def find_charge(_order: Any, _amount: int) -> Found[str] | Unknown:
    return Unknown("two charges <i>look alike</i>")


@workflow(name="tests.asked.order")
def order(ctx: Context, number: Any) -> str:
    return ctx.step("charge", charge, number, 990, once=True, verify=find_charge)


@workflow(name="tests.asked.held")
def held(ctx: Context, number: Any) -> str:
    return ctx.step("book", charge, number, 990, max_retries=0, when_exhausted="hold")


@pytest.fixture(autouse=True)
def _down() -> Iterator[None]:
    STATE["is_down"] = True
    yield
    CALLS.clear()


@pytest.fixture
def settler(log_in: LogIn) -> Client:
    return log_in(*ALL)


def asked(run_id: str = "run", at: str = "charge") -> str:
    return f"{url('act', run_id, 'settle')}?at={at}"


def answered(client: Client, address: str, said: str, **more: str) -> Any:
    return confirm(client, address, more, said=said, reason="I looked")


def test_the_page_has_the_facts(stage: Stage, settler: Client) -> None:
    stage.start(order, 42, id="run")
    body = read(settler, asked())
    assert "Was it done?" in body
    assert "charge(42, 990)" in body
    assert "Nobody knows whether attempt 1 was done." in body
    assert "OSError: timeout" in body
    assert "two charges <i>look alike</i>" in body
    key = next(each.data["once"]["key"] for each in get_run("run").history())
    assert key in body
    assert "python manage.py durable settle run charge --done JSON" in body
    assert "Recover the run instead" in body


def test_nothing_of_the_outside_is_markup(stage: Stage, settler: Client) -> None:
    stage.start(order, HOSTILE, id="run")
    body = text_of(settler.get(asked()))
    for each in (HOSTILE, "<b>bold</b>", "<i>look alike</i>"):
        assert each not in body
    assert "&lt;script&gt;" in body
    many = text_of(settler.post(url("bulk"), {"verb": "settle", "id": ["run"]}))
    assert HOSTILE not in many


def test_arguments_are_for_those_who_may_see_payloads(stage: Stage, log_in: LogIn) -> None:
    stage.start(order, "secret-42", id="run")
    body = text_of(log_in("view_run", "settle_step").get(asked()))
    assert "secret-42" not in body
    assert "Was it done?" in body


def test_the_three_answers(stage: Stage, settler: Client) -> None:
    for said, more, state, output in (
        ("done", {"done": '"r-hand"'}, "completed", "r-hand"),
        ("not_done", {}, "completed", "r-7"),
        ("fail", {}, "failed", None),
    ):
        STATE["is_down"] = True
        stage.start(order, 7, id=said)
        STATE["is_down"] = False
        answer = answered(settler, asked(said), said, **more)
        assert (answer.status_code, answer["Location"]) == (302, url("change", said))
        assert stage.settle(said).state == state
        assert output is None or get_run(said).output == output
    rows = OperatorAction.objects.filter(action="settle").order_by("id")
    assert [(row.source, row.outcome, row.reason) for row in rows] == [("admin", "done", "I looked")] * 3
    assert [row.detail.partition(": ")[2] for row in rows] == ["it was done", "it was not done", "it fails"]


@pytest.mark.parametrize(
    ("said", "done", "word"),
    [("", "", "Choose an answer."), ("perhaps", "", "Choose an answer."), ("done", "{", "This is not JSON")],
)
def test_what_is_no_answer_is_asked_again(stage: Stage, settler: Client, said: str, done: str, word: str) -> None:
    stage.start(order, 7, id="run")
    body = text_of(answered(settler, asked(), said, done=done), 422)
    assert word in body
    assert "I looked" in body
    assert get_run("run").info().held


def test_somebody_else_was_faster(stage: Stage, settler: Client) -> None:
    stage.start(order, 7, id="run")
    fields = hidden(settler.get(asked()))
    get_run("run").settle("charge", fail=True)
    body = text_of(settler.post(asked(), {**fields, "said": "not_done", "reason": "late"}), 409)
    assert "“charge” does not wait for a person: somebody may have settled it meanwhile." in body
    assert "changed since" in body
    assert CALLS == [7]
    assert "does not wait for a person" in text_of(settler.get(asked()))


def test_a_step_whose_attempts_are_used_up_may_be_tried_again(stage: Stage, settler: Client) -> None:
    stage.start(held, 7, id="run")
    body = text_of(settler.get(asked(at="book")))
    order_of_answers = re.findall(r'name="said" value="(\w+)"', body)
    assert order_of_answers == ["not_done", "done", "fail"]
    assert "Try it again, with all its attempts" in body
    assert "Was it done?" not in re.sub(r"<title>.*?</title>", "", body)
    STATE["is_down"] = False
    answered(settler, asked(at="book"), "not_done")
    assert stage.settle("run").state == "completed"


def test_the_run_offers_what_helps(stage: Stage, settler: Client, log_in: LogIn) -> None:
    stage.start(held, 7, id="run")
    page = text_of(settler.get(url("change", "run")))
    assert url("act", "run", "settle") in page
    assert url("act", "run", "recover") in page
    assert "durable settle run LOCATION --done JSON" in unescape(page)
    body = text_of(settler.get(url("act", "run", "recover")))
    assert "What failed, or waits for a person, is tried again" in body
    assert "it would be refused" not in body
    STATE["is_down"] = False
    assert confirm(settler, url("act", "run", "recover")).status_code == 302
    assert stage.settle("run").state == "completed"
    assert url("act", "run", "settle") not in text_of(settler.get(url("change", "run")))
    other = log_in(*OPERATOR, name="olga")
    stage.start(order, 8, id="other")
    assert url("act", "other", "settle") not in text_of(other.get(url("change", "other")))


def test_twelve_runs_of_a_cause_get_one_answer(stage: Stage, settler: Client) -> None:
    ids = [f"order-{number}" for number in range(12)]
    for number, each in enumerate(ids):
        stage.start(order, number, id=each)
    STATE["is_down"] = False
    cause = text_of(settler.get(url("cause", Cause.objects.get().fingerprint)))
    [address] = re.findall(r'href="([^"]+)">Settle the steps that wait<', cause)
    page = settler.get(unescape(address))
    body = text_of(page)
    assert "Settle <strong>12</strong> runs." in body
    assert "for the steps at “charge” that wait for a person" in body
    assert 'name="place"' not in body
    refused = settler.post(unescape(address), {**hidden(page), "reason": "the bank told us"})
    assert "Choose an answer." in text_of(refused, 422)
    fields = {**hidden(page), "said": "done", "done": '{"paid": true}', "reason": "the bank told us"}
    for _ in range(2):  # and twice is once
        answer = settler.post(url("bulk"), fields)
        assert answer.status_code == 302
    bulk = Run.objects.get(workflow="durable.bulk")
    stage.settle(bulk.id)
    for each in ids:
        stage.settle(each)
    assert [get_run(each).output for each in ids] == [{"paid": True}] * 12
    shown = text_of(settler.get(url("bulk_result", bulk.id)))
    assert "12 of 12" in shown
    assert "it was done" in shown


def test_the_list_offers_it_where_runs_wait(stage: Stage, settler: Client) -> None:
    stage.start(order, 1, id="run")
    offered = [each.action for each in settler.get(url("changelist") + "?held=1").context["verbs"]]
    assert offered[:2] == ["recover", "settle"]
    assert "replay" not in offered
    every = [each.action for each in settler.get(url("changelist")).context["verbs"]]
    assert "settle" not in every


def test_a_restart_and_a_cancel_say_that_nobody_knows(stage: Stage, settler: Client) -> None:
    stage.start(order, 1, id="run")
    for address in (url("act", "run", "restart"), url("replay", "run") + "?at=charge"):
        assert 'Nobody knows whether "charge" was done: it would be done again' in read(settler, address)
    assert "nobody will be asked any more" in read(settler, url("act", "run", "cancel"))


@pytest.mark.browser
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_person_answers_in_the_browser(sign_in: Callable[..., Page], stage: Stage, complaints: list[str]) -> None:
    stage.start(order, HOSTILE, id="run")
    page = sign_in(*ALL, to=url("change", "run"))
    page.get_by_role("link", name="Settle", exact=True).click()
    page.get_by_role("heading", name="Was it done?").wait_for()
    look(page, "settle", complaints)
    page.get_by_label("It was done").check()
    page.get_by_label("Result (JSON)").fill('"r-hand"')
    page.get_by_role("textbox", name="Reason").fill("the bank says so")
    page.get_by_role("button", name="Settle the step").click()
    page.get_by_text("The step is settled, and the run goes on.").wait_for()
    stage.start(held, 9, id="other")
    page.goto(url("act", "other", "settle"))
    look(page, "used-up", complaints)
    page.goto(url("bulk") + "?verb=settle&id=other")
    look(page, "settle-many", complaints)
    assert stage.settle("run").state == "completed"
    assert get_run("run").output == "r-hand"
    assert complaints == []
