"""Lists of runs about something: over REST, on the command line, in the admin, in exports, along their index."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import Context, workflow
from durable.inspection import run_lanes
from durable.inspection.pagination import RunOrder
from durable.inspection.run_facts import about_of, tags_and_about_of, tags_of
from durable.inspection.runs import RunCriteria, list_and_count, list_runs
from durable.models import Run, RunSubject, RunTag
from durable.runtime import Runtime
from durable.shortcuts import runs_of
from tests.subjects.conftest import Orders
from tests.support.commands import printed
from tests.support.plans import most_read, read, scans, sorts
from tests.support.stores import passed

RUNS: Final = 20_000
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
TABLES: Final = {"durable_run", "durable_runsubject"}


@workflow(name="tests.subject_lists.one")
def one(ctx: Context, number: int = 0) -> int:
    return ctx.step("one", lambda: number)


@pytest.fixture
def user(db: None) -> User:
    user = User.objects.create_user("ada", password="x", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(content_type__app_label="durable"))
    return user


@pytest.fixture
def ada(user: User, client: Client) -> Client:
    client.force_login(user)
    return client


def listed(**given: Any) -> list[str]:
    page, count = list_and_count(RunCriteria(**given))
    assert count is not None
    assert count.number == len(page.runs)
    return [run.id for run in page.runs]


def test_a_list_has_the_runs_about_something(at: Runtime, orders: Orders) -> None:
    first, second = orders(2)
    for number in range(4):
        one.using(id=f"r{number}", about=[first] if number % 2 else [first, second], tags={"n": number}).start()
    one.using(id="plain").start()
    passed(at, "r1")
    word = f"shop.order:{first.pk}"
    assert listed(about=word) == ["r3", "r2", "r1", "r0"]
    assert listed(about=f"shop.Order:{second.pk}") == ["r2", "r0"]
    assert listed(about=word, states=frozenset({"completed"})) == ["r1"]
    assert listed(about=word, tags=(("n", "2"),)) == ["r2"]
    assert listed(about=word, id_prefix="r3") == ["r3"]
    assert listed(about="shop.order:999999") == listed(about="gone.model:7") == []
    page, _ = list_and_count(RunCriteria(about=word), order=RunOrder("-finished_at"))
    assert [run.id for run in page.runs] == ["r1"]
    with pytest.raises(ValueError, match=r"app\.model:key"):
        RunCriteria(about="order 7")


def test_lists_read_tags_and_what_runs_are_about_at_once(at: Runtime, orders: Orders) -> None:
    first, second = orders(2)
    one.using(id="both", about=[second, first], tags={"zone": "eu", "a": 1}).start()
    one.using(id="plain").start()
    runs = list(Run.objects.filter(id__in=["both", "plain"]))
    with CaptureQueriesContext(connection) as queries:
        together = tags_and_about_of(runs)
    assert len(queries) == 1
    assert together == (tags_of(runs), about_of(runs))
    assert [each.word for each in together[1]["both"]] == [f"shop.order:{second.pk}", f"shop.order:{first.pk}"]
    assert [each.name for each in together[0]["both"]] == ["a", "zone"]


def test_pages_of_runs_about_something_follow_each_other(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    one.using(about=order).start_many([(n,) for n in range(7)], ids=[f"r{n}" for n in range(7)])
    found, cursor = [], None
    for _ in range(3):
        page, _count = list_and_count(RunCriteria(about=f"shop.order:{order.pk}"), cursor=cursor, limit=3)
        found += [run.id for run in page.runs]
        cursor = page.next_cursor
    assert found == [f"r{n}" for n in reversed(range(7))]
    assert cursor is None


def test_the_command_line_lists_and_starts_runs_about_something(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    word = f"shop.order:{order.pk}"
    printed("start", one.name, "--id", "r", "--about", word, "--when-deleted", "cancel")
    one.using(id="other").start()
    shown = printed("list", "--about", word, "--output", "json").splitlines()
    assert [json.loads(line)["id"] for line in shown] == ["r"]
    assert word in printed("show", "r")
    assert json.loads(printed("export", "r"))["run"]["about"] == [word]
    assert [each.cancels for each in at.store.subjects(["r"])["r"]] == [True]
    with pytest.raises(CommandError, match=r"app\.model:key"):
        printed("list", "--about", "order 7")
    with pytest.raises(CommandError, match=r"there is no model 'shop\.odrer'"):
        printed("list", "--about", "shop.odrer:42")
    RunSubject.objects.update(model="gone.model")
    assert printed("list", "--about", f"gone.Model:{order.pk}", "--output", "ids") == "r\n"


def test_the_run_s_page_shows_what_it_is_about(at: Runtime, ada: Client, user: User, orders: Orders) -> None:
    [order] = orders(1)
    group = Group.objects.create(name="g")
    one.using(id="r", about=[order, group]).start()
    page, list_page = reverse("admin:durable_run_change", args=["r"]), reverse("admin:durable_run_changelist")
    theirs = reverse("admin:shop_order_change", args=[order.pk])
    body = ada.get(page).content.decode()
    assert f"<bdi>order {order.pk}</bdi>" in body
    assert theirs not in body  # a user without the permission to see orders
    assert f"{list_page}?about=shop.order%3A{order.pk}" in body
    user.user_permissions.add(Permission.objects.get(codename="view_order"))
    assert f'href="{theirs}"' in ada.get(page).content.decode()
    pk = group.pk
    group.delete()
    body = " ".join(ada.get(page).content.decode().split())
    assert f"<bdi>group {pk}</bdi> <span" in body
    assert ">deleted<" in body


def test_the_run_s_page_is_shown_if_the_model_has_other_keys_now(at: Runtime, ada: Client) -> None:
    group = Group.objects.create(name="g")
    one.using(id="r", about=group).start()
    RunSubject.objects.update(object_pk="9f3c")
    page = ada.get(reverse("admin:durable_run_change", args=["r"]))
    assert page.status_code == 200
    assert "<bdi>group 9f3c</bdi>" in page.content.decode()


@pytest.mark.parametrize("word", ["order 7", "seven", "shop.order:", "shop.order:seven", "a b.c:d"])
def test_rest_refuses_what_no_run_can_be_about(at: Runtime, word: str) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    order = {"id": "b", "verb": "cancel", "filter": {"about": word}}
    for answer in (
        client.get("/api/runs", {"about": word}),
        client.post("/api/bulk-plan", {"verb": "cancel", "filter": order["filter"]}, content_type="application/json"),
        client.post("/api/bulks", order, content_type="application/json"),
    ):
        assert answer.status_code == 400, answer.content
        assert answer.json()["errors"][0]["at"].endswith("about")


def test_the_admin_lists_runs_about_something(at: Runtime, ada: Client, orders: Orders) -> None:
    first, second = orders(2)
    one.using(id="run-of-first", about=first).start()
    one.using(id="run-of-second", about=second).start()
    address = f"{reverse('admin:durable_run_changelist')}?columns=about&about="
    body = ada.get(f"{address}{quote(f'shop.Order:{first.pk}')}").content.decode()
    assert "run-of-first" in body
    assert "run-of-second" not in body
    assert f"<bdi>order {first.pk}</bdi>" in body
    assert "write what a run is about as app.model:key" in ada.get(f"{address}seven").content.decode()


@pytest.fixture
def many_runs(db: None) -> None:
    """Half of the runs are about one object, the others about one of 5,000."""
    runs = [
        Run(id=f"r{number:05}", workflow="w", queue="q", input="[]", created_at=NOW + timedelta(seconds=number // 3))
        for number in range(RUNS)
    ]
    Run.objects.bulk_create(runs, batch_size=1_000)
    RunSubject.objects.bulk_create(
        [
            RunSubject(
                run=run,
                model="auth.group",
                object_pk="1" if number % 2 else str(number % 10_000),
                created_at=run.created_at,
            )
            for number, run in enumerate(runs)
        ],
        batch_size=2_000,
    )
    RunTag.objects.bulk_create(
        [RunTag(run=run, name="tenant", value="acme", start_value="acme", created_at=run.created_at) for run in runs],
        batch_size=2_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run, durable_runsubject, durable_runtag")


@pytest.mark.slow
@pytest.mark.postgres
def test_a_page_of_runs_about_something_reads_what_it_shows(many_runs: None) -> None:
    common, rare = Group(pk=1), Group(pk=42)
    pages: list[tuple[Callable[[], Any], str, int]] = [
        (lambda: list(Run.objects.about(common)[:50]), "r19999", 120),
        (lambda: list(Run.objects.about(common).open()[:50]), "r19999", 120),
        (lambda: list(Run.objects.about(rare)[:50]), "r10042", 120),
        (lambda: list_runs(RunCriteria(about="auth.group:1")).runs, "r19999", 120),
        (lambda: runs_of([Group(pk=pk) for pk in range(1, 100)])[1], "r19999", 3_000),
    ]
    for number, (page, first, most) in enumerate(pages):
        with CaptureQueriesContext(connection) as queries:
            shown = page()
        assert shown[0].id == first, number
        assert scans(queries, TABLES) == [], number
        assert most_read(queries)[0] <= most, (number, most_read(queries))
        if number < 4:
            assert sorts(queries, TABLES) == [], number


@pytest.mark.slow
@pytest.mark.postgres
def test_a_list_with_its_count_looks_up_few_runs(many_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are is told by the subject's index. A second condition is asked of half a window of runs."""
    monkeypatch.setattr(run_lanes, "WINDOW", 500)
    half = 250
    lists: list[tuple[dict[str, Any], int, int]] = [  # the runs that it looks up at most, and the tags
        ({}, 60, 0),
        ({"created_from": NOW, "created_until": NOW + timedelta(days=1)}, 60, 0),
        ({"states": frozenset({"failed"})}, half, 0),
        ({"workflow": "w"}, half + 60, 0),
        ({"tags": (("tenant", "acme"),)}, half + 60, half + 60),
        ({"tags": (("tenant", "nobody"),)}, half, half),
    ]
    for wanted, most_runs, most_tags in lists:
        with CaptureQueriesContext(connection) as queries:
            list_and_count(RunCriteria(about="auth.group:1", **wanted))
        assert scans(queries, {*TABLES, "durable_runtag"}) + sorts(queries, TABLES) == [], wanted
        assert read(queries, "durable_run") <= most_runs, wanted
        assert read(queries, "durable_runtag") <= most_tags, wanted


@pytest.mark.slow
@pytest.mark.postgres
def test_the_runs_about_a_hundred_objects_are_looked_up(many_runs: None) -> None:
    """Although half of the sample from which PostgreSQL guesses is about one object, which is none of them."""
    with CaptureQueriesContext(connection) as queries:
        found = list(Run.objects.about([Group(pk=2 * number) for number in range(100, 200)]))
    assert len(found) == 200
    assert scans(queries, TABLES) == []
    assert read(queries, "durable_run") <= 200


def test_runs_about_more_objects_than_are_looked_up(
    at: Runtime, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable.models.rows._FEW", 2)
    several = orders(3)
    for number, each in enumerate(several):
        one.using(id=f"r{number}", about=each).start()
    for most in (2, 3):
        assert [run.id for run in Run.objects.about(several[:most])] == ["r2", "r1", "r0"][-most:]
