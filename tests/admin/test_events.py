"""The page of published events: who got them, who waits, by name and key; over REST and on the command line too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.utils import timezone

import durable
from durable import Context, event, workflow
from durable.admin import events_page
from durable.inspection import published
from durable.models import Event, EventWait
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.django_db


@workflow(name="tests.events_page.wait")
def wait(ctx: Context, key: str) -> Any:
    return ctx.event("paid", "page.paid", key=key)


@workflow(name="tests.events_page.receipt", on=event("page.paid"))
def receipt(ctx: Context, body: Any) -> None:
    return None


@pytest.fixture
def paid(transactional_db: None) -> None:
    """One event that a run got, with a run that it has started; a run that waits for another key."""

    with in_force():
        wait.using(id="got-it").start("7")
        wait.using(id="waits-on").start("8")
        settle()
        durable.publish("page.paid", {"secret": 1}, key="7", id="e-1")
        settle()
        durable.publish("page.sent", None, key="7", id="e-2")


def test_the_page_says_who_got_an_event_and_who_waits(paid: None, operator: Client) -> None:
    page = operator.get(url("events"))
    text = text_of(page)
    assert [each.event.event_id for each in page.context["events"]] == ["e-2", "e-1"]
    assert all(each in text for each in ("page.paid", "got-it", "tests.events_page.receipt:e-1", "waits-on"))
    assert [each.got for each in page.context["events"]] == [[], ["got-it"]]
    assert "secret" not in page.content.decode()
    found = text_of(operator.get(url("events"), {"event": "page.paid", "key": "8"}))
    assert "waits-on" in found
    assert "got-it" not in found
    alone = operator.get(url("events"), {"key": "7"})
    assert len(alone.context["events"]) == 2
    assert "The newest 10,000 are searched" in text_of(alone)


def test_the_page_of_a_wait_leads_there(paid: None, operator: Client) -> None:
    page = operator.get(url("step", "waits-on"), {"at": "paid"})
    assert f'href="{url("events")}?event=page.paid&amp;key=8"' in page.content.decode()
    step = operator.get(url("step", "got-it"), {"at": "paid"}).content.decode()
    assert f'href="{url("events")}?event=page.paid&amp;key=7"' in step


def test_an_open_event_says_how_many_wait(paid: None, operator: Client) -> None:
    EventWait.objects.filter(run="waits-on").update(key="9")
    Event.objects.create(event_id="e-3", name="page.paid", key="9", body="1", published_at=timezone.now())
    assert "1 run waits" in text_of(operator.get(url("events")))


def test_pages_follow_each_other(db: None, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_page, "PAGE", 2)
    with in_force():
        for number in range(5):
            durable.publish("page.many", number, key="7", id=f"e-{number}")
            wait.using(id=f"w-{number}").start("1")
        settle()
    for table, name in (("events", "next_events"), ("waits", "next_waits")):
        seen, following = [], "?"
        while following:
            context = operator.get(f"{url('events')}{following}").context
            seen += [str(getattr(each, "run_id", None) or each.event.event_id) for each in context[table]]
            following = context[name]
        assert len(seen) == len(set(seen)) == 5, table
        assert seen == sorted(seen, reverse=True), table
    assert operator.get(url("events"), {"events": "nonsense", "waits": "W10"}).status_code == 200


def test_a_page_makes_the_same_statements_for_many(
    db: None, operator: Client, django_assert_num_queries: Callable[..., Any]
) -> None:
    counts = []
    for number in (1, 20):
        with in_force():
            for each in range(number):
                durable.publish("page.many", each, key="7", id=f"e-{number}-{each}")
        with django_assert_num_queries(4, exact=False) as queries:
            published.list_events(limit=50)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_of_a_name_alone_a_window_is_searched(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "WINDOW", 3)
    with in_force():
        for number, name in enumerate(("rare", "common", "rare", "common", "common")):
            durable.publish(f"page.{name}", number, key="7", id=f"e-{number}")
    found = [each.event.event_id for each in published.list_events(name="page.rare", limit=9)]
    assert found == ["e-2"]
    assert len(published.list_events(name="page.rare", key="7", limit=9)) == 2


def test_users_who_see_some_runs_only_are_refused(stage: Stage, client: Client) -> None:
    user = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable"))
    client.force_login(user)
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.all_of_them", "API_RUNS": f"{__name__}.all_of_them"}):
        assert client.get(url("events")).status_code == 403
        for address in ("/api/events", "/api/event-waits"):
            assert client.get(address).status_code == 403
    assert client.get(url("events")).status_code == 200
    user.user_permissions.clear()
    assert Client().get(url("events")).status_code == 302


def all_of_them(request: Any, runs: Any) -> Any:
    return runs


def test_the_list_over_rest(paid: None, admin_client: Client) -> None:
    [sent, found] = admin_client.get("/api/events").json()["results"]
    assert (found["id"], found["name"], found["key"], found["delivered"]) == ("e-1", "page.paid", "7", 1)
    assert (found["got"], found["started"]) == (["got-it"], ["tests.events_page.receipt:e-1"])
    assert (sent["got"], sent["is_open"], sent["waiting"]["number"]) == ([], False, 0)
    page = admin_client.get("/api/events", {"limit": 1}).json()
    [other] = admin_client.get("/api/events", {"limit": 1, "cursor": page["next_cursor"]}).json()["results"]
    assert (page["results"], other) == ([sent], found)
    assert admin_client.get("/api/events", {"cursor": "nonsense"}).status_code == 400
    [waiting] = admin_client.get("/api/event-waits").json()["results"]
    assert (waiting["run"], waiting["workflow"], waiting["key"]) == ("waits-on", wait.name, "8")
