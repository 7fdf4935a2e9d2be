"""Workflows, queues, workers and schedules in a real browser: the flows of their verbs, and no barriers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from durable import Context, Schedule, workflow
from durable.admin.text import as_key
from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.models import Build, Run
from durable.operations.schedules.verbs import override, pause, run_now
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import url
from tests.support.browsers import complaints_of, look
from tests.support.worker import a_worker

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def operator(sign_in: Callable[..., Page]) -> Page:
    """The page, logged in as a superuser."""
    return sign_in(is_superuser=True)


@pytest.fixture
def project(stage: Stage) -> Stage:
    """Runs of one workflow in every place, workers alive and dead, and a deploy."""
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="failed")
    flows.SWITCH["broken"] = False
    for number in range(12):
        stage.start(flows.switched, id=f"done-{number}")
    for number in range(3):
        stage.start(flows.approve, id=f"waiting-{number}")
    stage.start(flows.switched, id="held", settle=False)
    assert stage.claim("held") is not None
    stage.start(flows.switched, id="due", settle=False)
    Run.objects.filter(id="due").update(wake_at=timezone.now() - timedelta(minutes=4))
    Build.objects.create(name="7f3a", first_seen_at=stage.now - timedelta(hours=3))
    a_worker()
    a_worker("web-2:812:b", host="web-2", pid=812, last_seen_at=stage.now - timedelta(minutes=6))
    a_worker("web-3:813:c" + "x" * 200, host="web-3" + "x" * 200, pid=813, state="stopping", queues=["q" * 150])
    return stage


#: Those that show more here than in `test_browser_addresses.py`.
ADDRESSES = (
    ("workflows", None),
    ("workflow", "tests.switched"),
    ("queues", None),
    ("queue", "default"),
    ("workers", None),
    ("worker", "web-2:812:b"),
)


def test_every_page_is_without_barriers_and_fits(operator: Page, project: Stage) -> None:
    for name, key in ADDRESSES:
        operator.goto(url(name, key))
        look(operator, f"{name}-{key}")


def test_a_queue_is_paused_and_resumed(operator: Page, project: Stage, complaints: list[str]) -> None:
    operator.goto(url("queues"))
    operator.get_by_role("link", name="default", exact=True).click()
    operator.get_by_role("link", name="Pause the queue").click()
    operator.get_by_role("textbox", name="Reason").fill("bank is down")
    operator.get_by_role("button", name="Pause the queue").click()
    operator.get_by_text("The queue is paused.").wait_for()
    assert operator.get_by_text("bank is down").first.is_visible()
    hold = find_hold(HoldKind.QUEUE, "default")
    assert hold is not None
    assert hold.reason == "bank is down"
    operator.get_by_role("link", name="Resume the queue").click()
    operator.get_by_role("button", name="Resume the queue").click()
    operator.get_by_text("The queue is resumed.").wait_for()
    assert find_hold(HoldKind.QUEUE, "default") is None
    assert complaints == []


def test_new_starts_are_held_one_is_started_and_they_are_released(
    operator: Page, project: Stage, complaints: list[str]
) -> None:
    operator.goto(url("workflow", "tests.quick"))
    operator.get_by_role("link", name="Hold new starts").click()
    operator.get_by_role("button", name="Hold new starts").click()
    operator.get_by_text("New starts are held.").wait_for()
    operator.get_by_role("link", name="Start one").click()
    operator.get_by_role("textbox", name="Arguments").fill('{"value": 7}')
    operator.get_by_role("textbox", name="Id of the run").fill("by-hand")
    operator.get_by_role("button", name="Start one").click()
    operator.get_by_text("It is started.").wait_for()
    assert Run.objects.get(pk="by-hand").state == "paused"
    operator.goto(url("workflow", "tests.quick"))
    operator.get_by_role("link", name="Release new starts").click()
    operator.get_by_role("button", name="Release new starts").click()
    operator.get_by_text("New starts are released.").wait_for()
    assert Run.objects.get(pk="by-hand").state == "pending"
    assert complaints == []


# -- the pages of schedules in a real browser: no barrier in any width and colour, no complaint, a verb by hand


WAIT = 60_000  # milliseconds
LONG = "x" * 170


@workflow(name="tests.browser.report")
def report(ctx: Context) -> None:
    return None


@pytest.fixture
def operator_page(sign_in: Callable[..., Page]) -> Page:
    of_schedules = ("add_schedule", "change_schedule", "delete_schedule", "operate_schedule")
    return sign_in("view_run", "view_payload", "start_run", *of_schedules)


@pytest.fixture
def schedules() -> None:
    """Schedules in each state, with ticks of several outcomes."""
    for name, rule in (
        ("nightly", "30 2 * * *"),
        ("hourly", "0 * * * *; every 7 hours"),
        (LONG, "0 0 L * *"),
        ("😴", "every 1 week"),
    ):
        Schedule.objects.create(name=name, workflow=report.name, rule=rule, zone="Europe/Berlin", overlap="queue")
    Schedule.objects.create(name="shop.nightly", workflow=report.name, rule="30 2 * * *", origin="code")
    Schedule.objects.create(name="broken", workflow="tests.nobody", rule="0 9 * * MON#1")
    override("shop.nightly", "0 4 * * *", zone="Asia/Tokyo")
    for name in ("nightly", "nightly", "nightly", "broken", LONG, "shop.nightly"):
        run_now(name)
    for number in range(16):
        run_now("hourly", force=bool(number % 3))
    pause("😴")


def test_no_page_is_a_barrier(operator_page: Page, schedules: None) -> None:
    pages = {
        "schedules": url("schedules"),
        "schedule": url("schedule", "hourly"),
        "schedule-overridden": url("schedule", "shop.nightly"),
        "schedule-long": url("schedule", LONG),
        "schedule-paused": url("schedule", as_key("😴")),
        "schedule-edit": url("schedule_act", "nightly", "edit"),
        "schedule-backfill": url("schedule_act", "nightly", "backfill"),
    }
    complaints = complaints_of(operator_page)
    for name, address in pages.items():
        operator_page.goto(address)
        assert complaints == []
        look(operator_page, name, complaints)


def test_a_schedule_is_paused_and_resumed_by_hand(operator_page: Page, schedules: None) -> None:
    page = operator_page
    page.goto(url("schedules"))
    page.get_by_role("link", name="nightly", exact=True).click()
    page.get_by_role("link", name="Pause").click()
    page.get_by_label("Reason").fill("bank is down")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_text("bank is down").wait_for(timeout=WAIT)
    assert Schedule.objects.get(name="nightly").paused
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_text("The schedule is resumed.").wait_for(timeout=WAIT)
    assert not Schedule.objects.get(name="nightly").paused


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_moments_are_in_the_zone_of_the_browser(
    operator_page: Page, live_server: LiveServer, schedules: None, zone: str
) -> None:
    """The first page is asked for once more, the others once."""
    browser, cookies = operator_page.context.browser, operator_page.context.storage_state()
    assert browser is not None
    with browser.new_context(timezone_id=zone, storage_state=cookies) as context:
        context.set_default_timeout(WAIT)
        page = context.new_page()
        complaints = complaints_of(page)
        loads: list[str] = []
        page.on("load", lambda loaded: loads.append(loaded.url))
        page.goto(f"{live_server.url}{url('schedule', as_key('nightly'))}")
        page.get_by_text(f"In the zone of this page, {zone}.").wait_for()
        page.goto(f"{live_server.url}{url('schedules')}")
        page.get_by_text(f"in the zone of this page, {zone};").wait_for()
        assert page.locator("time[datetime]").first.is_visible()
        assert [each.rsplit("/", 2)[-2] for each in loads].count("schedules") == 1
        assert complaints == []


def test_without_javascript_moments_are_in_the_zone_of_the_project(
    operator_page: Page, live_server: LiveServer, schedules: None
) -> None:
    browser, cookies = operator_page.context.browser, operator_page.context.storage_state()
    assert browser is not None
    with browser.new_context(timezone_id="Asia/Tokyo", java_script_enabled=False, storage_state=cookies) as context:
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.goto(f"{live_server.url}{url('schedules')}")
        assert page.get_by_text("in the zone of this page, UTC;").is_visible()
