"""What an export, a history and REST have of children, of the schedule of a run, and of what its steps have saved."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from durable import Context, CriticalError, RetryLater, Schedule, current_step, get_run, runtime, workflow
from durable.inspection.export import exported
from durable.models import Run
from durable.operations.schedules.verbs import run_now
from tests.support.stores import passed

pytestmark = pytest.mark.django_db(transaction=True)


def billed(number: int) -> str:
    if number == 1:
        raise CriticalError("card SECRET4711 refused")
    return f"bill {number}"


@workflow(name="exported.bill")
def bill(ctx: Context, number: int) -> str:
    return ctx.step("charge", billed, number)


@workflow(name="exported.night")
def night(ctx: Context, on_failure: Any) -> int:
    ctx.child("one", bill, 7)
    return len(ctx.map("bills", bill, [(number,) for number in range(3)], at_once=3, on_failure=on_failure).outputs)


def save_half() -> None:
    current_step().save({"row": 500})
    raise RetryLater("1 hour")


@workflow(name="exported.saving")
def saving(ctx: Context) -> None:
    ctx.step("import", save_half)


def one_night(run_id: str, on_failure: str = "finish") -> Run:
    at = runtime.current()
    night.using(id=run_id).start(on_failure)
    for each in ("", ":one", "", *(f":bills:{number}" for number in range(3)), ""):
        if get_run(f"{run_id}{each}").state in ("pending", "sleeping"):
            passed(at, f"{run_id}{each}")
    return Run.objects.get(pk=run_id)


def test_an_export_says_how_many_children_there_are_and_which_operation_has_started_which() -> None:
    data = exported(one_night("n"), with_payloads=False)
    assert data["run"]["state"] == "completed"
    assert data["run"]["children"] == {
        "total": 4,
        "is_capped": False,
        "states": {"completed": 3, "failed": 1},
        "groups": [
            {"group": None, "states": {"completed": 1}},
            {"group": "bills", "states": {"completed": 2, "failed": 1}},
        ],
    }
    one, bills = data["entries"]
    assert (one["data"]["child"], one["data"]["workflow"]) == ("n:one", "exported.bill")
    assert (bills["data"]["group"], bills["data"]["size"], bills["data"]["at_once"]) == ("n:bills", 3, 3)
    assert bills["data"]["ended"] == {"completed": 2, "failed": 1, "cancelled": 0}
    child = exported(Run.objects.get(pk="n:one"), with_payloads=False)["run"]
    assert (child["parent"], child["children"]["total"], child["schedule"]) == ("n", 0, None)


def test_the_history_of_a_map_has_the_outputs() -> None:
    one_night("n")
    [found] = [each for each in get_run("n").history() if each.kind == "map"]
    assert found.data["output"]["outputs"] == ["bill 0", "bill 2"]
    assert found.data["output"]["failed"] == [[1, "CriticalError", "card SECRET4711 refused"]]


def test_an_export_names_the_schedule_and_the_moment() -> None:
    Schedule.objects.create(name="nightly", workflow="exported.night", args=["finish"], rule="30 2 * * *")
    tick = run_now("nightly")
    data = exported(Run.objects.get(pk=tick.run_id), with_payloads=False)
    assert data["run"]["schedule"] == {"name": "nightly", "moment": tick.moment.isoformat(), "kind": "run_now"}


def test_an_export_has_what_a_step_has_saved() -> None:
    run = saving.using(id="s").start()
    passed(runtime.current(), run.id)
    row = Run.objects.get(pk="s")
    assert exported(row, with_payloads=True)["saves"] == [{"location": "import", "attempt": 1, "saved": {"row": 500}}]
    assert exported(row, with_payloads=False)["saves"] == [{"location": "import", "attempt": 1}]


def test_the_errors_of_the_children_of_a_failed_map_are_redacted_everywhere(settings: Settings, client: Client) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide_cards"}
    row = one_night("n", "stop")
    assert row.state == "failed"
    for with_payloads in (False, True):
        data = exported(row, with_payloads=with_payloads)
        assert data["entries"][1]["data"]["failure"]["first"] == [
            [1, "n:bills:1", "CriticalError", "card (hidden) refused"]
        ]
        assert "SECRET" not in str(data)
    user = User.objects.create_user("ada")
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable"))
    client.force_login(user)
    answer = client.get("/api/runs/n/entries")
    assert answer.status_code == 200, answer.content
    assert "(hidden)" in answer.content.decode()
    assert "SECRET" not in answer.content.decode()
