"""Runs over REST: started, found, looked at; and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django import urls
from django.test import override_settings

from durable import Break, Context, Continue, get_run, workflow
from durable.core.names.renames import Alias, AliasKind, in_force
from durable.listings import history
from durable.models import Run
from tests.api.conftest import ALL, Api, MakeApi, pages, problem
from tests.api.workflows import add, ask, fail, loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


class TestStarting:
    def test_a_run_with_arguments(self, api: Api) -> None:
        started = api.post("/runs", {"workflow": "tests.api.add", "args": [[1]], "kwargs": {"other": [2.5, None]}})
        assert started.status_code == 201
        run_id = started.json()["id"]
        assert started.json() == {"id": run_id, "workflow": "tests.api.add", "state": "pending"}
        assert started["Location"] == f"/api/runs/{run_id}"
        assert pass_once(get_run(run_id)).state == "completed"
        assert get_run(run_id).output == [1, 2.5, None]

    def test_an_id_names_a_run_for_good(self, api: Api) -> None:
        body = {"workflow": "tests.api.add", "args": [1], "id": "order 1"}
        first = api.post("/runs", body)
        again = api.post("/runs", body)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        assert first["Location"] == "/api/runs/order%201"
        assert api.get("/runs/order%201").json()["id"] == "order 1"
        assert Run.objects.count() == 1

    @pytest.mark.parametrize("other", [{"args": [2]}, {"workflow": "tests.api.loop"}, {"on_conflict": "error"}])
    def test_the_id_of_another_is_a_conflict(self, api: Api, other: dict[str, Any]) -> None:
        body = {"workflow": "tests.api.add", "args": [1], "id": "one"}
        api.post("/runs", body)
        document = problem(api.post("/runs", body | other), 409, "id-taken")
        assert "choose another id" in document["detail"]

    def test_a_delay_and_a_queue(self, api: Api) -> None:
        api.post("/runs", {"workflow": "tests.api.add", "args": [1], "id": "a", "delay": "1 hour", "queue": "high"})
        run = Run.objects.get(pk="a")
        assert run.queue == "high"
        assert run.wake_at is not None
        assert (run.wake_at - run.created_at).total_seconds() == 3600

    def test_an_unknown_workflow_is_answered_with_the_nearest(self, api: Api) -> None:
        document = problem(api.post("/runs", {"workflow": "tests.api.ad"}), 422, "unknown-workflow")
        assert "tests.api.add" in document["nearest"]

    @override_settings(DURABLE={"API_WORKFLOWS": ["tests.api.add", "shop."]})
    def test_the_settings_say_what_may_be_started(self, api: Api) -> None:
        assert api.post("/runs", {"workflow": "tests.api.add", "args": [1]}).status_code == 201
        refused = problem(api.post("/runs", {"workflow": "tests.api.loop", "args": [1]}), 422, "unknown-workflow")
        nowhere = problem(api.post("/runs", {"workflow": "tests.api.looq", "args": [1]}), 422, "unknown-workflow")
        assert refused["detail"].replace("loop", "looq") == nowhere["detail"]
        problem(api.get("/workflows/tests.api.loop"), 404, "not-found")
        listed = {each["name"] for each in api.get("/workflows").json()["results"]}
        assert "tests.api.add" in listed
        assert all(each == "tests.api.add" or each.startswith("shop.") for each in listed)
        assert len(listed) > 1

    @override_settings(DURABLE={"API_WORKFLOWS": ["tests.api.add"]})
    def test_a_former_name_starts_the_workflow(self, api: Api) -> None:
        body = {"workflow": "tests.api.former", "args": [1]}
        problem(api.post("/runs", body), 422, "unknown-workflow")
        with in_force([Alias(AliasKind.WORKFLOW, "tests.api.former", "tests.api.add")]):
            assert api.post("/runs", body).json()["workflow"] == "tests.api.add"
        with in_force([Alias(AliasKind.WORKFLOW, "tests.api.former", "tests.api.loop")]):
            problem(api.post("/runs", body), 422, "unknown-workflow")

    def test_what_durable_starts_itself_is_not_for_outsiders(self, api: Api) -> None:
        @workflow(name="durable.inner")
        def inner(ctx: Context) -> None: ...

        problem(api.post("/runs", {"workflow": "durable.inner"}), 422, "unknown-workflow")
        problem(api.get("/workflows/durable.inner"), 404, "not-found")
        assert not [each for each in api.get("/workflows").json()["results"] if each["name"].startswith("durable.")]

    def test_arguments_that_do_not_fit(self, api: Api) -> None:
        document = problem(api.post("/runs", {"workflow": "tests.api.add"}), 422, "arguments-refused")
        assert "missing a required argument: 'one'" in document["detail"]

    def test_a_value_that_is_too_large_to_record(self, api: Api) -> None:
        with override_settings(DURABLE={"MAX_PAYLOAD_BYTES": 1000}):
            document = problem(
                api.post("/runs", {"workflow": "tests.api.add", "args": ["x" * 2000]}), 422, "payload-refused"
            )
        assert document["what"] == "the input of tests.api.add"
        assert not Run.objects.exists()


class TestLooking:
    def test_payloads_are_shown_on_demand(self, api: Api) -> None:
        add.using(id="a").start((1,), (2,))
        pass_once(get_run("a"))
        assert api.get("/runs/a").json()["input"] is None
        expanded = api.get("/runs/a?expand=input,output").json()
        assert expanded["input"] == {"args": [[1], [2]], "kwargs": {}}
        assert expanded["output"] == [1, 2]

    def test_a_waiting_run(self, api: Api) -> None:
        ask.using(id="a").start()
        pass_once(get_run("a"))
        shown = api.get("/runs/a").json()
        assert (shown["state"], shown["waiting_for"]) == ("sleeping", ["question"])
        assert "question" in shown["explanation"]["headline"]
        assert {"send", "cancel"} <= set(shown["actions"])

    def test_an_error_without_its_traceback(self, api: Api, make_api: MakeApi) -> None:
        fail.using(id="a").start()
        pass_once(get_run("a"))
        viewer = make_api("view_run")
        assert "broken" in api.get("/runs/a").json()["error"]["traceback"]
        shown = viewer.get("/runs/a").json()["error"]
        assert (shown["type"], shown["traceback"]) == ("StepExhaustedError", None)
        entry = viewer.get("/runs/a/entries/break").json()
        assert entry["failed_attempts"][0]["error"] == {"type": "ValueError", "message": "broken", "traceback": None}

    def test_values_beyond_json(self, api: Api) -> None:
        from datetime import UTC, datetime
        from decimal import Decimal

        odd = [datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.10"), {1, 2}, b"\x00", float("nan"), "\ud800\x00", 10**5000]
        add.using(id="a").start(odd, [{"$:x": 1}])
        pass_once(get_run("a"))
        shown = api.get("/runs/a?expand=output").json()["output"]
        assert shown[:3] == ["2026-01-01T00:00:00+00:00", "1.10", [1, 2]]
        assert shown[5] == "\ud800\x00"
        assert shown[7] == {"$:x": 1}

    def test_workflows_with_their_signatures(self, api: Api) -> None:
        shown = api.get("/workflows/tests.api.add").json()
        assert shown["signature"] == "(one: Any, other: Any = 1)"
        assert shown["description"] == "Add two things."
        assert shown["parameters"][1] == {
            "name": "other",
            "kind": "positional_or_keyword",
            "is_required": False,
            "annotation": "Any",
            "default": "1",
        }
        assert "tests.api.add" in [each["name"] for each in api.get("/workflows").json()["results"]]

    def test_defaults_are_shown_to_those_who_may_see_payloads(self, make_api: MakeApi) -> None:
        @workflow(name="tests.api.keyed")
        def keyed(ctx: Context, one: int, *, key: str = "SECRET") -> None: ...

        viewer = make_api("view_run")
        shown = viewer.get("/workflows/tests.api.keyed").json()
        assert shown["signature"] == "(one: int, *, key: str = …)"
        assert [each["default"] for each in shown["parameters"]] == [None, "…"]
        assert [each["is_required"] for each in shown["parameters"]] == [True, False]
        assert "SECRET" not in viewer.get("/workflows").content.decode()
        assert "SECRET" in make_api("view_run", "view_payload").get("/workflows").content.decode()

    def test_the_address_of_redis_is_not_shown(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        from durable.notifier import redis_clients

        def away(_names: Any) -> Any:
            raise ConnectionError("Error 111 connecting to redis.internal:6379")

        monkeypatch.setattr(redis_clients, "one_queue_per_redis", away)
        for path in ("/workers", "/queues"):
            problem = api.get(path).json()["problem"]
            assert problem.startswith("Redis does not answer (ConnectionError)")
            assert "internal" not in problem

    def test_counts_and_surroundings(self, api: Api) -> None:
        add.start_many([(1,), (2,)])
        assert api.get("/counts").json()["states"]["pending"] == {"number": 2, "is_capped": False}
        assert "default" in [each["name"] for each in api.get("/queues").json()["results"]]
        assert api.get("/workers").json()["results"] == []


class TestListing:
    def test_pages_follow_each_other(self, api: Api) -> None:
        add.start_many([(number,) for number in range(7)], ids=[f"run{number}" for number in range(7)])
        found = [page["results"] for page in pages(api, "/runs?limit=3")]
        assert max(map(len, found)) == 3
        assert sorted(each["id"] for page in found for each in page) == [f"run{number}" for number in range(7)]

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", {"added", "asked", "failed"}),
            ("state=completed", {"added"}),
            ("state=completed&state=failed", {"added", "failed"}),
            ("workflow=tests.api.ask", {"asked"}),
            ("queue=high", set()),
            ("id_prefix=a", {"added", "asked"}),
            ("error=broken", {"failed"}),
            ("waiting_queue=question", {"asked"}),
            ("waiting_queue=end", set()),
            ("created_from=2020-01-01T00:00:00Z&created_until=2021-01-01T00:00:00%2B01:00", set()),
            ("finished_from=2020-01-01T00:00:00Z", {"added", "failed"}),
        ],
    )
    def test_filters(self, api: Api, query: str, found: set[str]) -> None:
        for each in (add.using(id="added").start(1), ask.using(id="asked").start(), fail.using(id="failed").start()):
            pass_once(each)
        assert {each["id"] for each in api.get(f"/runs?{query}").json()["results"]} == found

    def test_entries_page_by_page(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(5))
        first = api.get("/runs/a/entries?limit=4").json()
        rest = api.get(f"/runs/a/entries?limit=4&cursor={first['next_cursor']}").json()
        assert [each["location"] for each in first["results"]] == [f"step {number}" for number in range(4)]
        assert [each["location"] for each in rest["results"]] == ["step 4", "rest"]
        assert rest["next_cursor"] is None
        assert rest["results"][-1]["data"]["state"] == "pending"

    def test_entries_of_a_history_that_is_searched_block_by_block(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "_BLOCK", 4)
        pass_once(loop.using(id="a").start(9))
        found = [each["location"] for page in pages(api, "/runs/a/entries?limit=2") for each in page["results"]]
        assert found == [*(f"step {number}" for number in range(9)), "rest"]

    def test_entries_as_a_tree(self, api: Api) -> None:
        def once_more(ctx: Context, number: int) -> Break[int] | Continue[int]:
            ctx.step("one", int)
            return Break(number) if number else Continue(1)

        @workflow(name="tests.api.looped")
        def looped(ctx: Context) -> Any:
            return ctx.loop("again", once_more, state=0)

        pass_once(looped.using(id="a").start())
        tree = api.get("/runs/a/tree").json()
        assert [each["location"] for each in tree["roots"]] == ["again"]
        assert api.get("/runs/a/entries/again").json()["payloads"] == {"state": 1, "output": 1}

    def test_entries_as_a_timeline(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(7))
        timeline = api.get("/runs/a/timeline").json()
        shown = [(row["place"], row["count"], row["location"], row["ends_at"] is None) for row in timeline["rows"]]
        assert shown == [("step #", 7, "", False), ("rest", 1, "rest", True)]
        assert timeline["rows"][0]["p50"] >= 0
        assert [span["kind"] for span in timeline["rows"][1]["spans"]] == ["sleep"]
        opened = api.get(f"/runs/a/timeline?open={quote(timeline['rows'][0]['opens'])}").json()
        assert [row["place"] for row in opened["rows"] if row["depth"]] == [f"step {number}" for number in range(7)]
        assert (opened["left_out"], opened["more"], opened["is_sampled"]) == (0, None, False)

    def test_a_page_costs_the_same_however_long_it_is(
        self, make_api: MakeApi, django_assert_max_num_queries: Callable[..., Any]
    ) -> None:
        add.start_many([(number,) for number in range(30)])
        pass_once(loop.using(id="a").start(20))
        for number in range(20):
            get_run("a").send("q", number)
        for api in (make_api("view_run"), make_api("view_run", "view_payload")):
            api.get("/runs?limit=2")  # looks up the permissions, and what else is kept
            for path in ("/runs?limit=30", "/runs/a/entries", "/runs/a/messages", "/runs/a/tree", "/operator-actions"):
                with django_assert_max_num_queries(8 + 4):  # the time limit: a savepoint, set, set back, release
                    assert api.get(path).status_code == 200

    def test_what_the_project_hides_is_hidden_here(self, api: Api) -> None:
        ask.using(id="a").start("hush")
        get_run("a").send("question", "hush")
        pass_once(get_run("a"))
        with override_settings(DURABLE={"REDACT": "tests.api.test_runs.hidden"}):
            for path in (
                "/runs/a?expand=input",
                "/runs/a/entries?payloads=true",
                "/runs/a/entries/think",
                "/runs/a/messages",
                "/runs/a/events",
            ):
                assert "hush" not in api.get(path).content.decode(), path
            pass_once(fail.using(id="failed").start())
            for path in (
                "/runs",
                "/runs/failed",
                "/runs/failed/result",
                "/runs/failed/entries/break",
                "/runs/failed/events",
            ):
                assert "broken" not in api.get(path).content.decode(), path
            assert "hidden" in api.get("/runs/a/entries/think").content.decode()


def hidden(_workflow: str, _field: str, _value: Any) -> str:
    return "hidden"


def must_not_sleep(seconds: float) -> None:
    """Stands for time.sleep where nothing may wait."""
    raise AssertionError(f"slept {seconds} s")


class TestResults:
    def test_of_runs_that_have_ended_and_of_one_that_goes_on(self, api: Api) -> None:
        pass_once(add.using(id="a").start(1, 2))
        expected = {"id": "a", "state": "completed", "has_ended": True, "output": 3, "error": None}
        assert api.get("/runs/a/result?wait=30").json() == expected
        pass_once(fail.using(id="f").start())
        result = api.get("/runs/f/result").json()
        assert (result["state"], result["has_ended"], result["error"]["type"]) == ("failed", True, "StepExhaustedError")
        add.using(id="p").start(1)
        result = api.get("/runs/p/result?wait=0.05").json()
        assert (result["state"], result["has_ended"], result["output"]) == ("pending", False, None)

    def test_more_waiting_requests_than_seats_do_not_wait(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.api.long_poll.time.sleep", must_not_sleep)
        add.using(id="a").start(1)
        with override_settings(DURABLE={"API_MAX_WAITING": 0}):
            assert api.get("/runs/a/result?wait=30").json()["has_ended"] is False
        api.serve_with(threads=False)
        assert api.get("/runs/a/result?wait=30").json()["has_ended"] is False


_inner = [urls.path("v1/", urls.include("durable.api.urls", namespace="runs"))]
#: The interface below another prefix, in a namespace of the host's.
urlpatterns = [urls.path("deep/below/", urls.include((_inner, "host")))]


def test_the_interface_works_below_any_prefix(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    with override_settings(ROOT_URLCONF=__name__):
        api.prefix = "/deep/below/v1"
        started = api.post("/runs", {"workflow": "tests.api.add", "args": [1], "id": "a"})
        assert started["Location"] == "/deep/below/v1/runs/a"
        assert api.get("/runs/a").status_code == 200
