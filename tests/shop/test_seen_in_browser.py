"""What a person sees of runs in the shop, in a real browser: a refund that two colleagues decide, the bank's webhook.

The worker is a process of its own. The bank posts to the live server over HTTP.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from durable import get_run
from project.shop import checkout
from project.shop.models import Mail, Order, Product, Refund
from tests.support.browsers import CONTRAST, RULES, barriers, complaints_of, show_as, working
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: Colours do not change the structure of a page.
LOOKS = {
    "light": ("light", 1280, RULES),
    "dark": ("dark", 1280, CONTRAST),
    "telephone": ("light", 390, CONTRAST),
    "dark telephone": ("dark", 390, RULES),
}


@pytest.fixture
def worker(
    child_environment: dict[str, str], live_server: "LiveServer", tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process whose links lead to the live server."""
    environment = {**child_environment, "SHOP_COOL_OFF": "1 second", "BASE_URL": live_server.url}
    with working(environment, tmp_path / "worker.log") as process:
        yield process


@pytest.fixture
def shelf(transactional_db: None) -> Product:
    yarn = {"name": "Ball of yarn", "description": "Forty metres.", "price": Decimal("4.20")}
    return Product.objects.get_or_create(slug="yarn", defaults=yarn)[0]


@pytest.fixture
def mia(transactional_db: None) -> User:
    """Who may refund, and never logs in."""
    user = User.objects.create_user("mia", "mia@example.org")
    user.user_permissions.add(Permission.objects.get(codename="add_refund", content_type__app_label="shop"))
    return user


@contextmanager
def another(page: "Page", user: User | None = None, server: str = "") -> Iterator["Page"]:
    """A page in a browser of somebody else: of a user who is logged in, or of nobody."""
    browser = page.context.browser
    assert browser is not None
    with browser.new_context(timezone_id="UTC") as context:
        context.set_default_timeout(120_000)
        if user is not None:
            log_in(context, user, server)
        yield context.new_page()


def log_in(context: "BrowserContext", user: User, server: str) -> None:
    client = Client()
    client.force_login(user)
    value = client.cookies[settings.SESSION_COOKIE_NAME].value
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": value, "url": server}])


def loads_of(page: "Page") -> list[str]:
    loads: list[str] = []
    page.on("load", lambda loaded: loads.append(loaded.url))
    return loads


def has_sent(order: Order) -> bool:
    return Order.objects.filter(pk=order.pk, status=Order.Status.SENT).exists()


def link_for(address: str) -> str:
    """The link of the question in the newest mail to this address; "" before it is sent."""
    mail = Mail.objects.filter(to=address).order_by("-pk").first()
    found = re.search(r"http\S+/durable/questions/\S+", "" if mail is None else mail.body)
    return found[0] if found else ""


def test_two_colleagues_give_the_money_back_from_the_inbox_and_from_a_mail(
    page: "Page", live_server: "LiveServer", shelf: Product, worker: object, mia: User
) -> None:
    complaints = complaints_of(page)
    order = checkout.place_order("Ada", "ada@example.org", {shelf: 2})
    checkout.answer(order, "approved", by="tests")
    eventually(lambda: has_sent(order))
    page.goto(live_server.url + order.get_absolute_url())
    page.get_by_role("button", name="Ask for the money back").click()
    headline = page.locator(".headline")
    headline.filter(has_text="Two colleagues look at it").wait_for()
    page.wait_for_load_state()
    loads = loads_of(page)

    with another(page, User.objects.create_superuser("keeper"), live_server.url) as inbox:
        inbox.goto(live_server.url + order.get_absolute_url())
        inbox.get_by_role("link", name="Waiting for you").click()
        inbox.get_by_role("link", name="give the money back").first.click()
        inbox.get_by_role("radio", name="Give the money back").check()
        inbox.get_by_label("A word to the customer").fill("Sorry!")
        inbox.get_by_role("button", name="Answer", exact=True).click()
        inbox.get_by_text("Somebody else has to agree too").first.wait_for()
        inbox.goto(live_server.url + reverse("shop:post"))
        eventually(lambda: bool(link_for(mia.email)))
        inbox.reload()
        assert inbox.get_by_role("link", name=link_for(mia.email)).count() == 1
    assert loads == []

    with another(page) as of_mail:
        of_mail.goto(link_for(mia.email))
        of_mail.get_by_text("You answer as mia").wait_for()
        of_mail.get_by_role("radio", name="Give the money back").check()
        of_mail.get_by_role("button", name="Answer", exact=True).click()
        of_mail.get_by_text("Thank you").first.wait_for()
    headline.filter(has_text="Agreed; please send the parcel back").wait_for()
    assert loads == []  # it got there without a reload

    page.get_by_role("button", name="Hand the parcel to the carrier").click()
    headline.filter(has_text="Your money is on its way").wait_for()
    assert len(loads) == 1  # the answer's own
    page.locator("[data-ended]").wait_for(state="attached")
    assert Refund.objects.filter(charge__order=order).count() == 1
    assert get_run(f"shop.inspect:back-{order.pk}").result(timeout=60) is None
    assert complaints == []


def test_the_bank_moves_the_bar_of_the_customer_without_a_reload(
    page: "Page", live_server: "LiveServer", shelf: Product, worker: object
) -> None:
    complaints = complaints_of(page)
    page.goto(live_server.url)
    page.get_by_label("How many of Ball of yarn").fill("2")
    page.get_by_label("Pay by").select_option("transfer")
    page.get_by_role("button", name="Place the order").click()
    to_bank = page.get_by_role("link", name="Pay it at the bank")
    to_bank.wait_for()
    bar = page.locator("[data-durable-progress]").first
    bar.get_by_text("waiting for your transfer").wait_for()
    page.wait_for_load_state()
    loads = loads_of(page)

    with another(page) as bank:
        bank.goto(live_server.url + str(to_bank.get_attribute("href")))
        bank.get_by_role("button", name="Send a forged answer").click()
        bank.get_by_text("answers 403").wait_for()
        assert Order.objects.get().status == Order.Status.PLACED
        bank.get_by_role("button", name="Transfer € 8.40").click()
        bank.get_by_text("answers 200").wait_for()
    bar.get_by_text("paid, the shopkeeper looks at it").wait_for()
    assert bar.locator("progress").evaluate("each => each.value") == 0.25
    page.locator(".headline", has_text="waiting for the shopkeeper").wait_for()
    assert loads == []
    assert Order.objects.get().status == Order.Status.PAID
    assert complaints == []


@pytest.fixture
def paths(live_server: "LiveServer", shelf: Product, worker: object, mia: User) -> list[str]:
    """The pages of an order that waits for a transfer, of the bank, and of a refund that waits for colleagues."""
    unpaid = checkout.place_order("Ada", "ada@example.org", {shelf: 2}, by_transfer=True)
    order = checkout.place_order("Bo", "bo@example.org", {shelf: 1})
    checkout.answer(order, "approved", by="tests")
    eventually(lambda: has_sent(order))
    checkout.ask_for_refund(order)
    eventually(lambda: bool(link_for(mia.email)))
    waiting = get_run(unpaid.run_id).children()
    eventually(lambda: waiting[0].state == "sleeping")
    from project.shop.services import bank

    transfer = bank.find_transfer(unpaid.payment_reference)
    assert transfer is not None
    return [
        "/?branch=hill",
        unpaid.get_absolute_url(),
        reverse("shop:transfer", args=[transfer.token]),
        order.get_absolute_url(),
        reverse("shop:post"),
        reverse("shop:examples"),
        urlsplit(link_for(mia.email)).path,
    ]


def test_nobody_meets_a_barrier_on_these_pages(page: "Page", live_server: "LiveServer", paths: list[str]) -> None:
    log_in(page.context, User.objects.create_superuser("keeper"), live_server.url)
    found: list[tuple[str, str, object]] = []
    for path in paths:
        page.goto(live_server.url + path)
        for look, (scheme, width, rules) in LOOKS.items():
            show_as(page, scheme=scheme, size={"width": width, "height": 900})
            found += [
                (look, path, (each["id"], each["nodes"][0]["html"])) for each in barriers(page, rules, within=None)
            ]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append((look, path, "wider than the screen"))
    assert found == []
