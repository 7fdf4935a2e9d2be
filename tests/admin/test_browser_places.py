"""Workflows, queues and workers in a real browser: the flows of their verbs, without barriers, wide and narrow."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from durable.core.records import HoldKind
from durable.inspection.queues import find_hold
from durable.models import Build, Run
from tests.admin import flows
from tests.admin.conftest import MakeUser, Stage
from tests.admin.pages import url
from tests.support.barriers import barriers
from tests.support.browsing import complaints_of
from tests.support.worker_rows import a_worker

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PASSWORD = "correct horse"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def complaints(page: "Page") -> list[str]:
    return complaints_of(page)


@pytest.fixture
def operator(page: "Page", live_server: "LiveServer", make_user: MakeUser) -> "Page":
    """The page, logged in as a superuser."""
    user = make_user(password=PASSWORD)
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    page.goto(f"{live_server.url}/admin/login/?next=/admin/durable/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()
    return page


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


ADDRESSES = (
    ("workflows", None),
    ("workflow", "tests.switched"),
    ("workflow_start", "tests.switched"),
    ("queues", None),
    ("queue", "default"),
    ("workers", None),
    ("worker", "host:4711:abc"),
    ("worker", "web-2:812:b"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_without_barriers_and_fits(
    operator: "Page", live_server: "LiveServer", project: Stage, scheme: str
) -> None:
    operator.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
    for name, key in ADDRESSES:
        for size in (WIDE, NARROW):
            operator.set_viewport_size(size)  # type: ignore[arg-type]  # Playwright's own class of such dicts
            operator.goto(live_server.url + url(name, key))
            found = barriers(operator)
            assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == [], (name, size)
            width = operator.evaluate("document.documentElement.scrollWidth")
            assert width <= size["width"], (name, size, width)


def test_a_queue_is_paused_and_resumed(
    operator: "Page", live_server: "LiveServer", project: Stage, complaints: list[str]
) -> None:
    operator.goto(live_server.url + url("queues"))
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
    operator: "Page", live_server: "LiveServer", project: Stage, complaints: list[str]
) -> None:
    operator.goto(live_server.url + url("workflow", "tests.quick"))
    operator.get_by_role("link", name="Hold new starts").click()
    operator.get_by_role("button", name="Hold new starts").click()
    operator.get_by_text("New starts are held.").wait_for()
    operator.get_by_role("link", name="Start one").click()
    operator.get_by_role("textbox", name="Arguments").fill('{"value": 7}')
    operator.get_by_role("textbox", name="Id of the run").fill("by-hand")
    operator.get_by_role("button", name="Start one").click()
    operator.get_by_text("It is started.").wait_for()
    assert Run.objects.get(pk="by-hand").state == "paused"
    operator.goto(live_server.url + url("workflow", "tests.quick"))
    operator.get_by_role("link", name="Release new starts").click()
    operator.get_by_role("button", name="Release new starts").click()
    operator.get_by_text("New starts are released.").wait_for()
    assert Run.objects.get(pk="by-hand").state == "pending"
    assert complaints == []
