"""Causes over REST: their list, and the runs of one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from durable.models import Cause, OperatorAction
from tests.api.conftest import ALL, Api, MakeApi
from tests.api.workflows import fail, loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _runs() -> None:
    for run_id in ("ada-1", "bob-1"):
        pass_once(fail.using(id=run_id).start())
    pass_once(loop.using(id="ada-2").start(1))


def causes(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/causes").json()["results"]
    return found


def test_a_cause_leads_to_its_runs(api: Api) -> None:
    [cause] = causes(api)
    assert (cause["place"], cause["error_type"], cause["pattern"]) == ("break", "ValueError", "broken")
    assert (cause["runs"], cause["is_muted"]) == ({"number": 2, "is_capped": False}, False)
    assert cause["workflows"] == ["tests.api.fail"]
    for query in (f"cause={cause['cause']}", "place=break"):
        found = api.get(f"/runs?{query}").json()["results"]
        assert [each["id"] for each in found] == ["bob-1", "ada-1"]
    assert api.get("/runs?place=rest").json()["results"] == []


def test_a_pattern_needs_the_permission_to_see_payloads(make_api: MakeApi) -> None:
    [cause] = causes(make_api(*(each for each in ALL if each != "view_payload")))
    assert (cause["error_type"], cause["pattern"]) == ("ValueError", None)


def test_a_note_on_a_cause(make_api: MakeApi) -> None:
    api = make_api(*ALL, name="ada")
    [cause] = causes(api)
    assert (cause["note"], cause["noted_at"], cause["noted_by"]) == ("", None, "")
    address = f"/causes/{cause['cause']}/note"
    noted = api.post(address, {"note": "the bank knows"})
    assert noted.status_code == 200
    assert causes(api) == [noted.json()]
    assert (noted.json()["note"], noted.json()["noted_by"]) == ("the bank knows", "ada")
    assert noted.json()["noted_at"]
    assert api.post("/causes/0123456789abcdef/note", {"note": "?"}).status_code == 404
    assert api.post(address, {"note": "x" * 1001}).status_code == 400
    assert make_api("view_run", name="bob").post(address, {"note": "me"}).status_code == 403
    assert api.post(address, {"note": ""}).json()["noted_at"] is None
    logged = OperatorAction.objects.order_by("id").values_list("action", "outcome", "source")
    outcomes = ["done", "invalid", "denied", "done"]
    assert list(logged) == [("note", each, "api") for each in outcomes]


@override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"})
def test_causes_are_of_the_runs_that_a_user_may_see(make_api: MakeApi) -> None:
    [cause] = causes(make_api(*ALL, name="ada"))
    assert cause["runs"] == {"number": 1, "is_capped": False}
    assert cause["first_seen_at"] == cause["since"]
    assert causes(make_api(*ALL, name="eve")) == []


@override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"})
def test_a_note_is_for_those_who_see_all_runs(make_api: MakeApi) -> None:
    """It may tell of runs out of sight."""
    Cause.objects.update(note="bob's card", noted_by="eve")
    ada = make_api(*ALL, name="ada")
    [cause] = causes(ada)
    assert (cause["note"], cause["noted_by"]) == ("", "")
    assert ada.post(f"/causes/{cause['cause']}/note", {"note": "me"}).status_code == 404
    assert Cause.objects.get().note == "bob's card"
