"""Starting again with another input, and giving the output of a step, over REST."""

from __future__ import annotations

from typing import Any

import pytest

from durable import get_run
from durable.models import OperatorAction, Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import add, fail
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db
EVERY = (*ALL, "give_output", "edit_input")
GIVEN: dict[str, Any] = {"location": "break", "output": {"by": "hand"}, "reason": "approved by telephone"}


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    return make_api(*EVERY)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_output_is_given(api: Api, in_place: bool) -> None:
    pass_once(fail.using(id="a").start())
    plan = api.get("/runs/a/replay-plan?location=break&with_output=true").json()
    assert plan["reruns"] == []
    order = {**GIVEN, "in_place": in_place, "plan_hash": plan["hash"]}
    answer = api.post("/runs/a/give-output", order)
    assert answer.status_code == (200 if in_place else 201)
    run_id = answer.json()["id"]
    assert (run_id == "a") is in_place
    pass_once(get_run(run_id))
    entry = api.get(f"/runs/{run_id}/entries/break").json()
    assert entry["data"]["given"]["reason"] == "approved by telephone"
    assert get_run(run_id).state == "completed"


def test_what_cannot_be_given_is_told(api: Api) -> None:
    pass_once(fail.using(id="a").start())
    problem(api.post("/runs/a/give-output", {**GIVEN, "reason": ""}), 400, "invalid-request")
    problem(api.post("/runs/a/give-output", {"location": "break", "reason": "x"}), 400, "invalid-request")
    problem(api.post("/runs/a/give-output", {**GIVEN, "location": "nowhere"}), 404, "entry-not-found")
    problem(api.post("/runs/a/give-output", {**GIVEN, "plan_hash": "0" * 32}), 409, "plan-stale")
    assert Run.objects.count() == 1


def test_a_run_starts_again_with_another_input(api: Api) -> None:
    pass_once(add.using(id="a").start(1, 2))
    answer = api.post("/runs/a/restart", {"changes": {"other": 40}, "id": "b", "reason": "typing error"})
    assert answer.status_code == 201
    pass_once(get_run("b"))
    assert get_run("b").result() == 41
    assert OperatorAction.objects.get().action == "edit_input"
    problem(api.post("/runs/a/restart", {"changes": {"third": 1}}), 422, "arguments-refused")


def test_another_input_needs_two_permissions(make_api: MakeApi) -> None:
    pass_once(add.using(id="a").start(1, 2))
    for missing in ("edit_input", "start_run"):
        api = make_api(*(each for each in EVERY if each != missing), name=missing)
        document = problem(api.post("/runs/a/restart", {"changes": {"other": 40}}), 403, "permission-denied")
        assert f"durable.{missing}" in document["detail"]
    assert Run.objects.count() == 1


def test_two_runs_are_compared(api: Api, make_api: MakeApi) -> None:
    pass_once(fail.using(id="a").start())
    run_id = api.post("/runs/a/give-output", GIVEN).json()["id"]
    pass_once(get_run(run_id))
    found = api.get(f"/runs/a/comparison?other={run_id}").json()
    [place] = [each for each in found["rows"] if each["location"] == "break"]
    assert place["differs"] == ["status", "error", "given by hand", "output"]
    assert (place["left"]["output"], place["right"]["output"]) == (None, {"by": "hand"})
    seen = make_api("view_run", name="vera").get(f"/runs/a/comparison?other={run_id}").json()
    assert [each["right"]["output"] for each in seen["rows"]] == [None]
    problem(api.get("/runs/a/comparison?other=nowhere"), 404, "run-not-found")
    problem(api.get("/runs/a/comparison"), 400, "invalid-request")
    problem(make_api("operate_run", name="olga").get("/runs/a/comparison?other=a"), 403, "permission-denied")
