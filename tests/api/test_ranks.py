"""Priorities and shares over REST: how a run is started with them, and how it shows them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api, problem
from tests.api.workflows import ask

pytestmark = pytest.mark.django_db


def test_a_run_is_started_with_a_rank_and_shows_it(api: Api, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "PRIORITIES": {"low": "-1 hour"}}
    body = {"workflow": "tests.api.ask", "priority": "low", "share": "acme", "weight": 2}
    for run_id in ("a", "b"):
        assert api.post("/runs", {**body, "id": run_id}).status_code == 201
    shown = api.get("/runs/b").json()
    rank = {"priority": "low", "head_start": -3600, "share": "acme", "weight": 2.0}
    assert {name: shown[name] for name in rank} == rank
    assert "turn in share acme: before it come 1, of its own share 1" in shown["explanation"]["detail"]


def test_a_run_without_a_rank(api: Api) -> None:
    ask.using(id="a").start()
    shown = api.get("/runs/a").json()
    assert [shown[name] for name in ("priority", "head_start", "share", "weight")] == [None] * 4
    assert shown["explanation"]["detail"] == ""


@pytest.mark.parametrize(
    "given", [{"priority": "urgent"}, {"priority": "2 days"}, {"weight": 2}, {"share": "a", "weight": 0}]
)
def test_a_rank_that_none_can_be(api: Api, given: dict[str, Any]) -> None:
    problem(api.post("/runs", {"workflow": "tests.api.ask", **given}), 422, "arguments-refused")
