"""The order's page in a real browser, with a live server and live workers: it shows what happens without a reload."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durable import get_run
from durable.models import Run
from project.shop.models import Order, Product
from tests.support.browsers import complaints_of, working

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WAIT = 120_000  # milliseconds: a worker has to start first, on a machine that may be slow


@pytest.fixture
def worker(child_environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process on this test's database and Redis."""
    environment = {**child_environment, "SHOP_COOL_OFF": "1 second", "SHOP_SERVICE_LATENCY": "0.2"}
    with working(environment, tmp_path / "worker.log") as process:
        yield process


@pytest.fixture
def complaints(page: "Page") -> list[str]:
    """What the browser complains about. A request that is under way when its page is left is no complaint."""
    found = complaints_of(page)
    page.on("requestfailed", lambda request: None if was_left(request) else found.append(f"{request.url} failed"))
    return found


def was_left(request: "Request") -> bool:
    return request.failure == "net::ERR_ABORTED"


@pytest.fixture
def shelf(transactional_db: None) -> Product:
    yarn = {"name": "Ball of yarn", "description": "Forty metres.", "price": "4.20"}
    return Product.objects.get_or_create(slug="yarn", defaults=yarn)[0]


@pytest.fixture(autouse=True)
def patience(page: "Page") -> None:
    page.context.set_default_timeout(WAIT)


@contextmanager
def explained(log: Path) -> Iterator[None]:
    """Add to a failure inside what the database and the worker say about the runs."""
    try:
        yield
    except Exception as error:
        for each in Run.objects.values_list("id", flat=True):
            handle = get_run(str(each))
            error.add_note("\n".join(map(repr, (handle.info(), *handle.history()))))
        error.add_note(log.read_text(errors="replace"))
        raise


def place_an_order(page: "Page", live_server: "LiveServer") -> None:
    page.goto(live_server.url)
    page.get_by_label("How many of Ball of yarn").fill("2")
    page.get_by_role("button", name="Place the order").click()
    page.wait_for_url("**/orders/**")


def test_an_order_is_watched_approved_and_watched_again(
    page: "Page", live_server: "LiveServer", shelf: Product, worker: object, complaints: list[str]
) -> None:
    loads: list[str] = []
    page.on("load", lambda loaded: loads.append(loaded.url))
    place_an_order(page, live_server)
    page.wait_for_load_state()
    seen = len(loads)
    page.get_by_text("waiting for the shopkeeper").first.wait_for()
    assert len(loads) == seen  # it got there without a reload
    assert page.locator('[data-location="charge"]').inner_text().startswith("charge")

    page.get_by_role("button", name="Approve").click()
    page.get_by_text("The parcel is on its way").first.wait_for()
    assert len(loads) == seen + 1  # the answer's own
    assert page.locator('[data-location="ship/pack/label/buy"]').is_visible()
    assert page.get_by_role("button", name="Cancel").count() == 0

    page.locator("[data-durable-progress][data-durable-ended]").wait_for(state="attached")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1500)
    assert asked == []  # an order that has ended is not asked about any more
    assert complaints == []
    assert Order.objects.get().status == Order.Status.SENT


def test_an_order_is_rejected_without_javascript(
    page: "Page", live_server: "LiveServer", shelf: Product, worker: object
) -> None:
    browser = page.context.browser
    assert browser is not None
    with browser.new_context(java_script_enabled=False) as context:
        context.set_default_timeout(WAIT)
        plain = context.new_page()
        place_an_order(plain, live_server)
        plain.get_by_role("button", name="Reject").click()  # the page reloads itself until it is there
        plain.get_by_text("The money has been returned").first.wait_for()
    assert Order.objects.get().status == Order.Status.REFUNDED


def test_an_example_is_run_and_watched(
    page: "Page", live_server: "LiveServer", worker: object, complaints: list[str], tmp_path: Path
) -> None:
    page.goto(f"{live_server.url}/examples/")
    page.locator("li", has_text="Send someone the cutest cat").get_by_role("button", name="Run it").click()
    with explained(tmp_path / "worker.log"):
        page.get_by_text("Returned 'Mochi'").first.wait_for()
    assert page.locator('[data-location="fetch cat image"]').is_visible()
    assert complaints == []


def test_the_page_does_not_ask_while_it_is_hidden(
    page: "Page", live_server: "LiveServer", shelf: Product, child_environment: dict[str, str]
) -> None:
    place_an_order(page, live_server)
    with page.expect_request("**/progress/**"):
        pass
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1500)
    assert asked == []
    with page.expect_request("**/progress/**"):
        page.evaluate(hide, False)


def test_a_text_is_seen_as_it_is_written(
    page: "Page", live_server: "LiveServer", shelf: Product, worker: object, complaints: list[str], tmp_path: Path
) -> None:
    """The words come before the run has ended; the page is not reloaded."""
    page.goto(f"{live_server.url}/examples/")
    page.locator("li", has=page.get_by_role("heading", name="Describe", exact=True)).get_by_role("button").click()
    with explained(tmp_path / "worker.log"):
        written = page.locator("[data-stream]")
        written.filter(has_text="Tested by").wait_for()
        assert page.locator("[data-ended]").count() == 0
        written.filter(has_text="they approve.").wait_for()
        page.locator("[data-ended]").wait_for(state="attached")
    kept = Product.objects.order_by("price").values_list("description", flat=True)[0]
    assert written.inner_text() == kept
    assert complaints == []
