"""A run that the code does not fit has a badge of its own, names the builds, and is not recovered by the same build."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client

from durable import Context, get_run, workflow
from durable.conf import conf
from durable.models import Build, Failure, Run, WorkerProcess
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db

CODE = ["old"]


@workflow(name="tests.misfits.order")
def order(ctx: Context) -> None:
    if CODE == ["new"]:
        ctx.step("another", str)
    ctx.queue.next("go")


@pytest.fixture(autouse=True)
def _old_code() -> None:
    CODE[:] = ["old"]


def a_worker(stage: Stage, build: str, *, began: timedelta = timedelta(hours=-1)) -> None:
    WorkerProcess.objects.create(
        name=f"web-1:7:{build}",
        host="web-1",
        pid=7,
        queues=["default"],
        slots=1,
        build=build,
        last_seen_at=stage.now,
        started_at=stage.now + began,
    )


def buttons(client: Client, run_id: str) -> list[str]:
    page = text_of(client.get(url("change", run_id)))
    return re.findall(r'<a class="button[^"]*" href="[^"]*/act/(\w+)/"', page)


def diverging(stage: Stage) -> Run:
    """A run that was recorded with the build a1 and meets b2."""
    Build.objects.create(name="a1", first_seen_at=stage.now - timedelta(days=1))
    stage.start(order, id="order-1")
    stage.advance(minutes=1)
    Build.objects.create(name="b2", first_seen_at=stage.now)
    a_worker(stage, "b2")
    CODE[:] = ["new"]
    get_run("order-1").send("go")
    return stage.run("order-1")


def stopped(stage: Stage) -> Run:
    diverging(stage)
    stage.advance(seconds=conf.DIVERGENCE_GRACE + 60)
    run = stage.run("order-1")
    assert run.state == "failed"
    Failure.objects.update(build="b2", failed_at=stage.now)
    WorkerProcess.objects.update(last_seen_at=stage.now)
    return run


def test_a_run_that_waits_for_other_code_has_a_badge_of_its_own(stage: Stage, operator: Client) -> None:
    assert diverging(stage).state == "sleeping"
    badge = '<span class="durable-state durable-diverging">code does not fit</span>'
    page = text_of(operator.get(url("change", "order-1")))
    assert badge in page
    assert badge in text_of(operator.get(url("changelist")))
    assert "Recorded with the build a1; the build b2 does not fit it" in page
    assert "durable replay-check --workflow tests.misfits.order</code>" in page


def test_a_run_that_has_diverged_is_not_recovered_by_the_same_build(stage: Stage, operator: Client) -> None:
    stopped(stage)
    page = text_of(operator.get(url("change", "order-1")))
    assert "Recorded with the build a1; the build b2 does not fit it" in page
    assert "No worker of its queue has another build yet" in page
    assert "durable replay-check --workflow tests.misfits.order</code>" in page
    assert "recover" not in buttons(operator, "order-1")
    a_worker(stage, "c3")
    assert buttons(operator, "order-1")[0] == "recover"
    assert "Workers of its queue now have c3" in text_of(operator.get(url("change", "order-1")))


def test_without_names_of_builds_a_worker_that_began_later_may_have_other_code(stage: Stage, operator: Client) -> None:
    stopped(stage)
    Failure.objects.update(build="")
    WorkerProcess.objects.update(build="")
    assert "recover" not in buttons(operator, "order-1")
    a_worker(stage, "", began=timedelta(seconds=1))
    assert buttons(operator, "order-1")[0] == "recover"


def test_its_cause_offers_a_check_and_no_recovery_by_the_same_build(stage: Stage, operator: Client) -> None:
    stopped(stage)

    def row() -> str:
        shown = unescape(operator.get(url("overview")).content.decode())
        return shown.partition('class="durable-cause ')[2].partition("</li>")[0]

    assert "durable replay-check --workflow tests.misfits.order</code>" in row()
    assert "Recover this run" not in row()
    assert "No worker of its queue has another build yet" in row()
    a_worker(stage, "c3")
    assert "Recover this run" in row()


def test_a_run_that_fails_otherwise_is_recovered_as_ever(
    stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(flows.SWITCH, "broken", True)
    stage.start(flows.switched, 1, id="failed")
    a_worker(stage, "b2")
    Failure.objects.update(build="b2")
    assert buttons(operator, "failed")[0] == "recover"
