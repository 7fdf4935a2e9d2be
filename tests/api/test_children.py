"""Children over REST: lists of roots, the children of a run, and what a user who sees some runs only learns of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from durable import Context, CriticalError, RetryLater, current_step, get_run, workflow
from durable.inspection.pagination import cursor_of
from durable.models import Activity, Child, Run, Schedule, Tick
from tests.api.conftest import ALL, Api, MakeApi, pages, problem
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

STATES = ["completed", "failed", "failed", "sleeping"]


@pytest.fixture
def family(db: None) -> list[str]:
    """A parent, and the ids of its four children."""
    Run.objects.create(
        id="ada-1", workflow="parent", queue="q", input="{}", state="sleeping", created_at=timezone.now()
    )
    ids = []
    for number, state in enumerate(STATES):
        now = timezone.now()
        ended = now if state in ("completed", "failed") else None
        run = Run.objects.create(
            id=f"ada-1:bill {number}",
            workflow="child",
            queue="q",
            input="{}",
            state=state,
            created_at=now,
            finished_at=ended,
            parent_id="ada-1",
        )
        group = "bills" if number else None
        Child.objects.create(
            run=run, parent_id="ada-1", location="bills", when_parent_ends="cancel", position=number, group=group
        )
        ids.append(run.id)
    return ids


def listed(api: Api, query: str = "") -> set[str]:
    return {run["id"] for run in api.get(f"/runs{query}").json()["results"]}


def test_lists_have_roots_and_children_when_they_are_asked_for(api: Api, family: list[str]) -> None:
    assert listed(api) == {"ada-1"}
    assert listed(api, "?state=failed") == set()
    assert listed(api, "?children=true") == {"ada-1", *family}
    assert listed(api, "?state=failed&children=true") == set(family[1:3])
    assert listed(api, "?id_prefix=ada-1:bill") == set(family)
    assert listed(api, "?attention=true") == set(family[1:3])


def test_the_children_of_a_run_are_listed_by_state_and_group_and_page_by_page(api: Api, family: list[str]) -> None:
    def children(query: str = "") -> tuple[list[str], str | None]:
        page = api.get(f"/runs/ada-1/children{query}").json()
        return [each["run"]["id"] for each in page["results"]], page["next_cursor"]

    assert children() == (family, None)
    assert children("?state=failed") == (family[1:3], None)
    assert children("?state=failed&state=completed&group=bills") == (family[1:3], None)
    first, cursor = children("?limit=3")
    assert first == family[:3]
    assert children(f"?limit=3&cursor={cursor}") == (family[3:], None)
    [one] = api.get("/runs/ada-1/children?state=completed").json()["results"]
    assert (one["location"], one["group"], one["run"]["parent"]) == ("bills", None, "ada-1")
    assert children("?group=nothing") == ([], None)
    problem(api.get("/runs/ada-1/children?cursor=odd"), 400, "invalid-cursor")
    assert children(f"?cursor={cursor_of(2, chr(0))}") == (family[2:], None)
    problem(api.get("/runs/nothing/children"), 404, "run-not-found")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_child_is_lost_or_repeated_where_a_page_ends_among_children_of_one_position(
    api: Api, family: list[str], limit: int
) -> None:
    Child.objects.filter(run__in=family[1:]).update(position=1)
    Child.objects.filter(run=family[1]).update(location="again")  # PostgreSQL stores the row anew, behind the others
    found = [page["results"] for page in pages(api, f"/runs/ada-1/children?limit={limit}")]
    assert [each["run"]["id"] for page in found for each in page] == family


def test_a_run_has_its_parents_and_the_numbers_of_its_children(api: Api, family: list[str]) -> None:
    parent, child = api.get("/runs/ada-1").json(), api.get(f"/runs/{family[1]}").json()
    assert parent["parents"] == []
    assert parent["children"] == {
        "total": 4,
        "is_capped": False,
        "states": {"sleeping": 1, "completed": 1, "failed": 2},
        "groups": [
            {"group": None, "states": {"completed": 1}},
            {"group": "bills", "states": {"failed": 2, "sleeping": 1}},
        ],
    }
    assert child["parents"] == [{"id": "ada-1", "workflow": "parent", "state": "sleeping"}]
    assert child["children"]["total"] == 0


def test_a_run_names_the_schedule_that_has_started_it(api: Api, family: list[str]) -> None:
    now = timezone.now()
    schedule = Schedule.objects.create(name="nightly", workflow="parent", rule="every 6 hours")
    Tick.objects.create(schedule=schedule, number=1, moment=now, outcome="started", run_id="ada-1", decided_at=now)
    found = api.get("/runs/ada-1").json()["schedule"]
    assert (found["name"], found["kind"]) == ("nightly", "tick")
    assert api.get(f"/runs/{family[0]}").json()["schedule"] is None


def test_reading_children_needs_the_permission_to_see_runs(make_api: MakeApi, family: list[str]) -> None:
    problem(make_api("operate_run").get("/runs/ada-1/children"), 403, "permission-denied")
    problem(Api(None).get("/runs/ada-1/children"), 401, "not-authenticated")


def test_a_child_that_a_user_may_not_see_is_neither_listed_nor_counted(make_api: MakeApi, family: list[str]) -> None:
    ada = make_api(*ALL, name="ada")
    Run.objects.create(id="bob-1", workflow="parent", queue="q", input="{}", created_at=timezone.now())
    Run.objects.filter(pk="ada-1").update(parent_id="bob-1")
    hidden = Run.objects.create(
        id="bob-1:bill", workflow="child", queue="q", input="{}", created_at=timezone.now(), parent_id="ada-1"
    )
    Child.objects.create(run=hidden, parent_id="ada-1", location="bills", when_parent_ends="cancel", position=9)
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        detail = ada.get("/runs/ada-1").json()
        assert (detail["children"]["total"], detail["children"]["states"].get("pending")) == (4, None)
        assert (detail["parent"], detail["parents"]) == (None, [])
        listed = ada.get("/runs/ada-1/children?limit=200").json()["results"]
        assert [each["run"]["id"] for each in listed] == family
        problem(ada.get("/runs/bob-1/children"), 404, "run-not-found")
        refused = ada.post("/bulks", {"verb": "recover", "children_of": "ada-1"})
        assert refused.status_code == 403
    assert ada.get("/runs/ada-1").json()["children"]["states"]["pending"] == 1


def test_the_failed_children_of_a_run_are_recovered_as_one_bulk(api: Api, make_api: MakeApi, family: list[str]) -> None:
    body = {"verb": "recover", "children_of": "ada-1", "reason": "the bank is back"}
    problem(make_api("view_run").post("/bulks", body), 403, "permission-denied")
    problem(api.post("/bulks", {**body, "verb": "cancel"}), 400, "invalid-request")
    problem(api.post("/bulks", {**body, "ids": ["ada-1"]}), 400, "invalid-request")
    problem(api.post("/bulks", {"verb": "recover", "ids": ["a"], "group": "bills"}), 400, "invalid-request")
    problem(api.post("/bulks", {**body, "children_of": "nothing"}), 404, "run-not-found")
    problem(api.post("/bulks", {**body, "expected": 3}), 409, "refused")
    answer = api.post("/bulks", {**body, "expected": 2})
    assert (answer.status_code, answer.json()["total"]) == (202, 2)
    bulk = get_run(answer.json()["id"])
    pass_once(bulk)
    assert set(Run.objects.filter(pk__in=family[1:3]).values_list("state", flat=True)) == {"pending"}


def test_an_entry_and_what_runs_now_have_what_a_step_has_saved(api: Api, make_api: MakeApi) -> None:
    run = saving.using(id="import").start()
    pass_once(run)
    now = timezone.now()
    row = Run.objects.get(pk="import")
    Run.objects.filter(pk="import").update(state="running", lease_expires_at=now + timedelta(hours=1), worker="w")
    Activity.objects.create(
        run_id="import", location="read", attempt=2, kind="step", fence=row.fence, worker="w", began_at=now, timeout=60
    )
    assert api.get("/runs/import/entries/read").json()["saved"] == {"row": 500}
    assert [each["saved"] for each in api.get("/runs/import/running").json()["results"]] == [{"row": 500}]
    viewer = make_api("view_run")
    assert viewer.get("/runs/import/entries/read").json()["saved"] is None
    assert [each["saved"] for each in viewer.get("/runs/import/running").json()["results"]] == [None]
    assert [each["saved"] for each in api.get("/running").json()["results"]] == [None]


def save_half() -> None:
    current_step().save({"row": 500})
    raise RetryLater("1 hour")


@workflow(name="tests.api.saving")
def saving(ctx: Context) -> None:
    ctx.step("read", save_half)


def charged(number: int) -> int:
    if number == 1:
        raise CriticalError("the card has expired")
    return number


@workflow(name="tests.api.charging")
def charging(ctx: Context, number: int) -> int:
    return ctx.step("charge", charged, number)


@workflow(name="tests.api.night")
def night(ctx: Context) -> int:
    bills = ctx.map("bills", charging, [(number,) for number in range(3)], on_failure="finish")
    return ctx.step("report", int, len(bills.failed))


def test_a_completed_parent_with_a_failed_child(api: Api) -> None:
    run = night.using(id="ada-1").start()
    pass_once(run)
    for number in range(3):
        pass_once(get_run(f"ada-1:bills:{number}"))
    pass_once(run)
    said = "1 of its 3 children has failed; its output stays as it is: python manage.py durable recover --children-of ada-1"
    assert said in api.get("/runs/ada-1").json()["explanation"]["detail"]
    refused = problem(api.post("/runs/ada-1/recover", {}), 409, "invalid-transition")
    assert "`durable recover --children-of ada-1`" in refused["detail"]
    assert "a bulk over REST that has children_of" in refused["detail"]
    assert "restart" not in refused["detail"]
    plan = api.get("/runs/ada-1/replay-plan?location=bills").json()
    assert plan["starts"] == [{"location": "bills", "workflow": "tests.api.charging", "number": 3}]
    assert (plan["counts"]["starts"], plan["counts"]["started_children"]) == (1, 3)
    assert "3 children" in plan["notes"][0]
    assert api.get("/runs/ada-1/replay-plan?location=report").json()["starts"] == []


@workflow(name="tests.api.stopped")
def stopped(ctx: Context) -> int:
    ctx.map("bills", charging, [(number,) for number in range(3)], on_failure="stop")
    return ctx.step("report", int)


@pytest.fixture
def failures(api: Api) -> list[str]:
    """Two runs that have failed in their maps."""
    found = ["ada-1", "ada-2"]
    for run_id in found:
        run = stopped.using(id=run_id).start()
        pass_once(run)
        for number in range(2):
            pass_once(get_run(f"{run_id}:bills:{number}"))
        pass_once(run)
        assert Run.objects.get(pk=run_id).state == "failed"
    return found


def test_a_bulk_is_planned_with_the_children_that_it_starts_again(api: Api, failures: list[str]) -> None:
    note = (
        '6 children of "tests.api.charging" are started again, as new runs with new idempotency keys: what those before did '
        "stays, and is done again"
    )
    for runs in ({"ids": failures}, {"filter": {"workflow": "tests.api.stopped"}}):
        plan = api.post("/bulk-plan", {"verb": "replay", **runs}).json()
        assert (plan["count"], plan["is_capped"], plan["left_alone"]) == (2, False, [])
        assert plan["by_workflow"] == [{"name": "tests.api.stopped", "number": 2}]
        assert plan["starts"] == {
            "looked_at": 2,
            "parents": 2,
            "children": 6,
            "is_partial": False,
            "workflows": [{"name": "tests.api.charging", "number": 6}],
            "note": note,
        }
    assert not Run.objects.filter(replay_of__isnull=False).exists(), "planning did it"
    done = api.post("/bulks", {"verb": "replay", "ids": failures, "expected": plan["count"], "id": "b1"}).json()
    assert done["started_children"] == 6
    assert api.get("/bulks/b1").json()["started_children"] == 6


def test_plans_of_other_verbs(api: Api, failures: list[str]) -> None:
    plan = api.post("/bulk-plan", {"verb": "recover", "ids": [*failures, "ada-1:bills:0"]}).json()
    assert (plan["count"], plan["left_alone"], plan["starts"]) == (2, [{"name": "completed", "number": 1}], None)
    plan = api.post("/bulk-plan", {"verb": "recover", "children_of": "ada-1"}).json()
    assert plan["count"] == 2, "the failed child, and the parent"
    assert api.post("/bulks", {"verb": "recover", "ids": failures}).json()["started_children"] is None


def test_planning_a_bulk_needs_what_the_bulk_needs(make_api: MakeApi, failures: list[str]) -> None:
    body = {"verb": "replay", "ids": failures}
    for rights in (["view_run"], ["replay_run"]):
        problem(make_api(*rights, name=rights[0]).post("/bulk-plan", body), 403, "permission-denied")
    able = make_api("view_run", "replay_run", name="able")
    assert able.post("/bulk-plan", body).status_code == 200
    problem(able.post("/bulk-plan", {"verb": "replay"}), 400, "invalid-request")
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        ada = make_api("view_run", "replay_run", name="ada")
        assert ada.post("/bulk-plan", body).json()["starts"]["children"] == 6
        problem(able.post("/bulk-plan", body), 404, "run-not-found")
        problem(ada.post("/bulk-plan", {"verb": "replay", "filter": {}}), 403, "permission-denied")
