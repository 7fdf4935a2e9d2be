"""Every surface shows whether a mistake in the code stopped a run, or the run failed, or it diverged."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import translation

from durable import Context, get_run, workflow
from durable.conf import conf
from durable.core.summary import Summary
from durable.errors import RunFailedError
from durable.inspection.causes import failed_runs
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.findings import collect_findings
from durable.inspection.wording import told_divergence
from durable.inspection.workers import worker_overview
from durable.models import Build, Failure, Run, WorkerProcess
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture
from tests.support import worker

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _broken() -> None:
    flows.SWITCH["broken"] = True


def met(stage: Stage) -> Run:
    """A run that a mistake holds up, within the grace period."""
    return stage.start(flows.mistaken, {"id": 7}, id="mistaken")


def stopped(stage: Stage) -> Run:
    """One that it has stopped."""
    met(stage)
    Run.objects.filter(pk="mistaken").update(diverged_at=stage.now - timedelta(hours=1), wake_at=stage.now)
    run = stage.run("mistaken")
    assert run.state == "failed"
    return run


def kinds(stage: Stage) -> dict[str, Any]:
    return {finding.kind: finding for finding in collect_findings(stage.now, worker_overview())}


def command(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("durable", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_within_the_grace_period_it_is_said(stage: Stage) -> None:
    run = met(stage)
    assert run.state == "sleeping"
    said = explain(run, stage.now)
    assert said.headline.startswith("A mistake in the code of the workers for ")
    assert "KeyError: 'missing' (tests.admin.flows.mistaken, line " in said.detail
    assert "Nothing is undone meanwhile" in said.detail
    assert said.needs_attention
    assert kinds(stage)["mistake"].runs == [("mistaken", "tests.mistaken")]
    assert "diverged" not in kinds(stage)


def test_a_stopped_run_is_said_to_be_one(stage: Stage) -> None:
    run = stopped(stage)
    for said in (explain(run, stage.now), explain_fully(run, stage.now)):
        assert said.headline.startswith("Stopped by a mistake in the code: KeyError: 'missing' (tests.admin.flows.")
        advice = "Fix the code, deploy it, then recover the run: it goes on where it was"
        assert said.detail == f"Nothing was undone because of it. {advice}"
        assert said.remedies[0] == "recover"
    assert kinds(stage)["mistake"].runs == [("mistaken", "tests.mistaken")]
    assert "failed" not in kinds(stage)
    assert [each.is_mistake for each in failed_runs()] == [True]
    with pytest.raises(RunFailedError, match="was stopped: KeyError: 'missing': a mistake in the code") as caught:
        get_run("mistaken").result(timeout=1)
    assert caught.value.is_mistake
    assert get_run("mistaken").info().is_mistake


def test_a_failed_run_is_none(stage: Stage) -> None:
    run = stage.start(flows.switched, id="failed")
    assert run.state == "failed"
    assert explain(run, stage.now).headline.startswith('Failed at "charge"')
    assert "mistake" not in kinds(stage)
    assert [each.is_mistake for each in failed_runs()] == [False]
    with pytest.raises(RunFailedError) as caught:
        get_run("failed").result(timeout=1)
    assert not caught.value.is_mistake
    assert not get_run("failed").info().is_mistake


def test_after_the_mend_it_goes_on_and_nothing_is_left_to_say(stage: Stage) -> None:
    stopped(stage)
    flows.SWITCH["broken"] = False
    get_run("mistaken").recover()
    assert stage.settle("mistaken").state == "completed"
    assert get_run("mistaken").output == 7
    assert "mistake" not in kinds(stage)


def test_the_command_line_says_it(stage: Stage) -> None:
    stopped(stage)
    assert "Stopped by a mistake in the code: KeyError: 'missing'" in command("why", "mistaken")
    assert "Stopped by a mistake in the code" in command("list")
    assert json.loads(command("list", "-o", "json").splitlines()[0])["is_mistake"] is True
    assert "was stopped by a mistake in the code: KeyError: 'missing'" in command("result", "mistaken")
    assert "Runs stopped by a mistake in the code" in command("doctor")


def test_the_admin_says_it(stage: Stage, operator: Client) -> None:
    stopped(stage)
    for name, args in (("overview", []), ("changelist", []), ("change", ["mistaken"])):
        page = operator.get(reverse(f"admin:durable_run_{name}", args=args)).content.decode()
        assert "topped by a mistake in the code" in page, name


def test_rest_says_it(stage: Stage, make_api: MakeApi) -> None:  # noqa: F811  # the fixture
    api = make_api(*ALL)
    stage.start(flows.switched, id="failed")
    stopped(stage)
    run = api.get("/runs/mistaken").json()
    assert (run["state"], run["is_mistake"]) == ("failed", True)
    assert run["error"]["type"] == "KeyError"
    assert run["explanation"]["headline"].startswith("Stopped by a mistake in the code")
    assert {each["id"]: each["is_mistake"] for each in api.get("/runs").json()["results"]} == {
        "mistaken": True,
        "failed": False,
    }


def test_an_error_against_the_contract_is_said_to_undo_nothing(stage: Stage) -> None:
    run = stage.start(flows.forgetful, id="forgetful")
    assert run.state == "failed"
    said = explain_fully(run, stage.now)
    assert said.headline.startswith("Stopped by a mistake in the code: RollbackCheckpointError: ")
    assert said.detail.startswith("Nothing was undone because of it.")
    assert said.remedies[0] == "recover"
    assert kinds(stage)["mistake"].runs == [("forgetful", "tests.forgetful")]
    assert "failed" not in kinds(stage)
    assert "Nothing was undone because of it" in command("why", "forgetful")


# -- a compensation that the code asked for


def test_a_mistake_after_it_does_not_hide_what_was_undone(stage: Stage) -> None:
    stage.start(flows.undoing_then_mistaken, id="mistaken")
    Run.objects.filter(pk="mistaken").update(diverged_at=stage.now - timedelta(hours=1), wake_at=stage.now)
    run = stage.run("mistaken")
    assert run.state == "failed"
    said = explain_fully(run, stage.now)
    assert said.detail.startswith(
        "1 step was undone by ctx.compensate before, and nothing was undone because of the mistake. Fix the code"
    )


def test_its_reason_is_shown(stage: Stage, operator: Client) -> None:
    run = stage.start(flows.undoing, id="undone")
    assert run.state == "completed"
    detail = read_entry_detail(run, "compensate~0", with_payloads=False)
    assert detail is not None
    assert list(detail.facts) == [("reason", "rejected by the shopkeeper"), ("handlers", "1")]
    page = operator.get(url("change", "undone")).content.decode()
    assert "compensate 1" in page
    step = url("step", "undone")
    assert f'{step}?at=compensate~0"' in page
    assert "rejected by the shopkeeper" in operator.get(step, {"at": "compensate~0"}).content.decode()
    assert "compensate~0" in command("show", "undone")


def test_a_handler_that_stopped_it_needs_a_person(stage: Stage) -> None:
    flows.SWITCH["rollback_broken"] = True
    run = stage.start(flows.undoing, id="stuck")
    assert run.state == "failed"
    said = explain(run, stage.now)
    assert said.headline.startswith("Compensation has stopped")
    assert 'the rollback handler of "charge" failed: CriticalError: the bank is closed' in said.headline
    assert said.remedies == ("recover",)
    assert kinds(stage)["rollback_failed"].runs == [("stuck", "tests.undoing")]
    flows.SWITCH["rollback_broken"] = False
    get_run("stuck").recover()
    assert stage.settle("stuck").output == '"rejected"'


# -- A run that the code does not fit has a badge of its own, names the builds, and is not recovered by the same build


BUILD = ["old"]


@workflow(name="tests.misfits.order")
def order(ctx: Context) -> None:
    if BUILD == ["new"]:
        ctx.step("another", str)
    ctx.queue.next("go")


@pytest.fixture(autouse=True)
def _old_code() -> None:
    BUILD[:] = ["old"]


def a_worker(stage: Stage, build: str, *, began: timedelta = timedelta(hours=-1)) -> None:
    times = {"last_seen_at": stage.now, "started_at": stage.now + began}
    worker.a_worker(f"web-1:7:{build}", queues=["default"], build=build, **times)


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
    BUILD[:] = ["new"]
    get_run("order-1").send("go")
    return stage.run("order-1")


def stopped_by_new_code(stage: Stage) -> Run:
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
    stopped_by_new_code(stage)
    page = text_of(operator.get(url("change", "order-1")))
    assert "Recorded with the build a1; the build b2 does not fit it" in page
    assert "No worker of its queue has another build yet" in page
    assert "durable replay-check --workflow tests.misfits.order</code>" in page
    assert "recover" not in buttons(operator, "order-1")
    a_worker(stage, "c3")
    assert buttons(operator, "order-1")[0] == "recover"
    assert "Workers of its queue now have c3" in text_of(operator.get(url("change", "order-1")))


def test_without_names_of_builds_a_worker_that_began_later_may_have_other_code(stage: Stage, operator: Client) -> None:
    stopped_by_new_code(stage)
    Failure.objects.update(build="")
    WorkerProcess.objects.update(build="")
    assert "recover" not in buttons(operator, "order-1")
    a_worker(stage, "", began=timedelta(seconds=1))
    assert buttons(operator, "order-1")[0] == "recover"


def test_its_cause_offers_a_check_and_no_recovery_by_the_same_build(stage: Stage, operator: Client) -> None:
    stopped_by_new_code(stage)

    def row() -> str:
        shown = unescape(operator.get(url("overview")).content.decode())
        return shown.partition('class="durable-cause ')[2].partition("</li>")[0]

    assert "durable replay-check --workflow tests.misfits.order</code>" in row()
    assert "Recover this run" not in row()
    assert "No worker of its queue has another build yet" in row()
    a_worker(stage, "c3")
    assert "Recover this run" in row()


def test_a_run_that_fails_otherwise_is_recovered_as_ever(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="failed")
    a_worker(stage, "b2")
    Failure.objects.update(build="b2")
    assert buttons(operator, "failed")[0] == "recover"


# -- where code and history part, told in the language of the page


def value() -> int:
    return 1


def as_recorded(ctx: Context) -> None:
    ctx.step("first", value)
    ctx.step("second", value)
    ctx.sleep("a night", "8 hours")


def with_another_step(ctx: Context) -> None:
    ctx.step("first", value)
    ctx.step("check, and: wait", value)
    as_recorded(ctx)


def without_both(ctx: Context) -> None:
    ctx.sleep("a night", "8 hours")


def without_an_end(ctx: Context) -> None:
    ctx.step("first", value)


def with_another_kind(ctx: Context) -> None:
    ctx.sleep("first", "8 hours")


CODE: dict[str, Callable[[Context], None]] = {"now": as_recorded}

#: The code that comes later, and what is told of it in German.
LATER = {
    with_another_step: (
        "in der Wurzel: Der Code kommt zum Eintrag „check, and: wait“ (Schritt), der nicht in der Historie steht; sie geht "
        'mit "second", "a night" weiter'
    ),
    without_both: (
        "in der Wurzel: Der Code kommt zum Eintrag „a night“ (Pause), der nicht beendet ist; die Historie hat davor "
        '"first", "second"'
    ),
    without_an_end: 'in der Wurzel: Der Code ist zu Ende, doch die Historie geht mit "second", "a night" weiter',
    with_another_kind: "in der Wurzel: Erwartet wurde bei „first“: Pause; gefunden wurde: Schritt",
}
ADVICE_BEGINS = "Der Code hat sich geändert, seit diese Historie aufgezeichnet wurde"


@workflow(name="tests.parting")
def parting(ctx: Context) -> None:
    CODE["now"](ctx)


@pytest.fixture(autouse=True)
def _as_recorded() -> Iterator[None]:
    CODE["now"] = as_recorded
    yield
    CODE["now"] = as_recorded


def diverged(stage: Stage, later: Callable[[Context], None]) -> Run:
    stage.start(parting, id="run")
    CODE["now"] = later
    stage.advance(hours=9)
    return stage.run("run")


@pytest.mark.parametrize("later", LATER)
def test_a_page_tells_it_in_its_language(stage: Stage, operator: Client, later: Any) -> None:
    run = diverged(stage, later)
    english = explain_fully(run, stage.now).detail
    assert english.startswith(f"{Summary.load(run.summary).facts['error']}. If no deploy is under way")
    with translation.override("en"):  # the request leaves its language behind
        page = text_of(operator.get(url("change", "run"), headers={"Accept-Language": "de"}))
    assert LATER[later].replace('"', "&quot;") in page
    assert ADVICE_BEGINS in page
    assert "the code" not in page.partition('id="content-main"')[2].partition("Zeitachse")[0]


def test_a_failed_run_tells_it_to_its_end_too(stage: Stage) -> None:
    diverged(stage, with_another_step)
    stage.advance(seconds=conf.DIVERGENCE_GRACE + 1)
    run = stage.run("run")
    assert run.state == "failed"
    english = explain_fully(run, stage.now).detail
    assert english.startswith("HistoryDivergedError: in the root: the code comes to the step ")
    assert "branch on ctx.get_version(name, latest). Nothing was compensated" in english
    with translation.override("de"):
        german = explain_fully(run, stage.now).detail
    assert german.startswith(f"HistoryDivergedError: {LATER[with_another_step]}. {ADVICE_BEGINS}")


@pytest.mark.parametrize("text", ["", "hidden", "in the root: something else", "in a: the code ended"])
def test_any_other_text_stays(text: str) -> None:
    with translation.override("de"):
        assert told_divergence(text) == text
