"""Settling over REST: one step, many runs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from durable import get_run
from durable.models import Cause, OperatorAction, Run
from tests.api.conftest import Api, MakeApi
from tests.faults.passing import pass_once
from tests.support.subjects import a_failure, a_held_step

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    """A client of somebody who may settle, and recover."""
    return make_api("view_run", "operate_run", "settle_step")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"id": 7}])
def test_any_value_is_a_result(api: Api, value: Any) -> None:
    a_held_step()
    answer = api.post("/runs/a/settle", {"location": "charge", "done": value, "reason": "the bank says so"})
    assert answer.status_code == 200
    pass_once(get_run("a"))
    assert (get_run("a").state, get_run("a").output) == ("completed", value)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"location": "charge"}, "one answer"),
        ({"location": "charge", "done": 1, "fail": True}, "one answer"),
        ({"location": "charge", "not_done": False}, "one answer"),
        ({"done": 1}, "required"),
        ({"location": "", "done": 1}, "blank"),
        ({"location": "charge", "done": 1, "more": 1}, "more"),
    ],
)
def test_one_answer_about_one_step(api: Api, body: dict[str, Any], fault: str) -> None:
    a_held_step()
    answer = api.post("/runs/a/settle", body)
    assert (answer.status_code, fault in answer.content.decode()) == (400, True), answer.content
    assert get_run("a").info().held
    assert not OperatorAction.objects.filter(source="api", outcome="done").exists()


def test_a_step_that_somebody_else_has_settled(api: Api) -> None:
    a_held_step()
    seen = api.get("/runs/a").json()["revision"]
    get_run("a").settle("charge", fail=True)
    late = api.post("/runs/a/settle", {"location": "charge", "not_done": True, "revision": seen})
    assert late.status_code == 409
    again = api.post("/runs/a/settle", {"location": "charge", "not_done": True})
    assert (again.status_code, "it is not held" in again.json()["detail"]) == (409, True)
    assert api.post("/runs/a/settle", {"location": "nowhere", "fail": True}).status_code == 404


def test_twelve_runs_of_a_cause(api: Api) -> None:
    for number in range(12):
        a_held_step(f"r{number}", order=number)
    chosen = {"verb": "settle", "filter": {"cause": Cause.objects.get().fingerprint}}
    assert api.post("/bulk-plan", chosen).json()["count"] == 12
    began = api.post("/bulks", {**chosen, "done": "r", "expected": 12, "reason": "the bank says so"})
    assert began.status_code == 202
    run = Run.objects.get(workflow="durable.bulk")
    while Run.objects.get(pk=run.pk).state != "completed":
        pass_once(get_run(run.pk))
    assert api.get(f"/bulks/{run.pk}").json()["done"] == 12
    for number in range(12):
        pass_once(get_run(f"r{number}"))
        assert get_run(f"r{number}").output == "r"


def test_a_bulk_at_once_leaves_others_alone(api: Api) -> None:
    a_held_step("held")
    a_failure()
    body = {"verb": "settle", "ids": ["held", "a"], "done": False}
    found = api.post("/bulks", body).json()
    assert (found["done"], [each["runs"] for each in found["refusals"]]) == (1, [["a"]])


@pytest.mark.parametrize("more", [{}, {"done": 1, "fail": True}, {"fail": True, "queue": "high"}])
def test_a_bulk_needs_one_answer(api: Api, more: dict[str, Any]) -> None:
    a_held_step()
    assert api.post("/bulks", {"verb": "settle", "ids": ["a"], **more}).status_code == 400
    assert api.post("/bulks", {"verb": "recover", "ids": ["a"], "done": None}).status_code == 400
    assert get_run("a").info().held


def test_recover_tries_what_waits_again(api: Api) -> None:
    a_held_step()  # it has no verify that could be asked
    refused = api.post("/runs/a/recover", {})
    assert (refused.status_code, "settle it" in refused.json()["detail"]) == (409, True)
    assert {"settle", "recover"} <= set(api.get("/runs/a").json()["actions"])
