"""Schedules over REST: list, read, create, the verbs, and who may."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from durable.models import OperatorAction, Run, Schedule
from durable.operations.schedules.rows import arguments_of
from tests.api.conftest import MakeApi, problem
from tests.api.workflows import add

pytestmark = pytest.mark.django_db

EVERYTHING = ("view_run", "start_run", "add_schedule", "change_schedule", "delete_schedule", "operate_schedule")


def make(name: str = "nightly", **options: Any) -> Schedule:
    columns: Any = {"name": name, "workflow": add.name, "rule": "30 2 * * *", "args": [1]} | options
    return Schedule.objects.create(**columns)


def test_they_are_listed_by_name_in_pages(make_api: MakeApi) -> None:
    for name in ("a", "b", "c"):
        make(name)
    api = make_api("view_run")
    first = api.get("/schedules?limit=2").json()
    assert [each["name"] for each in first["results"]] == ["a", "b"]
    second = api.get(f"/schedules?limit=2&cursor={first['next_cursor']}").json()
    assert ([each["name"] for each in second["results"]], second["next_cursor"]) == (["c"], None)
    assert api.get("/schedules?workflow=other").json()["results"] == []


def test_one_is_read_with_its_ticks(make_api: MakeApi) -> None:
    make(zone="Europe/Berlin", window="1 hour")
    api = make_api(*EVERYTHING)
    run = api.post("/schedules/nightly/run").json()
    assert (run["outcome"], run["run"]) == ("started", Run.objects.get().id)
    found = api.get("/schedules/nightly").json()
    assert (found["words"], found["zone"], found["window"], found["state"]) == (
        "At 02:30",
        "Europe/Berlin",
        3600,
        "active",
    )
    assert len(found["next"]) == 5
    assert [each["kind"] for each in found["ticks"]] == ["run_now"]
    problem(api.get("/schedules/nobody"), 404, "not-found")


def test_one_is_created(make_api: MakeApi) -> None:
    api = make_api(*EVERYTHING, name="ada")
    body = {
        "name": "hourly 🌙",
        "workflow": add.name,
        "rule": "0 * * * *",
        "zone": "Asia/Tokyo",
        "args": [1],
        "overlap": "queue",
        "window": "2 days",
        "jitter": 60,
        "reason": "new team",
    }
    created = api.post("/schedules", body)
    assert created.status_code == 201, created.content
    found = Schedule.objects.get()
    assert (found.zone, found.overlap, found.window) == ("Asia/Tokyo", "queue", timedelta(days=2))
    assert arguments_of(found) == ([1], {})
    action = OperatorAction.objects.get(action="create_schedule")
    assert (action.actor_label, action.reason, action.outcome) == ("ada", "new team", "done")
    problem(api.post("/schedules", body), 409, "refused")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "a/b"}, 400),
        ({"rule": "every now"}, 400),
        ({"zone": "Mars"}, 400),
        ({"overlap": "drop"}, 400),
        ({"jitter": "x"}, 400),
        ({"args": [1, 2, 3, 4, 5]}, 422),
        ({"queue": "nowhere"}, 422),
        ({"other": 1}, 400),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(make_api: MakeApi, change: dict[str, Any], status: int) -> None:
    body = {"name": "x", "workflow": add.name, "rule": "0 * * * *", "args": [1]} | change
    assert make_api(*EVERYTHING).post("/schedules", body).status_code == status
    assert not Schedule.objects.exists()


@override_settings(DURABLE={"API_WORKFLOWS": ["shop."]})
def test_a_workflow_that_is_not_offered_gets_no_schedule(make_api: MakeApi) -> None:
    answer = make_api(*EVERYTHING).post("/schedules", {"name": "x", "workflow": add.name, "rule": "0 * * * *"})
    assert answer.status_code in (403, 404, 422)
    assert not Schedule.objects.exists()


def test_the_verbs(make_api: MakeApi) -> None:
    make(rule="every 1 day")
    api = make_api(*EVERYTHING)
    paused = api.post("/schedules/nightly/pause", {"reason": "bank is down"}).json()
    assert (paused["state"], paused["pause_reason"]) == ("paused", "bank is down")
    assert "paused already" in problem(api.post("/schedules/nightly/pause"), 409, "refused")["detail"]
    assert api.post("/schedules/nightly/resume").json()["state"] == "active"
    edited = api.post("/schedules/nightly/edit", {"rule": "every 12 hours", "window": None, "kwargs": {}}).json()
    assert (edited["rule"], edited["window"]) == ("every 12 hours", None)
    period = {"since": (timezone.now() - timedelta(days=1)).isoformat(), "until": timezone.now().isoformat()}
    planned = api.post("/schedules/nightly/backfill", {**period, "dry_run": True}).json()
    assert (len(planned["moments"]), planned["ticks"], Run.objects.count()) == (2, [], 0)
    assert len(api.post("/schedules/nightly/backfill", period).json()["ticks"]) == 2
    assert Run.objects.count() == 2
    problem(
        api.post("/schedules/nightly/backfill", {**period, "until": "2100-01-01T00:00:00Z"}), 422, "arguments-refused"
    )
    assert api.post("/schedules/nightly/run").json()["outcome"] == "skipped"
    assert api.post("/schedules/nightly/run", {"force": True}).json()["outcome"] == "started"
    assert api.post("/schedules/nightly/delete").json()["name"] == "nightly"
    problem(api.post("/schedules/nightly/delete"), 404, "not-found")


def test_a_rule_of_the_code_is_overridden_and_taken_back(make_api: MakeApi) -> None:
    make(origin="code")
    api = make_api(*EVERYTHING)
    changed = api.post("/schedules/nightly/override", {"rule": "0 9 * * *", "zone": "Asia/Tokyo"}).json()
    assert (changed["rule"], changed["zone"], changed["is_overridden"]) == ("0 9 * * *", "Asia/Tokyo", True)
    problem(api.post("/schedules/nightly/edit", {"rule": "every 1 hour"}), 409, "refused")
    assert api.post("/schedules/nightly/take-back").json()["rule"] == "30 2 * * *"


@override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"})
def test_where_runs_are_limited_there_are_no_schedules(make_api: MakeApi) -> None:
    make()
    api = make_api(*EVERYTHING)
    for answer in (api.get("/schedules"), api.get("/schedules/nightly"), api.post("/schedules/nightly/run")):
        problem(answer, 403, "permission-denied")
    assert not Run.objects.exists()
