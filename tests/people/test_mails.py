"""Mails about questions: when they are sent, to whom, and what their links do."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser, User
from django.core import mail
from django.core.cache import cache
from django.core.mail.backends import locmem
from django.db import models
from django.template import Context as TemplateContext
from django.template import Template
from django.test import Client, RequestFactory, override_settings
from django.test.utils import isolate_apps

from durable import Context
from durable.operations.question_mails import address_of, remind
from durable.people import questions_for, questions_of
from durable.testing import Harness
from tests.people.conftest import CHANGE, People, begun
from tests.people.forms import Careless, RefundForm, Unmakeable, Unshowable


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def opened(h: Harness, form: Any = None, **options: Any) -> Any:
    def order(ctx: Context) -> Any:
        verdict = ctx.ask_person("approve refund", form, **options)
        return [verdict.data, verdict.by, verdict.comment]

    return begun(h, order)


def receivers() -> list[str]:
    return sorted(each.to[0] for each in mail.outbox)


def path_of(number: int = -1) -> str:
    found = re.search(r"https://shop\.example(\S+)", str(mail.outbox[number].body))
    assert found is not None, mail.outbox[number].body
    return found[1]


def csrf(client: Client, path: str) -> str:
    page = client.get(path, secure=True)
    assert page.status_code == 200, page.content.decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.content.decode())
    assert found is not None
    return found[1]


def post(client: Client, path: str, **data: Any) -> Any:
    given = {**data, "csrfmiddlewaretoken": csrf(client, path)}
    return client.post(path, given, secure=True, headers={"Origin": "https://testserver"})


# -- when


def test_a_reminder_is_sent_once_each_time(h: Harness, people: People) -> None:
    people.allowed("anna")
    run = opened(h, permission=CHANGE, remind="2 days", timeout="5 days")
    assert mail.outbox == []
    h.advance("2 days")
    for _ in range(3):
        h.settle()
        h.run(run)
    assert receivers() == ["anna@shop.example"]
    assert "approve refund" in mail.outbox[0].subject
    h.advance("2 days")
    h.settle()
    assert len(mail.outbox) == 2
    h.advance("2 days")
    h.settle()
    assert len(mail.outbox) == 2, "nobody can answer any more"
    assert run.state == "failed"


def test_a_mail_is_sent_at_once_if_the_code_says_so(h: Harness, people: People) -> None:
    for each in ("max", "eva"):
        people.manager(each)
    people.anna  # noqa: B018  # is not asked
    opened(h, to=people.managers, mail=True)
    assert receivers() == ["eva@shop.example", "max@shop.example"]
    h.advance("10 days")
    h.settle()
    assert len(mail.outbox) == 2


def test_a_mail_says_what_the_question_is_about(h: Harness, people: People) -> None:
    people.manager("max")
    opened(h, to=people.managers, mail=True, about=people.managers)
    opened(h, to=people.managers, mail=True, about="auth.group:0")
    assert [str(each.body).splitlines()[:2] for each in mail.outbox] == [
        ["approve refund", "managers"],
        ["approve refund", "auth.group:0"],
    ]


def test_an_answer_ends_the_reminders(h: Harness, people: People) -> None:
    anna = people.allowed("anna")
    run = opened(h, permission=CHANGE, remind="1 day")
    h.answer(run, "approve refund", True, by=anna)
    h.advance("1 day")
    h.settle()
    assert mail.outbox == []


def test_a_cancelled_run_reminds_nobody(h: Harness, people: People) -> None:
    people.allowed("anna")
    run = opened(h, permission=CHANGE, remind="1 day")
    run.cancel()
    h.advance("1 day")
    h.settle()
    assert mail.outbox == []
    assert questions_of(run.id)[0].outcome == "ended"


def test_who_may_not_answer_gets_no_mail(h: Harness, people: People) -> None:
    for name in ("anna", "bert", "carl"):
        people.allowed(name)
    User.objects.filter(username="carl").update(is_active=False)
    run = opened(h, permission=CHANGE, remind="1 day", approvals=3, not_by="user:bert")
    people.allowed("dora")
    h.answer(run, "approve refund", True, by=people.dora)
    h.advance("1 day")
    h.settle()
    assert receivers() == ["anna@shop.example"]


def test_a_question_is_escalated(h: Harness, people: People) -> None:
    run = opened(h, to=people.max, remind="1 day", escalate=("2 days", people.boss))
    h.advance("1 day")
    h.settle()
    h.advance("1 day")
    h.settle()
    assert [each.to for each in mail.outbox] == [["max@shop.example"], ["boss@shop.example"]]
    assert questions_for(people.max) == []
    [found] = questions_for(people.boss)
    assert (found.to, found.notes[0]["text"]) == ("boss", "→ boss")
    h.answer(run, "approve refund", True, by=people.boss)
    h.settle()
    assert run.output[1] == "boss"


def test_a_mail_that_cannot_be_sent_is_tried_again(
    h: Harness, people: People, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: Any) -> None:
        raise OSError("no route to the mail server")

    people.allowed("anna")
    opened(h, permission=CHANGE, remind="1 day")
    h.advance("1 day")
    with monkeypatch.context() as outage, caplog.at_level(logging.ERROR):
        outage.setattr(locmem.EmailBackend, "send_messages", is_away)
        h.settle()
    assert "could not be sent" in caplog.text
    h.settle()
    assert mail.outbox == []
    h.advance(timedelta(minutes=5))
    h.settle()
    assert len(mail.outbox) == 1


def test_the_sweep_sends_them(people: People) -> None:
    people.allowed("anna")
    with override_settings(DURABLE={"BASE_URL": "https://shop.example"}), Harness(store="database") as h:
        run = opened(h, permission=CHANGE, remind="1 day")
        h.advance("1 day")
        assert remind(h.now) == 1
        assert remind(h.now) == 0
        assert run.state == "sleeping"


# -- links


def test_a_mail_has_a_link_by_which_its_receiver_answers(h: Harness, people: People) -> None:
    anna = people.allowed("anna")
    run = opened(h, RefundForm, permission=CHANGE, mail=True, text="<b>Late</b>")
    browser = Client(enforce_csrf_checks=True)
    page = browser.get(path_of(), secure=True)
    text = page.content.decode()
    assert "You answer as anna." in text
    assert "&lt;b&gt;Late&lt;/b&gt;" in text
    assert run.id not in text
    assert (page["Referrer-Policy"], page["X-Frame-Options"]) == ("same-origin", "DENY")
    assert "no-store" in page["Cache-Control"]
    refused = post(browser, path_of(), amount="none")
    assert (refused.status_code, "Enter a number." in refused.content.decode()) == (422, True)
    done = post(browser, path_of(), amount="1", approved="on", durable_comment="by mail")
    assert (done.status_code, "Thank you" in done.content.decode()) == (200, True)
    h.settle()
    assert run.output[1:] == [anna.username, "by mail"]
    assert browser.get(path_of(), secure=True).status_code == 410


def test_somebody_without_an_account_answers_by_the_link(h: Harness, people: People) -> None:
    run = opened(h, to="tax@office.example")
    assert receivers() == ["tax@office.example"]
    browser = Client(enforce_csrf_checks=True)
    assert post(browser, path_of(), durable_verdict="no").status_code == 200
    h.settle()
    assert run.output == [False, "tax@office.example", ""]


def test_a_form_that_fails_is_named_on_the_page_of_the_link(h: Harness, people: People) -> None:
    run = opened(h, Careless, to="tax@office.example")
    browser = Client(enforce_csrf_checks=True)
    page = post(browser, path_of(), amount="a lot")
    assert page.status_code == 422
    for told in ("Enter a number.", "the form tests.people.forms:Careless has failed: KeyError"):
        assert page.content.decode().count(told) == 1
    assert post(browser, path_of(), amount="7").status_code == 200
    h.settle()
    assert run.output[1] == "tax@office.example"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (Unshowable, "the form tests.people.forms:Unshowable has failed: RuntimeError;"),
        (
            Unmakeable,
            "nobody can answer by tests.people.forms:Unmakeable: it cannot be made without arguments: Runtime",
        ),
    ],
    ids=["choices", "constructor"],
)
def test_a_form_that_cannot_be_shown_is_named_on_the_page_of_the_link(
    h: Harness, people: People, caplog: pytest.LogCaptureFixture, form: Any, told: str
) -> None:
    opened(h, form, to="tax@office.example")
    page = Client().get(path_of(), secure=True)
    assert page.status_code == 200
    assert page.content.decode().count(told) == 1
    assert "secret" not in page.content.decode()
    assert "secret" in caplog.text


@isolate_apps("tests.people")
def test_users_and_groups_need_no_columns_that_django_does_not_ask_for(
    h: Harness, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain(AbstractBaseUser):
        username = models.CharField(max_length=150, unique=True)
        email = models.EmailField()
        objects: ClassVar[models.Manager[Any]] = models.Manager()

        USERNAME_FIELD = "username"

        class Meta:
            app_label = "people"
            db_table = "auth_user"
            managed = False

    anna = people.anna
    for each in ("people", "question_mails"):
        monkeypatch.setattr(f"durable.operations.{each}.get_user_model", lambda: Plain)
    opened(h, to=f"user:{anna.username}", mail=True)
    opened(h, to=people.managers, mail=True)
    opened(h, permission=CHANGE, mail=True)
    assert receivers() == ["anna@shop.example"]


def test_a_get_never_acts(h: Harness, people: People) -> None:
    run = opened(h, to="tax@office.example")
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
        Client().generic(method, f"{path_of()}?durable_verdict=yes", secure=True)
    h.settle()
    assert run.state == "sleeping"


def test_a_post_needs_the_token_of_the_page(h: Harness, people: People) -> None:
    run = opened(h, to="tax@office.example")
    browser = Client(enforce_csrf_checks=True)
    assert browser.post(path_of(), {"durable_verdict": "yes"}, secure=True).status_code == 403
    token = csrf(browser, path_of())
    foreign = browser.post(
        path_of(),
        {"durable_verdict": "yes", "csrfmiddlewaretoken": token},
        secure=True,
        headers={"Origin": "https://evil.example"},
    )
    assert foreign.status_code == 403
    h.settle()
    assert run.state == "sleeping"


def test_a_link_is_for_one_person_and_one_question(h: Harness, people: People) -> None:
    people.allowed("anna")
    eve = people.eve
    opened(h, permission=CHANGE, mail=True)
    *_, question, word, token = path_of().strip("/").split("/")
    guesses = [
        (question, word, token[:-1] + ("A" if token[-1] != "A" else "B")),
        (question, f"u{eve.pk}", token),
        (question, "m", token),
        (question, "u", token),
        (question, "x", token),
        ("0" * 16, word, token),
        (question, word, "guess"),
        ("\x00", "\x00", token),
    ]
    for a, b, c in guesses:
        answer = Client().get(f"/durable/questions/{a}/{b}/{c}/", secure=True)
        assert answer.status_code == 404, (a, b, c)


def test_many_guesses_are_answered_briefly(h: Harness, people: People) -> None:
    with override_settings(DURABLE={"LINK_REFUSALS": 3}):
        statuses = [
            Client().get(f"/durable/questions/{'0' * 16}/m/guess-{number}/", secure=True).status_code
            for number in range(5)
        ]
    assert statuses == [404, 404, 404, 429, 429]


def test_the_link_of_who_may_not_answer_any_more_does_nothing(h: Harness, people: People) -> None:
    anna = people.allowed("anna")
    run = opened(h, permission=CHANGE, mail=True)
    browser = Client(enforce_csrf_checks=True)
    token = csrf(browser, path_of())
    anna.user_permissions.clear()
    assert browser.get(path_of(), secure=True).status_code == 403
    given = {"durable_verdict": "yes", "csrfmiddlewaretoken": token}
    answer = browser.post(path_of(), given, secure=True, headers={"Origin": "https://testserver"})
    assert answer.status_code == 403
    User.objects.filter(pk=anna.pk).delete()
    assert browser.get(path_of(), secure=True).status_code == 404
    h.settle()
    assert run.state == "sleeping"


@pytest.mark.parametrize("ended", ["timeout", "cancel", "handed over"])
def test_an_old_link_is_dead(h: Harness, people: People, ended: str) -> None:
    run = opened(h, to="tax@office.example", timeout="1 day")
    path = path_of()
    if ended == "timeout":
        h.advance("1 day")
    elif ended == "cancel":
        run.cancel()
    else:
        questions_of(run.id)[0].hand_over("other@office.example", by="tax@office.example")
    assert Client().get(path, secure=True).status_code == (404 if ended == "handed over" else 410)
    if ended == "handed over":
        h.settle()
        assert receivers() == ["other@office.example", "tax@office.example"]
        assert Client().get(path_of(), secure=True).status_code == 200


def test_the_key_of_the_project_may_be_rotated(h: Harness, people: People) -> None:
    opened(h, to="tax@office.example")
    with override_settings(SECRET_KEY="another"):  # of a test
        assert Client().get(path_of(), secure=True).status_code == 404
        from django.conf import settings

    old = settings.SECRET_KEY
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[old]):  # as above
        assert Client().get(path_of(), secure=True).status_code == 200


def test_no_log_has_the_token(h: Harness, people: People, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    opened(h, to="tax@office.example")
    token = path_of().strip("/").rpartition("/")[2]
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.get(path_of()[:-2], secure=True)
    browser.post(path_of(), {}, secure=True)
    browser.put(path_of(), secure=True)
    assert [each.getMessage() for each in caplog.records if token in each.getMessage()] == []


# -- a project's own pages


def test_a_template_lists_the_questions_of_its_user(h: Harness, people: People) -> None:
    anna = people.allowed("anna")
    run = opened(h, permission=CHANGE, about=people.managers)
    request = RequestFactory().get("/")
    text = Template("{% load durable %}{% durable_inbox %}{% durable_inbox as mine %}{{ mine|length }}")
    for user, number in ((anna, 1), (people.eve, 0), (AnonymousUser(), 0)):
        request.user = user
        page = text.render(TemplateContext({"request": request}))
        assert page.endswith(str(number))
        assert ("approve refund" in page) == bool(number)
    [found] = questions_of(run.id)
    client = Client(enforce_csrf_checks=True)
    path = f"/durable/questions/{found.id}/"
    assert client.get(path).status_code == 302
    client.force_login(people.eve)
    assert client.get(path).status_code == 404
    client.force_login(anna)
    assert "managers" in client.get(path, secure=True).content.decode()
    assert post(client, path, durable_verdict="yes").status_code == 200
    h.settle()
    assert run.output[:2] == [True, "anna"]


def test_without_urls_a_mail_has_no_link(people: People) -> None:
    people.allowed("anna")
    with Harness(store="database") as h:
        run = opened(h, permission=CHANGE)
        record = h._store.questions([run.id])[0]
        with override_settings(ROOT_URLCONF="tests.people.no_urls"):
            assert address_of(record, "user:1") == ""
