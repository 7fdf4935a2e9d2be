"""Bulks, families and replays by hand in a real browser: cause, canary, decision, result, recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from durable import get_run
from durable.models import Cause, Child, OperatorAction, Run
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import url
from tests.support.browsers import complaints_of, look

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


TWO_MINUTES = 120_000  # milliseconds
ALL = (*OPERATOR, "give_output", "edit_input")

LogIn = Callable[..., "Page"]


def check(page: Page, complaints: list[str], name: str) -> None:
    """Look at the page in light colours; the search of the log is Django's own."""
    look(page, name, complaints, schemes=("light",), but="#toolbar")


def failed_runs(stage: Stage, count: int) -> list[str]:
    flows.SWITCH["broken"] = True
    ids = [f"order-{number}" for number in range(count)]
    for each in ids:
        stage.start(flows.switched, id=each)
    return ids


def test_a_cause_is_tried_with_a_canary_and_goes_on(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    ids = failed_runs(stage, 8)
    page = sign_in(*ALL, to=url("cause", Cause.objects.get().fingerprint))
    page.get_by_role("link", name="Try 5 first").click()
    page.get_by_text("Recover: try 5 of 8 runs first").wait_for()
    assert page.get_by_label("Runs to try first").input_value() == "5"
    page.get_by_label("Failures that stop it").fill("2")
    check(page, complaints, "confirm")
    page.get_by_role("textbox", name="Reason").fill("the bank is back, I think")
    page.get_by_label("Runs to try first").fill("6")
    page.get_by_role("button", name="Try 6 of 8", exact=True).wait_for()
    page.get_by_label("Runs to try first").fill("5")
    page.get_by_role("button", name="Try 5 of 8", exact=True).click()
    page.wait_for_url("**/run/bulk/*/")
    page.get_by_text("Under way: 0 of 8").first.wait_for(timeout=TWO_MINUTES)
    bulk_id = Run.objects.get(workflow="durable.bulk").id

    stage.settle(bulk_id)  # the first five, three of which fail again
    page.get_by_text("Waiting for the first 5 before the rest: 5 of 8").first.wait_for(timeout=TWO_MINUTES)
    check(page, complaints, "watching")
    for number, each in enumerate(Run.objects.filter(state="pending", pk__in=ids).order_by("pk")):
        flows.SWITCH["broken"] = number < 3
        stage.settle(each.pk)
    flows.SWITCH["broken"] = False
    for _ in range(3):
        stage.advance(seconds=20)
        stage.settle(bulk_id)
    page.get_by_text("Stopped after the first 5: 3 of them failed again.").first.wait_for(timeout=TWO_MINUTES)
    check(page, complaints, "stopped")
    page.get_by_role("link", name="Go on with the rest").click()
    page.get_by_role("textbox", name="Reason").fill("those three are known")
    page.get_by_role("button", name="Go on with the rest").click()
    page.get_by_text("It goes on with the rest.").wait_for()
    stage.settle(bulk_id)
    page.get_by_text("Done: 8 of 8; 3 failed again.").first.wait_for(timeout=TWO_MINUTES)
    page.get_by_role("link", name="Recover those 3").wait_for()
    check(page, complaints, "done")

    page.get_by_role("link", name="Recover those 3").click()
    page.get_by_text("Recover 3 runs that failed again after an earlier bulk").wait_for()
    page.go_back()
    page.get_by_role("link", name="All its actions in the audit log").click()
    page.get_by_role("link", name="order-0").first.wait_for()
    page.goto("/admin/durable/operatoraction/")
    check(page, complaints, "log")
    page.get_by_role("link", name="bulk: recover 8 runs").click()
    page.get_by_text("Done: 8 of 8; 3 failed again.").first.wait_for()
    assert complaints == []


def test_the_output_of_a_step_is_given_by_hand(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    failed_runs(stage, 1)
    page = sign_in(*ALL, to=f"{url('replay', 'order-0')}?at=charge")
    page.get_by_role("link", name="Give the output of this step by hand instead").click()
    page.get_by_role("heading", name="Give the output of “charge”").wait_for()
    page.get_by_label("Output (JSON)").fill('"paid by hand"')
    page.get_by_role("textbox", name="Reason").fill("seen in the bank's books")
    check(page, complaints, "given")
    page.get_by_role("button", name="Give this output").click()
    page.wait_for_url("**/change/")
    [new] = Run.objects.filter(replay_of="order-0")
    stage.settle(new.id)
    assert get_run(new.id).result() == "paid by hand"
    page.goto(f"{url('step', new.id)}?at=charge")
    page.get_by_text("output given by hand by ada (admin): seen in the bank's books").first.wait_for()
    check(page, complaints, "given-step")
    assert complaints == []


def test_a_run_starts_again_with_another_input(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    stage.start(flows.quick, 7, id="run")
    page = sign_in(*ALL, to=url("act", "run", "restart"))
    page.get_by_role("link", name="Start it with another input instead").click()
    editor = page.get_by_label("Arguments (JSON)")
    assert editor.input_value() == '{\n  "value": 7\n}'
    editor.fill('{"valu": 8}')
    check(page, complaints, "edit")
    page.get_by_role("button", name="Start again").click()
    page.get_by_text("no argument 'valu'").wait_for()
    page.get_by_label("Arguments (JSON)").fill('{"value": 8}')
    page.get_by_role("textbox", name="Reason").fill("typing error")
    page.get_by_role("button", name="Start again").click()
    page.get_by_text("A new run with this input has begun").wait_for()
    [new] = Run.objects.exclude(pk="run")
    stage.settle(new.id)
    assert get_run(new.id).result() == 8
    assert [each for each in complaints if "422 (Unprocessable" not in each] == []


# -- A parent that has failed because 46 of its 1,000 children did, in a real browser: from the overview to recovered


FAILED = 46
PARENT = "billing-2026-11"


@pytest.fixture
def incident(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The parent has started the children that failed; the others are rows of completed ones."""
    monkeypatch.setattr(flows, "BROKEN", set(range(FAILED)))
    flows.SWITCH["broken"] = True
    stage.start(flows.billing, FAILED + 2, id=PARENT)
    for child in list(Child.objects.filter(parent_id=PARENT).values_list("pk", flat=True)):
        stage.settle(child)
    assert stage.settle(PARENT).state == "failed"
    made = [f"{PARENT}:earlier {number}" for number in range(1_000 - FAILED - 2)]
    ended = {"state": "completed", "output": '"done"', "created_at": stage.now, "finished_at": stage.now}
    Run.objects.bulk_create(
        Run(id=each, workflow="tests.bill", queue="default", input="{}", parent_id=PARENT, **ended) for each in made
    )
    Child.objects.bulk_create(
        Child(run_id=each, parent_id=PARENT, location="bills", group="bills", when_parent_ends="cancel", position=n)
        for n, each in enumerate(made, 10_000)
    )
    return stage


@pytest.fixture
def operator_page(sign_in: LogIn) -> Page:
    return sign_in(*OPERATOR)


def test_from_the_overview_to_recovered_is_two_clicks(operator_page: Page, incident: Stage) -> None:
    page = operator_page
    complaints = complaints_of(page)
    page.goto(reverse("admin:app_list", args=["durable"]))
    page.get_by_role("link", name="Recover it and its failed children").click()
    page.get_by_text("Recover 47 runs: the failed children of billing-2026-11 first").wait_for()
    assert complaints == []
    look(page, "confirm", complaints)
    page.get_by_role("button", name="Recover", exact=True).click()
    page.wait_for_url("**/run/bulk/*/")

    flows.SWITCH["broken"] = False
    incident.settle(Run.objects.get(workflow="durable.bulk").id)
    page.get_by_text("Done: 47 of 47").first.wait_for(timeout=TWO_MINUTES)
    for child in list(Run.objects.filter(parent_id=PARENT, state="pending").values_list("pk", flat=True)):
        incident.settle(child)
    assert incident.settle(PARENT).state == "completed"
    actions = OperatorAction.objects.filter(action="recover", outcome="done").exclude(bulk_id="")
    assert actions.values("bulk_id").distinct().count() == 1
    assert actions.count() == FAILED + 1
    assert complaints == []


def test_the_page_of_the_parent_shows_a_thousand_children_at_a_glance(operator_page: Page, incident: Stage) -> None:
    page = operator_page
    complaints = complaints_of(page)
    Run.objects.filter(pk=f"{PARENT}:earlier 1").update(state="sleeping", output=None, finished_at=None)
    page.goto(url("change", PARENT))
    page.get_by_role("heading", name="1,000 children").wait_for()
    page.get_by_role("link", name="Recover the 46 failed children and this run").wait_for()
    assert complaints == []
    look(page, "parent")
    page.get_by_role("link", name="43 more").click()
    page.get_by_role("link", name=f"{PARENT}:bill 45", exact=True).wait_for()
    look(page, "children", complaints)
    page.get_by_role("link", name=f"{PARENT}:bill 45", exact=True).click()
    page.get_by_label("Parents").get_by_role("link", name=PARENT).wait_for()
    look(page, "child", complaints)
    page.get_by_label("Parents").get_by_role("link", name=PARENT).click()
    page.get_by_role("heading", name="1,000 children").wait_for()
    Run.objects.filter(pk=f"{PARENT}:bill 45").update(state="pending", finished_at=None)
    patched = page.get_by_role("link", name="Recover the 45 failed children and this run")
    patched.wait_for(timeout=TWO_MINUTES)
    assert complaints == []


def test_the_list_says_what_it_leaves_out(operator_page: Page, incident: Stage) -> None:
    page = operator_page
    page.goto(f"{url('changelist')}?state=failed")
    page.get_by_text("46 children match and are not listed.").wait_for()
    look(page, "list")
    page.get_by_role("link", name="List them too").click()
    page.get_by_role("heading", name="47 runs").wait_for()
