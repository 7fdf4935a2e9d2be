"""A parent that has failed because 46 of its 1,000 children did, in a real browser: from the overview to recovered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from durable.models import Child, OperatorAction, Run
from tests.admin import flows
from tests.admin.conftest import OPERATOR, MakeUser, Stage
from tests.admin.pages import url
from tests.support.barriers import barriers
from tests.support.browsing import complaints_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WAIT = 120_000  # milliseconds
FAILED = 46
PARENT = "billing-2026-11"


@pytest.fixture
def incident(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The parent has started the children that failed; the others are rows of completed ones."""
    monkeypatch.setattr(flows, "BROKEN", set(range(FAILED)))
    monkeypatch.setitem(flows.SWITCH, "broken", True)
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
def operator_page(page: Page, live_server: LiveServer, make_user: MakeUser) -> Page:
    client = Client()
    client.force_login(make_user(*OPERATOR))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
    return page


def serious_faults(page: Page) -> list[tuple[str, str]]:
    found = barriers(page)
    return [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] != "minor"]


def look(page: Page, name: str) -> None:
    """Look at the page with axe in light and dark, wide and narrow, where nothing may reach beyond the window."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            if folder := os.environ.get("DURABLE_SHOTS"):
                page.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
            for _ in range(40):  # links and chips take the colours of the scheme within a moment
                serious = serious_faults(page)
                if not serious:
                    break
                page.wait_for_timeout(250)
            assert serious == [], (name, width, scheme)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})


def test_from_the_overview_to_recovered_is_two_clicks(
    operator_page: Page, live_server: LiveServer, incident: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = operator_page
    complaints = complaints_of(page)
    page.goto(live_server.url + reverse("admin:app_list", args=["durable"]))
    page.get_by_role("link", name="Recover it and its failed children").click()
    page.get_by_text("Recover 47 runs: the failed children of billing-2026-11 first").wait_for()
    assert complaints == []
    look(page, "confirm")
    complaints.clear()  # of the styles that axe tries to set
    page.get_by_role("button", name="Recover", exact=True).click()
    page.wait_for_url("**/run/bulk/*/")

    monkeypatch.setitem(flows.SWITCH, "broken", False)
    incident.settle(Run.objects.get(workflow="durable.bulk").id)
    page.get_by_text("Done: 47 of 47").first.wait_for(timeout=WAIT)
    for child in list(Run.objects.filter(parent_id=PARENT, state="pending").values_list("pk", flat=True)):
        incident.settle(child)
    assert incident.settle(PARENT).state == "completed"
    actions = OperatorAction.objects.filter(action="recover", outcome="done").exclude(bulk_id="")
    assert actions.values("bulk_id").distinct().count() == 1
    assert actions.count() == FAILED + 1
    assert complaints == []


def test_the_page_of_the_parent_shows_a_thousand_children_at_a_glance(
    operator_page: Page, live_server: LiveServer, incident: Stage
) -> None:
    page = operator_page
    complaints = complaints_of(page)
    Run.objects.filter(pk=f"{PARENT}:earlier 1").update(state="sleeping", output=None, finished_at=None)
    page.goto(live_server.url + url("change", PARENT))
    page.get_by_role("heading", name="1,000 children").wait_for()
    page.get_by_role("link", name="Recover the 46 failed children and this run").wait_for()
    assert complaints == []
    look(page, "parent")
    page.get_by_role("link", name="43 more").click()
    page.get_by_role("link", name=f"{PARENT}:bill 45", exact=True).wait_for()
    look(page, "children")
    complaints.clear()
    page.get_by_role("link", name=f"{PARENT}:bill 45", exact=True).click()
    page.get_by_label("Parents").get_by_role("link", name=PARENT).wait_for()
    look(page, "child")
    complaints.clear()
    page.get_by_label("Parents").get_by_role("link", name=PARENT).click()
    page.get_by_role("heading", name="1,000 children").wait_for()
    Run.objects.filter(pk=f"{PARENT}:bill 45").update(state="pending", finished_at=None)
    page.get_by_role("link", name="Recover the 45 failed children and this run").wait_for(timeout=WAIT)  # patched
    assert complaints == []


def test_the_list_says_what_it_leaves_out(operator_page: Page, live_server: LiveServer, incident: Stage) -> None:
    page = operator_page
    page.goto(f"{live_server.url}{url('changelist')}?state=failed")
    page.get_by_text("46 children match and are not listed.").wait_for()
    look(page, "list")
    page.get_by_role("link", name="List them too").click()
    page.get_by_role("heading", name="47 runs").wait_for()
