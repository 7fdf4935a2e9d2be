"""Each listing on each surface: the command line prints what REST answers."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from time_machine import TimeMachineFixture

from durable import get_run
from durable.api.bulks import BulkFilterForm
from durable.api.fields import query_of
from durable.cli.list_command import LISTS
from durable.listings.runs import RUN_FILTERS, RUNS, criteria_of
from durable.models import Child, Event, EventWait, LogLine, QueueMessage, Run, WorkerProcess
from durable.operations import bulk, holds
from tests.api.conftest import Api
from tests.cli.conftest import Shell
from tests.faults.passing import pass_once
from tests.support.subjects import a_failure, a_hung_step, a_limit, a_rate, a_restored_database, a_schedule, a_sleeper

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


def a_worker() -> None:
    now = timezone.now()
    WorkerProcess.objects.create(
        name="w1", host="one", pid=7, queues=["default"], slots=2, started_at=now, last_seen_at=now
    )


def an_event() -> None:
    """An event that one run has got and that another still waits for."""
    a_sleeper()
    row: dict[str, Any] = {"name": "paid", "key": "7"}
    event = Event.objects.create(event_id="e", body="1", published_at=timezone.now(), delivered=1, **row)
    QueueMessage.objects.create(id=f"{event.pk}:w", run_id="a", queue="news", body="1", sent_at=timezone.now(), order=1)
    EventWait.objects.create(id="x", run_id="a", location="paid", queue="news", after=0, **row)


def a_pause() -> None:
    holds.pause_queue("default")


def a_family() -> None:
    row: dict[str, Any] = {"queue": "q", "input": "{}", "created_at": timezone.now()}
    parent = Run.objects.create(id="parent", workflow="parent", state="sleeping", **row)
    child = Run.objects.create(id="child", workflow="child", state="paused", parent=parent, **row)
    Child.objects.create(
        run=child, parent=parent, location="bills", when_parent_ends="cancel", position=0, group="bills"
    )


def a_log() -> None:
    a_sleeper()
    LogLine.objects.create(run_id="a", at=timezone.now(), level=20, logger="shop", location="step", text="hello")


def a_bulk() -> None:
    a_sleeper()
    bulk.apply("wake", ["a"], as_id="b")


@pytest.fixture(autouse=True)
def standing_clock(time_machine: TimeMachineFixture) -> None:
    """Let no time pass between two looks, which say "in 23 h"."""
    time_machine.move_to(timezone.now(), tick=False)


@pytest.fixture
def api() -> Api:
    return Api(User.objects.create_superuser("ada"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


@pytest.mark.parametrize(
    ("ready", "words", "path"),
    [
        (a_limit, "limits", "/limits"),
        (a_rate, "rates", "/rates"),
        (a_pause, "queues", "/queues"),
        (a_worker, "workers", "/workers"),
        (an_event, "events", "/events"),
        (an_event, "event-waits", "/event-waits"),
        (a_hung_step, "running", "/running"),
        (a_failure, "causes", "/causes"),
        (a_schedule, "schedules", "/schedules"),
        (a_sleeper, "list", "/runs"),
        (a_family, "children parent", "/runs/parent/children"),
        (a_log, "logs a", "/runs/a/logs"),
    ],
)
def test_the_command_line_prints_what_rest_answers(ready: Any, words: str, path: str, api: Api, shell: Shell) -> None:
    ready()
    answered = api.get(path).json()["results"]
    assert answered
    printed = shell(*words.split(), "-o", "json").all_json
    assert printed == answered
    assert [list(each) for each in printed] == [list(each) for each in answered], "in the same order"


@pytest.mark.parametrize(
    ("ready", "words", "path"),
    [
        (a_limit, "limits carrier", "/limits/carrier"),
        (a_rate, "rates calls", "/rates/calls"),
        (a_schedule, "schedules nightly", "/schedules/nightly"),
        (a_bulk, "bulk b", "/bulks/b"),
    ],
)
def test_one_of_them_is_the_same_on_both(ready: Any, words: str, path: str, api: Api, shell: Shell) -> None:
    ready()
    assert shell(*words.split(), "-o", "json").json == api.get(path).json()


def test_what_is_said_of_a_restored_database_is_the_same_on_both(api: Api, shell: Shell) -> None:
    a_sleeper()
    a_restored_database()
    answered = api.get("/database").json()
    assert answered["is_behind"]
    done = shell("restored", "-o", "json")
    assert (done.json, done.status) == (answered, 1)


def test_a_run_is_the_same_on_both_but_for_its_history(api: Api, shell: Shell) -> None:
    a_failure()
    answered = api.get("/runs/a?expand=input,output").json()
    printed = shell("show", "a", "--payloads", "-o", "json").json
    assert {name: printed[name] for name in answered} == answered
    assert printed["error"]["traceback"]
    [listed] = shell("list", "-o", "json").all_json
    assert listed["error"] == {**printed["error"], "traceback": None}, "a payload"


def test_compared_runs_are_the_same_on_both(api: Api, shell: Shell) -> None:
    a_failure()
    replayed = shell("restart", "a").lines[0]
    pass_once(get_run(replayed))
    answered = api.get(f"/runs/a/comparison?other={replayed}").json()["rows"]
    assert answered
    printed = shell("compare", "a", replayed, "--all", "--payloads", "-o", "json").all_json
    assert printed == answered


@pytest.mark.parametrize("name", [each.name for each in RUNS.filters])
def test_each_condition_of_runs_is_on_the_command_line_and_over_rest(name: str) -> None:
    parser = ArgumentParser()
    LISTS["list"].configure(parser)
    assert name in {action.dest for action in parser._actions}
    assert name in query_of(RUNS)().fields


@pytest.mark.parametrize("name", [each.name for each in RUN_FILTERS])
def test_the_filter_of_a_bulk_has_each_condition_and_selects_by_it(name: str) -> None:
    given = {"state": ["failed"], "tag": ["order=1"], "cause": "0" * 16, "about": "shop.order:42"}.get(name, "x")
    given = {"created": "2026-01-31T12:00:00Z", "finished": "2026-01-31T12:00:00Z"}.get(name.split("_")[0], given)
    form = BulkFilterForm(data={name: given if _is_text(name) else True})
    form.is_valid(raise_exception=True)
    assert not criteria_of(form.validated_data).is_empty


def _is_text(name: str) -> bool:
    [found] = [each for each in RUN_FILTERS if each.name == name]
    return found.kind is not bool
