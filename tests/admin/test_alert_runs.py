"""Runs of durable's own, which send alerts and do bulks, in lists of every surface.

They are out of the way unless they failed or are asked for. The admin counts them where they are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings as project
from django.test import Client

from durable import Workflow, get_run, workflow
from durable.alerts.delivery import send_alert
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.models import OperatorAction, Run
from durable.operations import bulk
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import printed, rows_of, text_of, url

pytestmark = pytest.mark.django_db

ALERT: dict[str, Any] = {"kind": "cause", "key": "cause", "title": "Runs fail"}


def note(**_alert: Any) -> None:
    pass


@pytest.fixture
def alerts(stage: Stage, settings: Any) -> Stage:
    """A project with alerts: one run of its own, two alerts that are not sent yet, and one that could not be sent."""
    targets = [{"type": "call", "function": f"{__name__}.note"}]
    settings.DURABLE = {**project.DURABLE, "ALERTS": {"targets": targets}}
    stage.start(flows.nap, id="alone")
    for name in ("alert-1", "alert-2"):
        send_alert.using(id=name).start("none", ALERT)
    stage.start(send_alert, "none", {"no": "alert"}, id="alert-3", settle=False)
    Run.objects.filter(pk="alert-3").update(state="failed", finished_at=stage.now, wake_at=None)
    return stage


def ids_of(response: Any) -> set[str]:
    return set(rows_of(response))


@pytest.mark.parametrize("query", ["", "?state=pending&state=sleeping&state=failed", "?queue=default", "?sort=wake_at"])
def test_the_list_leaves_them_out_and_says_how_many(alerts: Stage, operator: Client, query: str) -> None:
    page = operator.get(url("changelist") + query)
    assert ids_of(page) - {"alert-3"} == {"alone"}
    assert "2 alerts, bulks and runs of quiet workflows match and are not listed." in text_of(page)
    everyone = operator.get(url("changelist") + page.context["with_alerts_query"])
    assert ids_of(everyone) >= {"alone", "alert-1", "alert-2"}
    assert "not listed" not in text_of(everyone)


def test_a_filter_that_names_them_finds_them(alerts: Stage, operator: Client) -> None:
    for query in ("?workflow=durable.alert", "?q=alert-", "?alerts=true"):
        page = operator.get(url("changelist") + query)
        assert ids_of(page) >= {"alert-1", "alert-2", "alert-3"}, query
        assert "not listed" not in text_of(page), query


# -- one rule for all surfaces


def in_the_admin(client: Client, **conditions: str) -> set[str]:
    return ids_of(client.get(url("changelist"), conditions))


def over_rest(client: Client, **conditions: str) -> set[str]:
    return {run["id"] for run in client.get("/api/runs", conditions).json()["results"]}


def in_the_shell(_client: Client, **conditions: str) -> set[str]:
    flags = [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in conditions.items()]
    return set(printed("list", "-o", "ids", *flags).split())


EVERYONE = {"alone", "alert-1", "alert-2", "alert-3"}
ALERTS = EVERYONE - {"alone"}
SURFACES = pytest.mark.parametrize("listed", [in_the_admin, over_rest, in_the_shell])


@SURFACES
@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({}, {"alone", "alert-3"}),
        ({"queue": "default"}, {"alone", "alert-3"}),
        ({"state": "pending"}, set()),
        ({"state": "failed"}, {"alert-3"}),
        ({"attention": "true"}, {"alert-3"}),
        ({"workflow": "durable.alert"}, ALERTS),
        ({"alerts": "true"}, EVERYONE),
        ({"alerts": "true", "state": "pending"}, {"alert-1", "alert-2"}),
    ],
    ids=["all", "of a queue", "pending", "failed", "need attention", "of their workflow", "alerts", "pending alerts"],
)
def test_each_surface_lists_the_same(
    alerts: Stage, operator: Client, listed: Callable[..., set[str]], conditions: dict[str, str], found: set[str]
) -> None:
    assert listed(operator, **conditions) == found


@SURFACES
def test_a_project_without_alerts_leaves_its_bulks_out_too(
    alerts: Stage, operator: Client, listed: Callable[..., set[str]], settings: Any
) -> None:
    settings.DURABLE = {**settings.DURABLE, "ALERTS": None}
    bulk_id = bulk.apply("pause", ["alone"], in_background=True).bulk_id
    assert listed(operator) == {"alone", "alert-3"}
    assert listed(operator, alerts="true") == {*EVERYONE, bulk_id}
    assert listed(operator, workflow="durable.bulk") == {bulk_id}


@pytest.fixture
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> Workflow[..., Any]:
    """A quiet workflow; for this test alone, because lists of runs are read in another way where there is one."""
    monkeypatch.setattr(flows.broken_branch, "is_quiet", Workflow(flows.broken_branch.function, quiet=True).is_quiet)
    monkeypatch.setattr(flows.quick, "is_quiet", Workflow(flows.quick.function, quiet=True).is_quiet)
    return flows.quick


@SURFACES
def test_runs_of_a_quiet_workflow_are_left_out_as_alerts_are(
    stage: Stage, operator: Client, heartbeat: Workflow[..., Any], listed: Callable[..., set[str]]
) -> None:
    stage.start(flows.nap, id="alone")
    stage.start(heartbeat, id="beat-1")
    stage.start(flows.broken_branch, id="beat-2")
    assert get_run("beat-2").state == "failed"
    assert listed(operator) == {"alone", "beat-2"}
    assert listed(operator, state="completed") == set()
    assert listed(operator, alerts="true") == {"alone", "beat-1", "beat-2"}
    assert listed(operator, workflow="tests.quick") == {"beat-1"}


def test_the_list_says_how_many_runs_of_quiet_workflows_it_leaves_out(
    stage: Stage, operator: Client, heartbeat: Workflow[..., Any]
) -> None:
    stage.start(flows.nap, id="alone")
    for number in range(2):
        stage.start(heartbeat, id=f"beat-{number}")
    page = operator.get(url("changelist"))
    assert "2 alerts, bulks and runs of quiet workflows match and are not listed." in text_of(page)
    assert ids_of(operator.get(url("changelist") + page.context["with_alerts_query"])) == {"alone", "beat-0", "beat-1"}


@pytest.mark.parametrize("quiet", [1, "yes", None])
def test_quiet_is_true_or_false(quiet: Any) -> None:
    with pytest.raises(TypeError, match="quiet is True or False, not"):
        workflow(quiet=quiet)(flows.quick.function)


@pytest.mark.parametrize("listed", [over_rest, in_the_shell])
def test_an_id_leads_to_its_alert(alerts: Stage, operator: Client, listed: Callable[..., set[str]]) -> None:
    name = "id_prefix" if listed is over_rest else "id-prefix"
    assert listed(operator, **{name: "alert-1"}) == {"alert-1"}


def test_a_bulk_of_all_has_the_runs_that_are_listed(alerts: Stage, operator: Client) -> None:
    page = operator.get(url("changelist") + "?queue=default")
    listed = len(ids_of(page))
    assert f"all {listed} that the filter finds" in text_of(page)
    form = {"verb": "pause", "all": "on", "filter": page.context["filter_query"]}
    shown = re.sub(r"<[^>]+>", "", text_of(operator.post(url("bulk"), form)))
    assert "Pause 1 run." in shown


def test_a_recorded_bulk_leaves_them_alone(alerts: Stage) -> None:
    bulk.apply("pause", Filtered(RunCriteria(queue="default", hides_alerts=True)), as_id="b" * 8)
    alerts.settle("b" * 8)
    assert get_run("alone").state == "paused"
    assert {get_run(each).state for each in ("alert-1", "alert-2")} == {"pending"}
    assert set(OperatorAction.objects.filter(bulk_id="b" * 8).values_list("run_id", flat=True)) == {"alone"}


def test_a_number_leads_to_as_many_runs(alerts: Stage, operator: Client) -> None:
    shown = operator.get(url("overview"))
    numbers = {state: (count.number, query) for state, count, query in shown.context["states"]}
    for state, (number, query) in numbers.items():
        assert len(ids_of(operator.get(url("changelist") + query))) == number, state
    assert numbers["pending"][0] == 2


def test_a_project_without_runs_of_durable_hears_nothing_of_them(stage: Stage, operator: Client) -> None:
    stage.start(flows.nap, id="alone")
    assert "not listed" not in text_of(operator.get(url("changelist")))
