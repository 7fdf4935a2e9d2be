"""Limits and rates over REST: what is held, reserved and closed, who waits, and the verbs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from time_machine import TimeMachineFixture

from durable.conf import conf
from durable.core.limits.rates import Rate, RateWant
from durable.models import Limit, OperatorAction, Reservation, Run, Slot
from durable.store import store_for
from tests.api.conftest import MakeApi, problem
from tests.api.workflows import add
from tests.store.making import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def carrier() -> None:
    """A limit whose one slot the run "one" holds; "two" waits."""
    Limit.objects.create(name="carrier", at_once=1)
    for number, run_id in enumerate(("one", "two")):
        add.using(id=run_id).start(1)
        Slot.objects.create(
            run_id=run_id,
            location="",
            limit="carrier",
            key="acme/🎉",
            kind="open",
            is_held=not number,
            place=number,
            since=NOW,
        )


CARRIER_KEY = {"key": "acme/🎉", "held": 1, "waiting": 1, "oldest_at": NOW.isoformat().replace("+00:00", "Z")}
LIMIT = {
    "name": "carrier",
    "at_once": 1,
    "code_says": 1,
    "is_overridden": False,
    "keys": [CARRIER_KEY],
    "revision": "at once 1",
}


@pytest.mark.usefixtures("carrier")
def test_limits_are_read(make_api: MakeApi) -> None:
    api = make_api("view_run")
    assert api.get("/limits").json() == {"results": [LIMIT]}
    assert api.get("/limits/carrier").json() == LIMIT
    assert 'no limit "none"' in problem(api.get("/limits/none"), 404, "not-found")["detail"]


@pytest.mark.usefixtures("carrier")
def test_a_number_is_set_and_taken_back(make_api: MakeApi) -> None:
    api = make_api("change_limit", name="ada")
    done = api.post("/limits/carrier/set", {"at_once": 3, "reason": "they bought more"}).json()
    assert done == {**LIMIT, "at_once": 3, "is_overridden": True, "revision": "at once 3"}
    assert api.post("/limits/carrier/take-back").json() == LIMIT
    assert api.post("/limits/carrier/set", {"at_once": -1}).status_code == 400


# -- rates over REST: what is reserved and closed, and starts that are refused


KEY = "acme/🎉"
START = {"workflow": "tests.api.add", "args": [1]}


@pytest.fixture
def openai(db: None) -> None:
    """A rate of which the run "one" has begun; "two" waits."""
    for run_id in ("one", "two"):
        add.using(id=run_id).start(1)
        want = RateWant("openai", KEY, 1, Rate.of("1/hour"))
        store_for(conf.DATABASE).reserve(run_id, 0, "a", want, timezone.now())


@pytest.mark.usefixtures("openai")
def test_rates_are_read(make_api: MakeApi, time_machine: TimeMachineFixture) -> None:
    time_machine.move_to(timezone.now(), tick=False)  # the line of the last minute ends now
    api = make_api("view_run")
    [shown] = api.get("/rates").json()["results"]
    assert shown == api.get("/rates/openai").json()
    assert {name: shown[name] for name in ("name", "rate", "burst", "code_says", "is_overridden")} == {
        "name": "openai",
        "rate": "1/hour",
        "burst": 1,
        "code_says": "1/hour",
        "is_overridden": False,
    }
    [key] = shown["keys"]
    assert (key["key"], key["waiting"], key["closed_until"], key["closed_by"]) == (KEY, 1, None, "")
    assert key["next_at"] is not None
    assert key["reserved_until"] > key["next_at"]
    assert 'no limit "none"' in problem(api.get("/rates/none"), 404, "not-found")["detail"]


@pytest.mark.usefixtures("openai")
def test_what_is_set_and_closed_is_answered_and_what_cannot_be_is_refused(make_api: MakeApi) -> None:
    api = make_api("change_limit", name="ada")
    before = Reservation.objects.get().at
    done = api.post("/limits/openai/set-rate", {"rate": "60/min", "burst": 5}).json()
    assert (done["rate"], done["burst"], done["is_overridden"], done["code_says"]) == ("60/min", 5, True, "1/hour")
    assert Reservation.objects.get().at < before - timedelta(minutes=50)
    until = (timezone.now() + timedelta(days=1)).isoformat()
    [key] = api.post("/limits/openai/close", {"until": until, "key": KEY, "reason": "429"}).json()["keys"]
    assert (key["closed_by"], key["closed_why"], key["closed_until"] is not None) == ("ada", "429", True)
    [key] = api.post("/limits/openai/open", {"key": KEY}).json()["keys"]
    assert key["closed_until"] is None
    refused = problem(api.post("/limits/openai/set-rate", {"rate": "x"}), 422, "arguments-refused")
    assert "number of units" in refused["detail"]
    problem(api.post("/limits/openai/close", {"until": "2020-01-01T00:00:00Z"}), 422, "arguments-refused")


def test_a_start_is_refused(make_api: MakeApi, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"starts": {"rate": "1/hour"}}}
    api = make_api("start_run", "view_run")
    start = {"workflow": "tests.api.add", "args": [1], "rate": "starts/acme", "when_full": "drop"}
    assert api.post("/runs", {**start, "id": "a"}).status_code == 201
    assert api.post("/runs", {**start, "id": "a"}).status_code == 200
    answer = api.post("/runs", {**start, "id": "b"})
    refused = problem(answer, 429, "start-refused")
    assert (refused["limit"], refused["key"]) == ("starts", "acme")
    assert 3_000 < int(answer["Retry-After"]) <= 3_600
    assert not Run.objects.filter(pk="b").exists()
    [key] = api.get("/rates/starts").json()["keys"]
    assert (key["refused"], key["refused_workflow"], key["refused_at"] is not None) == (1, "tests.api.add", True)
    assert OperatorAction.objects.filter(action="start", outcome="refused").count() == 1
    problem(api.post("/runs", {**start, "when_full": "wait"}), 400, "invalid-request")
    problem(api.post("/runs", {**START, "rate": "starts"}), 422, "arguments-refused")


def test_a_repeated_request_that_was_refused_stays_refused(make_api: MakeApi, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"starts": {"rate": "1/hour"}}}
    api = make_api("start_run", "view_run", "change_limit")
    start = {**START, "rate": "starts", "when_full": "drop"}
    api.post("/runs", start)
    assert api.post("/runs", start, key="k").status_code == 429
    assert api.post("/limits/starts/set-rate", {"rate": "1000000/s"}).status_code == 200
    again = api.post("/runs", start, key="k")
    assert (again.status_code, again["Idempotency-Replayed"]) == (429, "true")
    assert api.post("/runs", start, key="another").status_code == 201
