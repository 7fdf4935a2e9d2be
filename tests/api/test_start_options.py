"""Keys, deadlines, limits of work and ranks over REST: how a run is started with them, and how it shows them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from durable import get_run
from durable.models import OperatorAction, QueueMessage, Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import ask
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


PLAIN = {"workflow": "tests.api.ask"}
START = {**PLAIN, "key": "k"}


def test_an_open_run_is_returned(api: Api) -> None:
    first = api.post("/runs", {**START, "id": "a"})
    again = api.post("/runs", START)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == "a"
    assert api.get("/runs/a").json()["key"] == "k"


def test_an_open_run_refuses_the_start(api: Api) -> None:
    api.post("/runs", {**START, "id": "a"})
    refused = problem(api.post("/runs", {**START, "if_open": "error"}), 409, "key-taken")
    assert 'un "a" is open and has the key "k"' in refused["detail"]
    assert refused["key"] == "k"


def test_an_open_run_is_replaced(api: Api, make_api: MakeApi) -> None:
    api.post("/runs", {**START, "id": "a"})
    starter = make_api("start_run", "view_run")
    assert starter.post("/runs", {**START, "id": "b", "if_open": "replace"}).status_code == 403
    assert get_run("a").state == "pending", "to cancel it is a permission of its own"
    assert not Run.objects.filter(pk="b").exists()
    assert api.post("/runs", {**START, "id": "b", "if_open": "replace"}).status_code == 201
    assert get_run("a").state == "cancelled"


def test_a_debounce(api: Api) -> None:
    body = {**START, "debounce": "30 s", "at_most": 300, "keep": "last"}
    first = api.post("/runs", {**body, "id": "a"})
    assert first.status_code == 201
    before = Run.objects.get(pk="a").wake_at
    assert api.post("/runs", body).json()["id"] == "a"
    after = Run.objects.get(pk="a").wake_at
    assert before is not None
    assert after is not None
    assert after >= before
    assert Run.objects.get(pk="a").key.moves == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"if_open": "return"},
        {"if_open": "error"},
        {"if_open": "replace"},
        {"debounce": 5, "at_most": 10},
        {"message": {"queue": "question"}},
    ],
)
def test_a_run_that_the_user_may_not_see_keeps_its_key(make_api: MakeApi, options: dict[str, Any]) -> None:
    ask.using(id="bob-1", key="k").start()
    Run.objects.update(started_at=timezone.now())
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        answer = make_api(*ALL, name="ada").post("/runs", {**START, "id": "ada-1", **options})
    refused = problem(answer, 404, "run-not-found")
    assert b"bob-1" not in answer.content
    assert 'has the key "k"' in refused["detail"]
    assert "ada-1" not in refused["detail"], "the id that the user has chosen is not at fault"
    [row] = OperatorAction.objects.filter(outcome="missing").values("action", "run_id", "detail")
    assert (row["action"], row["run_id"]) == ("start", "ada-1")
    assert 'has the key "k"' in row["detail"]
    assert "bob-1" not in row["detail"], "users read the log who may not see the run"
    assert get_run("bob-1").state == "pending"
    assert ask.open_run(key="k") == get_run("bob-1")
    assert not Run.objects.filter(pk="ada-1").exists()


def test_a_message_to_the_open_run_or_to_a_new_one(api: Api) -> None:
    body = {**START, "message": {"queue": "question", "body": {"n": 1}}}
    first = api.post("/runs", body)
    again = api.post("/runs", body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert QueueMessage.objects.filter(run_id=first.json()["id"]).count() == 2


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"key": ""}, 400),
        ({"key": "x" * 201}, 400),
        ({"key": 7}, 400),
        ({"if_open": "skip"}, 400),
        ({"debounce": "soon"}, 400),
        ({"message": {"body": 1}}, 400),
        ({"message": {"queue": "q", "id": "x"}}, 400),
        ({"debounce": 10}, 422),
        ({"debounce": 10, "at_most": 5}, 422),
        ({"at_most": 5}, 422),
        ({"debounce": 10, "at_most": 20, "message": {"queue": "q"}}, 422),
        ({"key": "line\nbreak"}, 422),
    ],
)
def test_options_that_are_refused(api: Api, options: dict[str, Any], status: int) -> None:
    answer = api.post("/runs", {**START, **options})
    problem(answer, status, "invalid-request" if status == 400 else "arguments-refused")
    assert not Run.objects.exists()


# -- deadlines and limits of work over REST: how a run is started with them, and how it shows them


@pytest.mark.parametrize("deadline", ["30 days", 30 * 86400])
def test_a_run_is_started_with_limits_and_shows_them(api: Api, deadline: Any) -> None:
    body = {"workflow": "tests.api.ask", "id": "a", "deadline": deadline, "work_limit": "1 hour"}
    assert api.post("/runs", body).status_code == 201
    pass_once(get_run("a"))
    shown = api.get("/runs/a").json()
    row = Run.objects.get(pk="a")
    assert (row.wake_at - row.created_at).days == 30  # type: ignore[operator]
    assert shown["deadline"] == shown["wake_at"]
    assert shown["work_limit"] == 3600.0
    assert 0 < shown["worked"] < 3600
    assert "Its deadline is in " in shown["explanation"]["detail"]


@pytest.mark.parametrize(
    "deadline", ["2099-01-01T00:00:00", "2099-99-01T00:00:00Z", "soon", [1], None, True, -1, "9" * 300]
)
def test_a_deadline_that_cannot_be_read(api: Api, deadline: Any) -> None:
    problem(api.post("/runs", {**PLAIN, "deadline": deadline}), 400, "invalid-request")
    assert api.post("/runs", {**PLAIN, "id": "a", "deadline": "2099-01-01T00:00:00Z"}).status_code == 201
    assert api.get("/runs/a").json()["deadline"] == "2099-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "options",
    [
        {"if_open": "return"},
        {"message": {"queue": "q"}},
        {"work_limit": 0},
        {"priority": "urgent"},
        {"priority": "2 days"},
        {"weight": 2},
        {"share": "a", "weight": 0},
    ],
)
def test_options_that_do_not_fit_are_refused(api: Api, options: dict[str, Any]) -> None:
    problem(api.post("/runs", {**PLAIN, **options}), 422, "arguments-refused")


def test_a_run_without_any_shows_none(api: Api) -> None:
    ask.using(id="a").start()
    shown = api.get("/runs/a").json()
    names = ("deadline", "work_limit", "worked", "priority", "head_start", "share", "weight", "key")
    assert [shown[name] for name in names] == [None] * len(names)
    assert shown["explanation"]["detail"] == ""


# -- priorities and shares over REST: how a run is started with them, and how it shows them


def test_a_run_is_started_with_a_rank_and_shows_it(api: Api, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "PRIORITIES": {"low": "-1 hour"}}
    body = {"workflow": "tests.api.ask", "priority": "low", "share": "acme", "weight": 2}
    for run_id in ("a", "b"):
        assert api.post("/runs", {**body, "id": run_id}).status_code == 201
    shown = api.get("/runs/b").json()
    rank = {"priority": "low", "head_start": -3600, "share": "acme", "weight": 2.0}
    assert {name: shown[name] for name in rank} == rank
    assert "turn in share acme: before it come 1, of its own share 1" in shown["explanation"]["detail"]
