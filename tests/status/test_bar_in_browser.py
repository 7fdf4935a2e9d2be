"""The bar of a project's own page in a real browser: it moves without a reload, and stops when the run has ended."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from durable import get_run
from durable.models import RunStatus
from project.shop.checkout import place_order
from project.shop.models import Product
from tests.faults.passing import pass_once
from tests.support.browsers import complaints_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_a_customer_watches_the_bar(page: Page, live_server: LiveServer) -> None:
    yarn = Product.objects.create(
        slug=f"yarn-{uuid4()}", name="Ball of yarn", description="Red.", price=Decimal("4.20")
    )
    order = place_order("Ada", "ada@example.com", {yarn: 1})
    pass_once(get_run(order.run_id))
    complaints = complaints_of(page)
    page.goto(live_server.url + order.get_absolute_url())
    bar = page.locator("[data-durable-progress]")
    bar.get_by_text("paid, the shopkeeper looks at it").wait_for()
    assert float(bar.locator("progress").get_attribute("value") or 0) == 0.25
    RunStatus.objects.filter(run=order.run_id).update(number=99, text="<b>on the way</b>", done=3)
    bar.get_by_text("<b>on the way</b>").wait_for(timeout=60_000)
    assert bar.locator("progress").evaluate("each => each.value") == 0.75
    get_run(order.run_id).cancel()
    page.locator("[data-durable-ended=cancelled]").first.wait_for(timeout=60_000)
    assert bar.inner_text().split() == ["<b>on", "the", "way</b>", "3", "of", "4", "cancelled"]
    assert complaints == []
