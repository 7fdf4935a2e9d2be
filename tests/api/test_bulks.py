"""Bulks over REST: at once or in the background, with a canary, and what has come of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable import get_run
from durable.api.bulks import BulkPlanForm
from durable.api.fields import Items
from durable.inspection.bulks import find_bulk
from durable.models import OperatorAction, Run
from durable.operations.bulk import BULK_OPTIONS
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.workflows import loop
from tests.support.runs import stored_runs

pytestmark = pytest.mark.django_db
CANARY = {"first": 2, "stop_after": 1, "within": "5 min"}


def started(*ids: str) -> list[str]:
    for each in ids:
        loop.using(id=each).start(1)
    return list(ids)


def states(*ids: str) -> set[str]:
    return set(Run.objects.filter(pk__in=ids).values_list("state", flat=True))


def test_a_bulk_of_ids_is_done_at_once(api: Api) -> None:
    started("a", "b")
    answer = api.post("/bulks", {"verb": "pause", "ids": ["a", "b", "nowhere"], "reason": "night", "id": "b1"})
    assert answer.status_code == 200
    found = answer.json()
    assert (found["id"], found["run"], found["done"], found["refused"], found["is_over"]) == ("b1", None, 2, 1, True)
    [group] = found["refusals"]
    assert (group["outcome"], group["runs"]) == ("missing", ["nowhere"])
    assert api.get("/bulks/b1").json() == found
    assert states("a", "b") == {"paused"}
    rows = api.get("/operator-actions?bulk=b1").json()["results"]
    assert {(each["run"], each["outcome"]) for each in rows} == {
        ("nowhere", "missing"),
        ("b", "done"),
        ("a", "done"),
        ("b1", "done"),
    }
    keyed = api.post("/bulks", {"verb": "pause", "ids": ["a", "nowhere"]}, key="k").json()
    assert (keyed["done"], keyed["refused"]) == (0, 2)


def test_a_filter_and_a_canary_are_done_in_the_background(api: Api) -> None:
    started("a", "b", "c")
    order = {
        "verb": "pause",
        "filter": {"workflow": "tests.api.loop", "state": ["pending"]},
        "canary": CANARY,
        "rate": 2,
    }
    answer = api.post("/bulks", order)
    assert answer.status_code == 202
    found = answer.json()
    assert (found["run"], found["total"], found["is_stopped"], found["is_over"]) == (found["id"], 3, False, False)
    assert get_run(found["id"]).workflow == "durable.bulk"
    problem(api.post(f"/runs/{found['id']}/go-on"), 409, "refused")
    problem(api.post(f"/runs/{found['id']}/stop-here"), 409, "refused")


@pytest.mark.parametrize(("verb", "option"), [(v, o) for v, options in BULK_OPTIONS.items() for o in options])
def test_a_bulk_has_the_options_of_its_verb(make_api: MakeApi, verb: str, option: str) -> None:
    api = make_api(*ALL, "settle_step")
    started("a")
    value, is_required = {"queue": "high", "place": "charge"}.get(option, True), BULK_OPTIONS[verb][option].is_required
    orders: list[dict[str, object]] = [{option: value}] if is_required else [{}, {option: value}]
    if verb == "settle":  # needs one answer
        orders = [{option: value, **({"fail": True} if option == "place" else {})}]
    for given in orders:
        bulk_id = api.post("/bulks", {"verb": verb, "ids": ["a"], "rate": 1, **given}).json()["id"]
        found = find_bulk(bulk_id)
        assert found is not None
        assert found.order is not None
        assert found.order.options == given


def test_twice_is_once(api: Api) -> None:
    started("a")
    order = {"verb": "pause", "ids": ["a"], "rate": 1, "id": "once"}
    for _ in range(2):
        assert api.post("/bulks", order).json()["id"] == "once"
    assert Run.objects.filter(workflow="durable.bulk").count() == 1


@pytest.mark.parametrize(
    ("order", "at"),
    [
        ({"verb": "pause"}, "ids"),
        ({"verb": "pause", "ids": ["a"], "filter": {}}, "ids"),
        ({"verb": "pause", "ids": []}, "ids"),
        ({"verb": "explode", "ids": ["a"]}, "verb"),
        ({"verb": "pause", "ids": ["a"], "rollback": True}, "rollback"),
        ({"verb": "pause", "ids": ["a"], "queue": "high"}, "queue"),
        ({"verb": "move", "ids": ["a"]}, "queue"),
        ({"verb": "move", "ids": ["a"], "queue": "hihg"}, "queue"),
        ({"verb": "pause", "ids": ["a"], "rate": 0}, "rate"),
        ({"verb": "pause", "ids": ["a"], "canary": {"first": 2, "stop_after": 3}}, "canary"),
        ({"verb": "pause", "ids": ["a"], "canary": {"first": 0}}, "canary/first"),
        ({"verb": "pause", "filter": {"unknown": "x"}}, "filter/unknown"),
    ],
)
def test_mistakes_are_reported_where_they_are(api: Api, order: dict[str, Any], at: str) -> None:
    document = problem(api.post("/bulks", order), 400, "invalid-request")
    assert document["errors"][0]["at"].replace(".", "/").strip("/").startswith(at)
    assert not OperatorAction.objects.exists()


def test_too_many_items_are_refused_before_they_are_looked_at() -> None:
    looked: list[Any] = []

    class Noting(serializers.Field[Any, Any, Any, Any]):
        def to_internal_value(self, data: Any) -> Any:
            looked.append(data)
            return data

    field = Items(child=Noting(), max_length=3)
    assert field.run_validation([1, 2, 3]) == looked == [1, 2, 3]
    with pytest.raises(ValidationError, match="no more than 3 elements"):
        field.run_validation([4] * 4)
    assert looked == [1, 2, 3]
    assert isinstance(BulkPlanForm().fields["ids"], Items)


def test_another_number_than_expected_does_nothing(api: Api) -> None:
    started("a", "b")
    problem(api.post("/bulks", {"verb": "pause", "ids": ["a", "b"], "expected": 3}), 409, "refused")
    problem(api.post("/bulks", {"verb": "cancel", "filter": {}}), 409, "refused")
    assert states("a", "b") == {"pending"}


def only_mine(request: Any, runs: Any) -> Any:
    return runs.filter(id__startswith="mine")


def test_a_user_who_sees_some_runs_acts_on_these_alone(make_api: MakeApi) -> None:
    started("mine-1", "theirs-1")
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.only_mine"}):
        api, other = make_api(*ALL), make_api(*ALL, name="other")
        problem(api.post("/bulks", {"verb": "pause", "filter": {"state": ["pending"]}}), 403, "permission-denied")
        problem(api.post("/bulks", {"verb": "pause", "ids": ["mine-1", "theirs-1"]}), 404, "run-not-found")
        found = api.post("/bulks", {"verb": "pause", "ids": ["mine-1"], "id": "b1"})
        assert found.status_code == 200
        assert api.get("/bulks/b1").status_code == 200
        problem(other.get("/bulks/b1"), 404, "not-found")
    assert states("theirs-1") == {"pending"}


def test_the_log_is_searched(api: Api) -> None:
    stored_runs(1, "completed")
    started("a", "b")
    api.post("/runs/a/pause", {"reason": "the bank is away"})
    api.post("/runs/b/pause", {"reason": "night"})
    api.post("/runs/a/resume", {"reason": "the bank is back"})

    def found(query: str) -> list[tuple[str, str]]:
        return [(each["action"], each["run"]) for each in api.get(f"/operator-actions?{query}").json()["results"]]

    assert found("reason=BANK") == [("resume", "a"), ("pause", "a")]
    assert found("reason=bank&action=pause") == [("pause", "a")]
    assert found(f"actor={api.user}&outcome=done") == [("resume", "a"), ("pause", "b"), ("pause", "a")]
    assert found("actor=nobody") == []
    assert found("since=2100-01-01T00:00:00Z") == []
    problem(api.get("/operator-actions?since=2026-01-01"), 400, "invalid-request")
