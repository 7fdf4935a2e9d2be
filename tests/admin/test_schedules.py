"""The pages of schedules: the list, one schedule, and a page for each verb."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durable import Context, Schedule, workflow
from durable.admin import pages
from durable.admin.text import as_key
from durable.models import OperatorAction, Run, Tick
from durable.operations.schedules.rows import arguments_of
from durable.operations.schedules.tick import tick_due
from durable.operations.schedules.verbs import override, pause, run_now

pytestmark = pytest.mark.django_db

LogIn = Callable[..., Client]
ALL = ("start_run", "add_schedule", "change_schedule", "delete_schedule", "operate_schedule")


@workflow(name="tests.admin.report")
def report(ctx: Context, team: int = 0) -> int:
    return team


@pytest.fixture
def log_in() -> LogIn:
    def made(*permissions: str) -> Client:
        user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=("view_run", *permissions)))
        client = Client()
        client.force_login(user)
        return client

    return made


def make(name: str = "nightly", **options: Any) -> Schedule:
    columns: Any = {"name": name, "workflow": report.name, "rule": "30 2 * * *"} | options
    return Schedule.objects.create(**columns)


def url(name: str, *arguments: str) -> str:
    return reverse(f"admin:durable_run_{name}", args=arguments)


def page(client: Client, name: str, *arguments: str, status: int = 200) -> str:
    answer = client.get(url(name, *arguments))
    assert answer.status_code == status, answer.content[-2000:]
    return answer.content.decode()


def act(client: Client, verb: str, name: str = "nightly", **values: Any) -> Any:
    form = client.get(url("schedule_act", as_key(name), verb))
    assert form.status_code == 200, form.content[-3000:]
    given = {"token": "0190e5f0-0000-7000-8000-000000000000", "reason": "month end"} | values
    return client.post(url("schedule_act", as_key(name), verb), given)


def test_the_list_says_when_and_what_became_of_the_last_ticks(log_in: LogIn) -> None:
    make(zone="Europe/Berlin")
    make("broken", workflow="tests.nobody")
    for name in ("nightly", "broken"):
        run_now(name)
    text = page(log_in(), "schedules")
    assert "At 02:30" in text
    assert "Europe/Berlin" in text
    assert text.count("durable-dot durable-good") == 1
    assert text.count("durable-dot durable-hollow durable-bad") == 1
    assert Tick.objects.get(outcome="refused").why.split(";")[0].replace("'", "&#x27;") in text
    assert "Create a schedule" not in text


def test_the_list_goes_on_behind_the_first_of_a_page(log_in: LogIn) -> None:
    for number in range(28):
        make(f"s-{number:03}")
    client = log_in()
    first = page(client, "schedules")
    assert "s-024" in first
    assert "s-025" not in first
    assert "s-027" in client.get(url("schedules") + "?after=s-024").content.decode()


def test_the_list_costs_the_same_for_any_number(log_in: LogIn) -> None:
    client = log_in()
    for number in range(30):
        make(f"s-{number}")
        run_now(f"s-{number}")
    page(client, "schedules")
    with CaptureQueriesContext(connection) as captured:
        page(client, "schedules")
    assert sum("durable_schedule" in each["sql"] or "durable_tick" in each["sql"] for each in captured) == 2


def test_addresses_of_runs_are_not_looked_up_one_by_one(log_in: LogIn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(name: str, *arguments: Any, **how: Any) -> str:
        asked.append(name)
        return reverse(name, *arguments, **how)

    monkeypatch.setattr(pages, "reverse", counted)
    client = log_in()
    for number in range(3):
        make(f"s-{number}", overlap="allow")
        for _ in range(10):
            run_now(f"s-{number}")
    text = page(client, "schedules")
    assert text.count("durable-dot durable-good") == 30
    assert all(f'href="{url("change", as_key(run_id))}"' in text for run_id in Run.objects.values_list("pk", flat=True))
    assert len(asked) <= 3 + 2  # each schedule, and how runs are addressed, and how a schedule is created
    del asked[:]
    page(client, "schedule", "s-0")
    assert len(asked) <= 12


def test_a_page_of_one_says_everything(log_in: LogIn) -> None:
    make(overlap="queue", window="12 hours", args=[7])
    run = run_now("nightly")
    run_now("nightly")
    text = page(log_in("view_payload"), "schedule", "nightly")
    for words in ("queue", "12 h", "waits for the end", run.run_id, "run now", "operators"):
        assert words in text, words
    assert "7" in text
    assert "Arguments" not in page(log_in(), "schedule", "nightly")


def test_a_tick_that_waits_while_its_schedule_is_paused_says_so(log_in: LogIn) -> None:
    make(overlap="queue")
    run_now("nightly")
    pause("nightly")
    client = log_in(*ALL)
    done = act(client, "run")
    assert done.status_code == 302
    text = client.get(done.url).content.decode()
    assert "It begins when the schedule is resumed and the earlier run has ended." in text
    assert "waits until the schedule is resumed and the run before it has ended" in text
    assert text.count("the schedule is paused: this tick begins when it is resumed") == 2  # the dot and the row
    assert "the schedule is paused: this tick" in page(client, "schedules")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"gone_at": timezone.now(), "paused": True, "origin": "code"}, "The code no longer has this schedule"),
        ({"paused": True, "pause_reason": "month end"}, "month end"),
        ({"due_at": timezone.now() - timedelta(hours=1)}, "Its tick is late"),
        ({"override_rule": "every 1 hour"}, "An operator's rule is in force"),
    ],
)
def test_a_page_says_what_is_amiss(log_in: LogIn, columns: Any, words: str) -> None:
    make()
    Schedule.objects.update(**columns)
    assert words in page(log_in(), "schedule", "nightly")


def test_there_is_no_page_of_what_is_not_there(log_in: LogIn) -> None:
    assert "There is no schedule" in page(log_in(), "schedule", "nobody", status=404)


@pytest.mark.parametrize("name", ["<b>🌙", "a & b", "..", "x" * 170, "1' OR '1"])
def test_names_of_any_text_have_pages(log_in: LogIn, name: str) -> None:
    make(name)
    client = log_in(*ALL)
    assert "<b>🌙" not in page(client, "schedules")
    page(client, "schedule", as_key(name))
    assert act(client, "run", name).status_code == 302
    assert Run.objects.get().id.startswith(f"{name}@")


class TestVerbs:
    def test_run_now_obeys_overlap_unless_forced(self, log_in: LogIn) -> None:
        make()
        client = log_in(*ALL)
        assert act(client, "run").status_code == 302
        refused = act(client, "run")
        assert refused.status_code == 409
        assert "has not ended" in refused.content.decode()
        assert act(client, "run", force="on").status_code == 302
        assert Run.objects.count() == 2

    def test_a_backfill_shows_its_number_first(self, log_in: LogIn) -> None:
        make(rule="every 1 day")
        client = log_in(*ALL)
        now = timezone.now()
        period = {"since": f"{now - timedelta(days=3):%Y-%m-%d %H:%M}", "until": f"{now:%Y-%m-%d %H:%M}"}
        shown = act(client, "backfill", **period)
        assert shown.status_code == 200
        assert "3 runs would be started" in shown.content.decode()
        assert 'name="planned" value="3"' in shown.content.decode()
        assert not Run.objects.exists()
        assert act(client, "backfill", **period, planned="2").status_code == 200
        assert act(client, "backfill", **period, planned="3").status_code == 302
        assert Run.objects.count() == 3
        assert act(client, "backfill", since="tomorrow", until="x").status_code == 422

    def test_edit(self, log_in: LogIn) -> None:
        make(args=[7], window="1 hour")
        client = log_in(*ALL, "view_payload")
        form = page(client, "schedule_act", "nightly", "edit")
        assert "1 hour" in form
        given = {"rule": "every 6 hours", "zone": "UTC", "overlap": "allow", "catch_up": "none"}
        assert act(client, "edit", **given).status_code == 302
        found = Schedule.objects.get()
        assert (found.rule, found.overlap, found.catch_up, found.window) == ("every 6 hours", "allow", "none", None)
        assert arguments_of(found) == ([7], {})
        assert act(client, "edit", **given, arguments='{"team": 8}').status_code == 302
        assert arguments_of(Schedule.objects.get()) == ([], {"team": 8})
        assert act(client, "edit", **given, arguments="[1, 2, 3]").status_code == 422
        wrong = act(client, "edit", **(given | {"rule": "every now"}))
        assert wrong.status_code == 422
        assert "cannot be read" in wrong.content.decode()

    def test_arguments_are_hidden_without_the_permission_to_see_payloads(self, log_in: LogIn) -> None:
        make(args=["north-team"])
        assert "north-team" not in page(log_in(*ALL), "schedule_act", "nightly", "edit")

    def test_create(self, log_in: LogIn) -> None:
        client = log_in(*ALL)
        form = page(client, "schedule_create")
        assert 'list="known-workflow"' in form
        assert f'<option value="{report.name}">' in form
        given = {
            "token": "0190e5f0-0000-7000-8000-000000000000",
            "name": "hourly",
            "workflow": report.name,
            "rule": "0 * * * *",
            "zone": "Asia/Tokyo",
            "overlap": "queue",
            "catch_up": "all",
            "window": "2 days",
            "jitter": "1 min",
            "arguments": "[3]",
            "reason": "new team",
        }
        assert client.post(url("schedule_create"), given).status_code == 302
        found = Schedule.objects.get()
        assert (found.zone, found.overlap, found.catch_up, found.window) == (
            "Asia/Tokyo",
            "queue",
            "all",
            timedelta(days=2),
        )
        assert OperatorAction.objects.get(action="create_schedule").reason == "new team"
        assert client.post(url("schedule_create"), given).status_code == 409
        assert client.post(url("schedule_create"), given | {"workflow": "no.such"}).status_code == 409
        assert client.post(url("schedule_create"), given | {"name": "a/b"}).status_code == 422

    def test_verbs_are_offered_to_those_who_may(self, log_in: LogIn) -> None:
        make()
        assert "act/pause" not in page(log_in(), "schedule", "nightly")
        text = page(log_in("operate_schedule"), "schedule", "nightly")
        assert "act/pause" in text
        assert "act/delete" not in text


def test_an_override_is_told(log_in: LogIn) -> None:
    make(origin="code")
    override("nightly", "every 2 hours")
    assert tick_due(timezone.now()) == 0
    client = log_in(*ALL)
    for told in ("Every 2 hours", "overridden"):
        assert told in page(client, "schedules")
    assert "Edit" not in page(client, "schedule", "nightly").replace("Edited", "")


def test_moments_are_shown_by_the_clock_of_the_rule_too(log_in: LogIn) -> None:
    make("abroad", zone="Asia/Tokyo")
    make("plain", zone="UTC")
    client = log_in()
    assert page(client, "schedule", "abroad").count("02:30 JST") == 5
    assert page(client, "schedules").count("02:30 JST") == 6  # the next moment, and the next five
    assert page(client, "schedule", "plain").count('<span class="durable-quiet">02:30') == 0
