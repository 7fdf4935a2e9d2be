"""Deadlines and limits of work over REST: how a run is started with them, and how it shows them."""

from __future__ import annotations

from typing import Any

import pytest

from durable import get_run
from durable.models import Run
from tests.api.conftest import Api, problem
from tests.api.workflows import ask
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


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


def test_a_moment(api: Api) -> None:
    assert (
        api.post("/runs", {"workflow": "tests.api.ask", "id": "a", "deadline": "2099-01-01T00:00:00Z"}).status_code
        == 201
    )
    assert api.get("/runs/a").json()["deadline"] == "2099-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "deadline", ["2099-01-01T00:00:00", "2099-99-01T00:00:00Z", "soon", [1], None, True, -1, "9" * 300]
)
def test_a_deadline_that_cannot_be_read(api: Api, deadline: Any) -> None:
    problem(api.post("/runs", {"workflow": "tests.api.ask", "deadline": deadline}), 400, "invalid-request")


def test_no_work_at_all_is_refused(api: Api) -> None:
    problem(api.post("/runs", {"workflow": "tests.api.ask", "work_limit": 0}), 422, "arguments-refused")


def test_a_run_without_limits(api: Api) -> None:
    ask.using(id="a").start()
    shown = api.get("/runs/a").json()
    assert (shown["deadline"], shown["work_limit"], shown["worked"]) == (None, None, None)
    assert shown["explanation"]["detail"] == ""
