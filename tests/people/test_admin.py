"""The inbox of the admin, the page of a question, and the questions on a run's page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import Context, workflow
from durable.models import OperatorAction
from durable.people import questions_for, questions_of
from durable.testing import Harness
from tests.people.conftest import CHANGE, People, begun
from tests.people.forms import Careless, RefundForm, Unshowable

INBOX = "/admin/durable/run/inbox/"


@workflow(name="tests.people.refund")
def refund(ctx: Context, /, with_form: bool = True, name: str = "approve refund", **options: Any) -> Any:
    options = {"permission": CHANGE, **options}
    verdict = ctx.ask_person(name, RefundForm if with_form else None, **options)
    return [verdict.data, verdict.by, verdict.comment]


@workflow(name="tests.people.careless")
def careless(ctx: Context) -> Any:
    verdict = ctx.ask_person("approve refund", Careless, permission=CHANGE)
    return [verdict.data, verdict.by]


@workflow(name="tests.people.unshowable")
def unshowable(ctx: Context) -> Any:
    return ctx.ask_person("approve refund", Unshowable, permission=CHANGE).data


@pytest.fixture
def h(db: None) -> Iterator[Harness]:
    with Harness(store="database") as harness:
        yield harness


def staff(user: User, *permissions: str) -> Client:
    user.is_staff = True
    user.save()
    for each in permissions:
        user.user_permissions.add(Permission.objects.get(codename=each, content_type__app_label="durable"))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


@pytest.fixture
def client(anna: User) -> Client:
    """The browser of a user with no permission but the one that an answer needs."""
    return staff(anna)


def opened(h: Harness, **options: Any) -> tuple[Any, str]:
    run = begun(h, refund, **options)
    [question] = questions_of(run.id)
    return run, f"{INBOX}{question.id}/answer/"


def text(response: Any, status: int = 200) -> str:
    assert response.status_code == status, (response.status_code, response.content.decode()[-3000:])
    return str(response.content.decode())


def post(client: Client, path: str, **data: Any) -> Any:
    page = client.get(path)
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', text(page))
    assert token is not None
    return client.post(path, {**data, "csrfmiddlewaretoken": token[1]})


def test_a_user_with_no_other_permission_finds_and_answers_it(h: Harness, people: People, client: Client) -> None:
    run, path = opened(h, text="<b>Late</b> delivery")
    page = text(client.get(INBOX))
    assert "approve refund" in page
    assert "&lt;b&gt;Late&lt;/b&gt; delivery" in page
    assert run.id not in page, "who may not see runs is not told of any"
    assert path in page
    index = text(client.get("/admin/"))
    assert INBOX in index
    answer = post(client, path, amount="12.50", approved="on", durable_comment="fine")
    assert answer.status_code == 302
    assert answer["Location"] == INBOX
    h.settle()
    assert run.output[1:] == ["anna", "fine"]
    assert "No question waits for you." in text(client.get(INBOX))
    [row] = OperatorAction.objects.filter(run_id=run.id)
    assert (row.action, row.source, row.outcome, row.actor) == ("answer", "admin", "done", people.anna)


def test_yes_and_no_are_buttons(h: Harness, client: Client) -> None:
    run, path = opened(h, with_form=False)
    refused = post(client, path)
    assert "Say yes or no." in text(refused, 422)
    assert post(client, path, durable_verdict="no").status_code == 302
    h.settle()
    assert run.output[0] is False


def test_what_the_form_refuses_is_shown_with_what_was_written(h: Harness, people: People, client: Client) -> None:
    _run, path = opened(h)
    page = text(post(client, path, amount="<script>", reason="as said", durable_comment="mine"), 422)
    assert "Enter a number." in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "as said" in page
    assert "mine" in page
    assert len(questions_for(people.anna)) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"amount": "a lot"}, ["Enter a number.", "the form tests.people.forms:Careless has failed: KeyError"]),
        ({"amount": "1000"}, ["At most 100."]),
    ],
    ids=["a form that fails", "a form that refuses"],
)
def test_what_is_wrong_with_the_whole_answer_is_said_once(
    h: Harness, people: People, client: Client, given: dict[str, str], told: list[str]
) -> None:
    run = begun(h, careless)
    path = f"{INBOX}{questions_of(run.id)[0].id}/answer/"
    page = text(post(client, path, **given), 422)
    assert [html.unescape(page).count(each) for each in told] == [1] * len(told)
    assert f'value="{given["amount"]}"' in page
    assert post(client, path, amount="7").status_code == 302
    h.settle()
    assert run.output[1] == "anna"


def test_a_form_that_cannot_be_shown_is_named_and_stops_no_page(h: Harness, people: People, client: Client) -> None:
    begun(h, refund)
    run = begun(h, unshowable)
    path = f"{INBOX}{questions_of(run.id)[0].id}/answer/"
    for page in (text(client.get(INBOX)), text(client.get(path))):
        assert page.count("the form tests.people.forms:Unshowable has failed: RuntimeError;") == 1
        assert "secret" not in page


def test_an_answer_that_cannot_be_recorded_says_why(h: Harness, client: Client) -> None:
    _run, path = opened(h)
    assert text(post(client, path, amount="1", reason="x" * 1_100_000), 422).count("MAX_PAYLOAD_BYTES") == 1


def test_without_the_token_of_the_page_nothing_is_done(h: Harness, client: Client) -> None:
    run, path = opened(h)
    assert client.post(path, {"amount": "1"}).status_code == 403
    for method in ("GET", "HEAD", "OPTIONS"):
        client.generic(method, f"{path}?amount=1&durable_verb=answer&durable_verdict=yes")
    h.settle()
    assert run.state == "sleeping"


def test_others_see_no_question(h: Harness, people: People) -> None:
    run, path = opened(h)
    eve = staff(people.eve)
    assert "approve refund" not in text(eve.get(INBOX))
    assert INBOX not in text(eve.get("/admin/"))
    assert "There is no such question." in text(eve.get(path), 404)
    assert eve.post(path, {"amount": "1"}).status_code == 403, "no token"
    viewer = staff(people.viewer, "view_run")
    assert "not for you" in text(viewer.get(path), 403)
    assert text(viewer.get(reverse("admin:durable_run_change", args=[run.id])))
    anonymous = Client().get(path)
    assert (anonymous.status_code, "/login/" in anonymous["Location"]) == (302, True)
    no_staff = Client()
    no_staff.force_login(people.allowed("anna"))
    assert no_staff.get(path).status_code == 302
    unknown = staff(people.anna).get(f"{INBOX}{'0' * 16}/answer/")
    assert unknown.status_code == 404


def test_a_question_that_was_answered_meanwhile_says_so(h: Harness, people: People, client: Client) -> None:
    run, path = opened(h)
    text(client.get(path))
    h.answer(run, "approve refund", {"amount": 1}, by=people.allowed("bert"))
    assert "not open any more" in text(client.get(path), 404)


def test_a_run_page_has_the_form_and_a_button(h: Harness, people: People) -> None:
    run, path = opened(h)
    change = reverse("admin:durable_run_change", args=[run.id])
    anna = staff(people.allowed("anna"), "view_run")
    page = text(anna.get(change))
    assert page.count(f'action="{path}"') == 1
    assert "Answer “approve refund”" in page
    assert "waiting for a person to answer" in page.lower()
    viewer = staff(people.viewer, "view_run")
    assert path not in text(viewer.get(change))
    assert "Answer “" not in text(viewer.get(change))


def test_two_forms_of_one_class_share_no_id(h: Harness, people: People) -> None:
    for _ in range(2):
        opened(h)
    page = text(staff(people.allowed("anna")).get(INBOX))
    ids = re.findall(r' id="([^"]+)"', page)
    assert sorted(ids) == sorted(set(ids))


def test_the_page_of_what_a_run_is_about_has_a_button_that_answers(h: Harness, people: People) -> None:
    from project.shop.models import Customer, Order

    order = Order.objects.create(customer=Customer.objects.create(name="Ada", email="ada@shop.example"), total=990)
    run = begun(h, refund.using(about=order))
    [question] = questions_of(run.id)
    root = User.objects.create_superuser("root")
    place = reverse("admin:shop_order_change", args=[order.pk])
    page = text(staff(root).get(place))
    assert f'href="{INBOX}{question.id}/answer/?next={quote(place, safe="")}"' in page
    assert "Answer “approve refund”" in page


def test_a_refund_is_approved_by_two_people_on_the_page_of_its_order(h: Harness, people: People) -> None:
    from project.shop.models import Customer, Order

    order = Order.objects.create(customer=Customer.objects.create(name="Ada", email="ada@shop.example"), total=990)
    run = begun(h, refund.using(about=order), approvals=2, permission="shop.change_order")
    place = reverse("admin:shop_order_change", args=[order.pk])
    own = Permission.objects.get(codename="change_order", content_type__app_label="shop")
    for name in ("anna", "bert"):
        user: User = getattr(people, name)
        client = staff(user, "view_run")
        assert client.get(place).status_code == 403, "the model's own permission"
        user.user_permissions.add(own)
        page = text(client.get(place))
        [path] = re.findall(r'href="([^"]*/answer/[^"]*)"', page)
        done = post(client, path, amount="12.50", approved="on", durable_comment=f"fine, {name}")
        assert (done.status_code, done["Location"]) == (302, place)
        assert "Answer “" not in text(client.get(place)), "nobody approves twice"
        h.settle()
    assert run.output[1:] == ["bert", "fine, bert"]


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "\x00", "a" * 9_000]
)
def test_an_answer_leads_to_no_other_site(h: Harness, client: Client, back: str) -> None:
    _run, path = opened(h)
    done = post(client, f"{path}?{urlencode({'next': back})}", amount="1", approved="on")
    assert done.status_code == 302
    assert done["Location"] in (INBOX, "a" * 9_000)


def test_claiming_commenting_and_handing_over(h: Harness, people: People, client: Client) -> None:
    _run, path = opened(h)
    bert = people.allowed("bert")
    assert post(client, path, durable_verb="comment", durable_comment="<i>who knows?</i>").status_code == 302
    assert post(client, path, durable_verb="claim").status_code == 302
    assert questions_for(bert) == []
    page = text(client.get(path))
    assert "anna has claimed it." in page
    assert "&lt;i&gt;who knows?" in page
    assert "There is no user and no group" in text(
        post(client, path, durable_verb="hand_over", durable_to="nobody"), 422
    )
    assert "There is no user and no group" in text(post(client, path, durable_verb="hand_over", durable_to="\x00"), 422)
    refused = post(client, path, durable_verb="hand_over", durable_to=people.eve.username)
    assert "may not answer" in text(refused, 403)
    assert post(client, path, durable_verb="hand_over", durable_to="bert").status_code == 302
    assert len(questions_for(bert)) == 1
    assert questions_for(people.anna) == []


def test_a_form_that_is_gone_says_so(h: Harness, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.people import forms

    _run, path = opened(h)
    monkeypatch.delattr(forms, "RefundForm")
    for page in (INBOX, path):
        assert "cannot be imported" in text(client.get(page))


def test_an_inbox_looks_up_only_what_each_question_is_about(h: Harness, people: People, client: Client) -> None:

    def statements(about: str | None, number: int) -> int:
        for each in range(number):
            opened(h, name=f"question {each}", about=about, not_by="user:nobody")
        client.get(INBOX)
        with CaptureQueriesContext(connection) as seen:
            assert f"question {number - 1}" in text(client.get(INBOX))
        return len(seen)

    one = statements(None, 1)
    assert statements(None, 12) == one
    # the row, and whether the user may see its page
    assert statements(f"auth.group:{people.managers.pk}", 3) - one <= 2 * 3
