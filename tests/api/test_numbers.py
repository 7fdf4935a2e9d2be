"""Queues and workflows over REST: their numbers, pauses and holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, Schedule, every, workflow
from durable.migrations import RenameWorkflow
from durable.models import HeldStart, Run
from durable.operations import holds
from tests.api.conftest import Api, MakeApi, problem
from tests.api.workflows import add, loop
from tests.faults.passing import pass_once
from tests.renames.conftest import apply, no_names_left
from tests.support.worker import a_worker

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


__all__ = ["no_names_left"]


NO_RUNS = {"number": 0, "is_capped": False}


@workflow(name="tests.api.numbered")
def numbered(ctx: Context, number: int) -> int:
    return ctx.step("charge", int, number)


def queue(api: Api, name: str = "default") -> dict[str, Any]:
    [found] = [each for each in api.get("/queues").json()["results"] if each["name"] == name]
    shown: dict[str, Any] = found
    return shown


def stats(api: Api, name: str = "tests.api.numbered") -> dict[str, Any]:
    answer = api.get(f"/workflows/{name}/stats")
    assert answer.status_code == 200, answer.content
    shown: dict[str, Any] = answer.json()
    return shown


@pytest.mark.parametrize("look", [queue, stats])
def test_the_number_of_statements_does_not_grow_with_the_runs(make_api: MakeApi, look: Callable[[Api], object]) -> None:
    api = make_api("view_run")
    numbers = []
    for _ in range(2):
        numbered.start_many([(each,) for each in range(20)])
        with CaptureQueriesContext(connection) as seen:
            look(api)
        numbers.append(len(seen))
    assert numbers[0] == numbers[1]


class TestQueues:
    def test_a_queue_tells_what_is_due_and_who_serves_it(self, make_api: MakeApi) -> None:
        api = make_api("view_run")
        assert (queue(api)["due"], queue(api)["oldest_due_at"], queue(api)["served_by"]) == (NO_RUNS, None, [])
        worker = a_worker(queues=["default"])
        add.using(id="due").start(1)
        Run.objects.update(wake_at=timezone.now() - timedelta(minutes=4))
        add.using(id="held").start(1)
        Run.objects.filter(pk="held").update(
            worker=worker.name, lease_expires_at=timezone.now() + timedelta(minutes=1), wake_at=None
        )
        pass_once(add.using(id="done").start(1))
        found = queue(api)
        assert found["due"] == {"number": 1, "is_capped": False}
        assert datetime.fromisoformat(found["oldest_due_at"]) == Run.objects.get(pk="due").wake_at
        assert found["in_hand"] == {"number": 1, "is_capped": False}
        assert (found["in_per_minute"], found["out_per_minute"]) == (0.3, 0.1)
        assert (found["served_by"], found["workers"]) == ([worker.name], 1)

    def test_a_paused_queue_says_so_with_who_and_why(self, make_api: MakeApi) -> None:
        api = make_api("view_run", "pause_queue", name="ada")
        assert (queue(api)["is_paused"], queue(api)["hold"]) == (False, None)
        held = api.post("/queues/default/pause", {"reason": "bank is down"}).json()
        assert (queue(api)["is_paused"], queue(api)["hold"]) == (True, held)


class TestWorkflows:
    def test_a_workflow_tells_how_its_runs_and_steps_went(self, make_api: MakeApi) -> None:
        api = make_api("view_run")
        assert (stats(api)["p50"], stats(api)["sampled"], stats(api)["steps"]) == (None, 0, [])
        for number in range(3):
            pass_once(numbered.using(id=f"done-{number}").start(number))
        numbered.using(id="due").start(1)
        a_worker(queues=["default"], build="7f3a")
        found = stats(api)
        assert found["sampled"] == 3
        assert 0 <= found["p50"] <= found["p95"]
        [step] = found["steps"]
        assert (step["place"], step["sampled"], step["failed"], step["attempts"]) == ("charge", 3, 0, 1.0)
        assert 0 <= step["p50"] <= step["p95"]
        assert found["places"] == [{"state": "pending", "place": "", "count": 1}]
        assert found["builds"] == [{"build": "7f3a", "workers": 1}]
        assert (found["hold"], found["held_starts"]) == (None, NO_RUNS)

    def test_a_held_workflow_says_so_with_its_held_starts(self, make_api: MakeApi) -> None:
        api = make_api("view_run", "hold_workflow", name="ada")
        held = api.post("/workflows/tests.api.numbered/hold", {"reason": "x"}).json()
        numbered.start_many([(1,), (2,)])
        found = stats(api)
        assert (found["hold"], found["held_starts"]) == (held, {"number": 2, "is_capped": False})
        assert found["places"] == [{"state": "paused", "place": "held at its start", "count": 2}]

    def test_a_workflow_of_old_code_has_numbers_while_it_has_runs(self, make_api: MakeApi) -> None:
        api = make_api("view_run")
        problem(api.get("/workflows/tests.api.gone/stats"), 404, "not-found")
        numbered.using(id="old").start(1)
        Run.objects.update(workflow="tests.api.gone")
        assert stats(api, "tests.api.gone")["places"] == [{"state": "pending", "place": "", "count": 1}]

    @override_settings(DURABLE={"API_WORKFLOWS": ["tests.api.add"]})
    def test_one_that_is_not_offered_is_like_none_until_a_run_of_it_is_seen(self, make_api: MakeApi) -> None:
        api = make_api("view_run")
        hidden = problem(api.get("/workflows/tests.api.loop/stats"), 404, "not-found")
        nowhere = problem(api.get("/workflows/tests.api.looq/stats"), 404, "not-found")
        assert hidden["detail"].replace("loop", "looq") == nowhere["detail"]
        loop.start(1)
        assert stats(api, "tests.api.loop")["name"] == "tests.api.loop"

    def test_a_renamed_one_has_the_numbers_of_all_its_names(self, make_api: MakeApi) -> None:
        api, former, name = make_api("view_run", "hold_workflow"), "tests.api.former", "tests.api.numbered"
        api.get("/runs")
        apply(RenameWorkflow(former, name, wait=0), is_known=False)
        numbered.start_many([(1,), (2,)], ids=["new", "old"])
        Run.objects.filter(pk="old").update(workflow=former)
        held = api.post(f"/workflows/{former}/hold", {"reason": "x"}).json()
        numbered.start_many([(3,), (4,)], ids=["new-held", "old-held"])
        Run.objects.filter(pk="old-held").update(workflow=former)
        HeldStart.objects.filter(run="old-held").update(workflow=former)
        Schedule.objects.create(name="nightly", workflow=name, rule=every("1 day"))
        for asked in (former, name):
            found = stats(api, asked)
            assert (found["name"], found["other_names"]) == (name, [former])
            assert {each["state"]: each["count"] for each in found["places"]} == {"pending": 2, "paused": 2}
            assert found["held_starts"] == {"number": 2, "is_capped": False}
            assert found["hold"] == {**held, "name": name}
            assert api.get(f"/workflows/{asked}").json()["name"] == name
            assert {each["id"] for each in api.get(f"/runs?workflow={asked}").json()["results"]} == {
                *("new", "old", "new-held", "old-held")
            }
        api = make_api("view_run", "view_schedule", name="eve")
        for asked in (former, name):
            found = api.get(f"/schedules?workflow={asked}").json()
            assert [each["name"] for each in found["results"]] == ["nightly"]

    @override_settings(DURABLE={"API_WORKFLOWS": ["tests.api.former"]})
    def test_one_that_is_offered_by_its_old_name_has_numbers_by_either(self, make_api: MakeApi) -> None:
        api = make_api("view_run")
        problem(api.get("/workflows/tests.api.numbered/stats"), 404, "not-found")
        apply(RenameWorkflow("tests.api.former", "tests.api.numbered", wait=0), is_known=False)
        for asked in ("tests.api.former", "tests.api.numbered"):
            assert stats(api, asked)["name"] == "tests.api.numbered"

    def test_a_name_that_no_database_can_hold_is_not_found(self, make_api: MakeApi) -> None:
        for name in ("%00", "x" * 10_000, "%F0%9F%92%B3"):
            problem(make_api("view_run").get(f"/workflows/{name}/stats"), 404, "not-found")


class TestVisibility:
    @pytest.fixture(autouse=True)
    def limited(self) -> Iterator[None]:
        """A user sees the runs whose ids begin with the user's name."""
        with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
            yield

    def test_numbers_of_queues_are_of_the_runs_that_a_user_sees(self, make_api: MakeApi) -> None:
        api = make_api("view_run", name="ada")
        add.using(id="ada-1", queue="high").start(1)
        add.using(id="bob-1", queue="high").start(1)
        pass_once(add.using(id="bob-2", queue="high").start(1))
        found = queue(api, "high")
        assert found["due"] == {"number": 1, "is_capped": False}
        assert (found["in_per_minute"], found["out_per_minute"]) == (0.1, 0.0)

    def test_a_pause_names_no_queue_of_others(self, make_api: MakeApi) -> None:
        add.using(id="bob-1").start(1)
        Run.objects.filter(pk="bob-1").update(queue="secret")
        holds.pause_queue("secret")
        holds.pause_queue("high")
        api = make_api("view_run", name="ada")
        assert "secret" not in api.get("/queues").content.decode()
        assert queue(api, "high")["is_paused"] is True

    def test_numbers_of_a_workflow_are_of_the_runs_that_a_user_sees(self, make_api: MakeApi) -> None:
        pass_once(numbered.using(id="ada-1").start(1))
        for number in range(3):
            pass_once(numbered.using(id=f"bob-{number}").start(number))
        holds.hold_starts("tests.api.numbered")
        numbered.using(id="bob-held").start(1)
        api = make_api("view_run", name="ada")
        found = stats(api)
        [step] = found["steps"]
        assert (found["sampled"], step["sampled"], found["places"], found["held_starts"]) == (1, 1, [], NO_RUNS)
        Run.objects.update(workflow="tests.api.gone")
        Run.objects.filter(pk="ada-1").delete()
        problem(api.get("/workflows/tests.api.gone/stats"), 404, "not-found")
