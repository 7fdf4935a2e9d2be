"""Every surface shows whether a mistake in the code stopped a run, or the run failed, or it diverged."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from durable import RunFailedError, get_run
from durable.inspection.causes import failed_runs
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.explain_states import explain, explain_fully
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.models import Run
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture


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
        assert (
            said.detail
            == "Nothing was undone because of it. Fix the code, deploy it, then recover the run: it goes on where it was"
        )
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
    page = operator.get(reverse("admin:durable_run_change", args=["undone"])).content.decode()
    assert "compensate 1" in page
    step = reverse("admin:durable_run_step", args=["undone"])
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
