"""What pages, REST, the command line and files say of a link: its state, and never its address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, override_settings

from durable import Context, workflow
from durable.core.records import LINK_SECRET
from durable.models import Entry, QueueMessage
from durable.testing import Harness

pytestmark = pytest.mark.django_db(transaction=True)

given: list[str] = []


@workflow(name="tests.hooks.shown")
def shown(ctx: Context) -> Any:
    paid = ctx.link("paid", timeout="3 days")
    ctx.step("ask the bank", given.append, paid.url)
    return paid.wait("the bank's answer")


@pytest.fixture
def h() -> Iterator[Harness]:
    given.clear()
    with override_settings(DURABLE={"BASE_URL": "https://testserver"}), Harness(store="database") as harness:
        yield harness


def secrets_of(run: Any) -> list[str]:
    data = Entry.objects.get(run=run.id, location="paid").data
    return [given[0].split("/")[-2], *(data[name] for name in LINK_SECRET)]


def told(command: str, *args: str) -> str:
    out = StringIO()
    call_command("durable", command, *args, stdout=out)
    return out.getvalue()


def test_each_surface_says_the_state_and_none_the_address(h: Harness) -> None:
    run = h.start(shown)
    h.settle()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))

    def all_of_it() -> str:
        pages = [
            client.get(f"/admin/durable/run/{run.id}/change/"),
            client.get(f"/api/runs/{run.id}/tree"),
            client.get(f"/api/runs/{run.id}/entries"),
            client.get(f"/api/runs/{run.id}/entries/paid"),
            client.get(f"/api/runs/{run.id}/entries/ask%20the%20bank"),
            client.get(f"/api/runs/{run.id}/messages"),
        ]
        assert [each.status_code for each in pages] == [200] * len(pages)
        texts = [each.content.decode() for each in pages]
        return "\n".join([*texts, told("show", run.id), told("why", run.id), repr(run.history())])

    text = all_of_it()
    assert "open until" in text
    assert 'waiting for the answer of link "paid"' in text.replace("Waiting", "waiting").replace("&quot;", '"')
    assert not any(each in text for each in secrets_of(run))
    h.open_link(given[0], b"7", {"Content-Type": "application/json"})
    text = all_of_it()
    assert "answered" in text
    assert not any(each in text for each in secrets_of(run))


def test_people_do_not_meet_the_queue_of_a_link(h: Harness) -> None:
    run = h.start(shown)
    h.settle()
    h.open_link(given[0], b"7", {"Content-Type": "application/json"})
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    of_run = f"/admin/durable/run/{run.id}"

    def pages() -> str:
        body = f"{of_run}/payload/?of=message&id={QueueMessage.objects.get().id}"
        wait = "at=the%20bank's%20answer"
        addresses = [
            body,
            f"{of_run}/change/?part=messages",
            f"{of_run}/send/",
            f"{of_run}/change/",
            f"{of_run}/step/?{wait}",
        ]
        return "\n".join(client.get(each).content.decode() for each in addresses)

    before = pages()
    h.finish(run)
    after = pages()
    assert "not received yet" in before
    assert "Message link paid" in after, "on the page of the wait"
    assert '<th scope="row">link paid</th>' in before
    assert "message of link paid" in before.lower()
    assert "durable.link:" not in before + after


def test_a_file_of_the_history_has_no_secret(h: Harness) -> None:
    run = h.start(shown)
    h.settle()
    entry = run.history()[0]
    assert (entry.kind, entry.data["verify"]) == ("link", None)
    text = told("export", run.id, "--history")
    assert '"queue"' in text
    assert not any(each in text for each in secrets_of(run))
    assert [json.loads(line) for line in text.splitlines()]


def test_a_status_does_not_show_the_address(h: Harness) -> None:
    def tells(ctx: Context) -> None:
        paid = ctx.link("paid")
        ctx.step("ask", given.append, paid.url)
        ctx.status(f"pay at {paid.url}")
        paid.wait("answer")

    run = h.start(tells)
    h.settle()
    assert run.status is not None
    assert run.status.text == "pay at https://testserver/durable/links/dlk_.../"


def test_the_line_of_a_step_does_not_show_the_address(h: Harness) -> None:
    def tells(ctx: Context) -> None:
        paid = ctx.link("paid")
        ctx.step("ask", given.append, paid.url, summary=f"{'.' * 140} {paid.url}")
        paid.wait("answer")

    run = h.start(tells)
    h.settle()
    assert run.history()[1].data["summary"] == f"{'.' * 140} https://testserver/durable/links/dlk_.../"
