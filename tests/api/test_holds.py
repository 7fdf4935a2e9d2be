"""Pausing queues, and holding the new starts of workflows, over REST."""

import pytest

from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.models import Run
from tests.api.conftest import MakeApi, problem
from tests.api.workflows import add

pytestmark = pytest.mark.django_db


def test_a_queue_is_paused_and_resumed(make_api: MakeApi) -> None:
    api = make_api("pause_queue", name="ada")
    held = api.post("/queues/default/pause", {"reason": "bank is down"}).json()
    assert (held["name"], held["held_by"], held["reason"]) == ("default", "ada", "bank is down")
    assert "is paused already" in problem(api.post("/queues/default/pause"), 409, "refused")["detail"]
    assert find_hold(HoldKind.QUEUE, "default") is not None
    assert api.post("/queues/default/resume").json() == {"name": "default", "resumed": 0}
    assert "is not paused" in problem(api.post("/queues/default/resume"), 409, "refused")["detail"]


def test_runs_say_that_their_queue_is_paused(make_api: MakeApi) -> None:
    add.using(id="a").start(1)
    api = make_api("pause_queue", "view_run")
    api.post("/queues/default/pause", {"reason": "bank is down"})
    [listed] = api.get("/runs").json()["results"]
    for shown in (listed, api.get("/runs/a").json()):
        assert "is paused" in shown["explanation"]["headline"]
        assert "bank is down" in shown["explanation"]["headline"]
    [queue] = [each for each in api.get("/queues").json()["results"] if each["name"] == "default"]
    assert queue["hold"]["reason"] == "bank is down"


def test_a_workflow_is_held_and_released(make_api: MakeApi) -> None:
    api = make_api("hold_workflow")
    assert api.post("/workflows/tests.api.add/hold", {"reason": "x"}).status_code == 200
    add.using(id="a").start(1)
    assert Run.objects.get().state == "paused"
    assert api.post("/workflows/tests.api.add/release").json() == {"name": "tests.api.add", "resumed": 1}
    assert Run.objects.get().state == "pending"
