"""A workflow that a migration has renamed: its pages, lists and verbs are the same under either name.

The process has looked for renames before the migration, as a web process that nobody has started again since.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from durable import Context, CriticalError, Schedule, every, runtime, workflow
from durable.core import registry
from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.inspection.runs import RunCriteria
from durable.inspection.schedules import list_schedules
from durable.inspection.selection import Filtered
from durable.inspection.workflows import list_workflows
from durable.migrations import RenameWorkflow
from durable.models import Entry, EntryMetadata, Hold, Run
from durable.operations.bulk import eligible
from durable.operations.holds import hold_starts
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, text_of, url
from tests.renames.conftest import apply, no_names_left
from tests.support.rollups import settle
from tests.support.runs import NOW, stored_runs

__all__ = ["no_names_left"]

pytestmark = [pytest.mark.django_db, pytest.mark.redis]

OLD, NEW = "renamed.bill", "renamed.invoice"


@pytest.fixture(params=[OLD, NEW], ids=["old code", "new code"])
def code(request: Any, stage: Stage) -> Iterator[str]:
    """The name under which this process has the code of the workflow."""

    def charge(order_id: int | str) -> int:
        if isinstance(order_id, str):
            raise CriticalError("declined")
        return order_id

    def bill(ctx: Context, order_id: int = 0) -> int:
        return ctx.step("charge", charge, order_id)

    stage.now = NOW + timedelta(minutes=45)
    runtime.current().store.learn_names()
    apply(RenameWorkflow(OLD, NEW, wait=0), is_known=False)
    deployed = workflow(name=request.param)(bill)
    yield request.param
    registry.registry.unregister(deployed)


def other_than(code: str) -> str:
    return NEW if code == OLD else OLD


def run_names(client: Client, address: str) -> set[str]:
    """The workflows' names of the runs that the list at this address has."""
    return {row.run.workflow for row in client.get(address).context["rows"]}


@pytest.mark.parametrize("asked", [OLD, NEW])
def test_the_page_of_either_name_is_one_page(operator: Client, stage: Stage, code: str, asked: str) -> None:
    for name, minutes in ((OLD, 20), (NEW, 21)):
        stored_runs(3, "completed", name, minutes=minutes)
        stored_runs(2, "failed", name, minutes=minutes)
        stored_runs(1, "paused", name, minutes=minutes)
        run = Run.objects.filter(workflow=name, state="completed")[0]
        entry = Entry.objects.create(run=run, location="charge", kind="step", ordinal=0)
        times = {"created_at": NOW, "last_attempt_at": NOW, "completed_at": NOW}
        EntryMetadata.objects.create(entry=entry, status="completed", attempts=1, **times)
    settle(stage.now)
    shown = operator.get(url("workflow", asked))
    page, found = unescape(text_of(shown)), shown.context
    assert (found["name"], found["other_names"]) == (code, (other_than(code),))
    assert f"its other name is <bdi>{other_than(code)}</bdi>" in page
    assert "This process does not have its code" not in page
    assert (found["stats"].sampled, found["stats"].failed.number) == (6, 4)
    assert [(each.place, each.sampled) for each in found["stats"].steps] == [("charge", 2)]
    assert [(each.state, each.count) for each in found["stats"].places] == [("paused", 2)]
    assert [(each.throughput.completed, each.throughput.failed) for each in found["charts"]] == [(6, 4), (6, 4)]
    for address in (found["runs_url"], found["failed_url"], found["places"][0][1]):
        assert run_names(operator, address) == {OLD, NEW}


def test_the_causes_of_either_names_runs_are_counted(operator: Client, stage: Stage, code: str) -> None:
    for name in (OLD, NEW):
        stage.start(registry.get(code), "no number", id=f"run of {name}")
    Run.objects.filter(pk=f"run of {OLD}").update(workflow=OLD)
    Run.objects.filter(pk=f"run of {NEW}").update(workflow=NEW)
    for name in (OLD, NEW):
        [(cause, number, _)] = operator.get(url("workflow", name)).context["causes"]
        assert (cause.place, cause.error_type, number) == ("charge", "CriticalError", 2)


def test_the_list_of_workflows_has_it_once(stage: Stage, code: str) -> None:
    for name in (OLD, NEW):
        stored_runs(2, "failed", name, minutes=20)
        stored_runs(3, "completed", name, minutes=20)
    settle(stage.now)
    hold_starts(other_than(code))
    assert set(Hold.objects.values_list("name", flat=True)) == {OLD, NEW}
    [found] = [each for each in list_workflows(stage.now, after="renamed.")[0] if each.name in (OLD, NEW)]
    assert (found.name, found.is_known, found.hold is not None) == (code, True, True)
    assert (found.completed, found.failed_today, found.failed.number) == (6, 4, 4)


def test_the_overview_tells_of_a_hold_once(operator: Client, stage: Stage, code: str) -> None:
    hold_starts(OLD)
    held = [each for each in operator.get(url("overview")).context["rows"] if "are held" in str(each.title)]
    assert len(held) == 1
    assert f'"{code}"' in str(held[0].title)


@pytest.mark.parametrize("asked", [OLD, NEW])
def test_one_is_started_held_and_released_by_either_name(log_in: Any, stage: Stage, code: str, asked: str) -> None:
    client = log_in(*OPERATOR, "hold_workflow")
    for verb, is_held in (("hold", True), ("release", False)):
        text_of(confirm(client, url("workflow_hold", asked, verb), reason="bank", follow=True))
        assert [find_hold(HoldKind.WORKFLOW, each) is not None for each in (OLD, NEW)] == [is_held, is_held]
    started = confirm(client, url("workflow_start", asked), arguments="[7]", run_id="order-7", follow=True)
    assert "It is started." in text_of(started)
    assert Run.objects.get().workflow == code


def test_a_page_without_code_is_that_of_the_newest_name(operator: Client, stage: Stage, code: str) -> None:
    stored_runs(1, "completed", OLD, minutes=20)
    for each in [each for each in registry.all() if each.name == code]:
        registry.registry.unregister(each)
    for name in (OLD, NEW):
        shown = operator.get(url("workflow", name))
        assert "This process does not have its code" in text_of(shown)
        assert shown.context["name"] == NEW


@pytest.mark.parametrize("asked", [OLD, NEW])
def test_the_list_of_runs_and_the_count_of_a_bulk_have_both_names(
    operator: Client, stage: Stage, code: str, asked: str
) -> None:
    for name in (OLD, NEW):
        stored_runs(2, "sleeping", name, minutes=20)
    assert run_names(operator, f"{url('changelist')}?workflow={asked}") == {OLD, NEW}
    assert run_names(operator, f"{url('changelist')}?workflow={asked}&state=sleeping&sort=created_at") == {OLD, NEW}
    assert eligible("cancel", Filtered(RunCriteria(workflow=asked))).count == 4


def test_schedules_are_listed_by_either_name(stage: Stage, code: str) -> None:
    for number, name in enumerate((OLD, NEW, "tests.none")):
        Schedule.objects.create(name=f"schedule {number}", workflow=name, rule=every("1 day"))
    for asked in (OLD, NEW):
        found, _ = list_schedules(stage.now, workflow=asked)
        assert [each.schedule.name for each in found] == ["schedule 0", "schedule 1"]
