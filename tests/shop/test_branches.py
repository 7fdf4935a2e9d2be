"""The branch of the shop at which an order is placed signs the mails of its run."""

from __future__ import annotations

import pytest
from django.test import Client

from durable import get_run
from durable.testing import Harness
from project.shop import checkout
from project.shop.branches import current_branch
from project.shop.models import Mail, Order, Product

pytestmark = pytest.mark.django_db

ORDER = {"name": "Ada", "email": "ada@example.org", "box": "2"}


@pytest.mark.parametrize(
    ("branch", "signed"), [("hill", "The shop on the hill"), ("harbour", "The shop at the harbour")]
)
def test_the_branch_of_the_request_signs_the_mails_of_its_orders(
    product: Product, harness: Harness, branch: str, signed: str
) -> None:
    client = Client()
    assert signed in client.get(f"/?branch={branch}").content.decode()
    client.post("/", ORDER)  # the cookie remembers the branch
    order = Order.objects.get()
    assert current_branch() == "", "nothing of the request is active where the run is executed"
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert get_run(order.run_id).state == "completed"
    assert {mail.body.rpartition("\n")[2] for mail in Mail.objects.all()} == {signed}


@pytest.mark.parametrize("branch", ["", "nowhere"])
def test_an_order_at_no_branch_is_signed_by_none(product: Product, harness: Harness, branch: str) -> None:
    client = Client()
    assert "The shop" not in client.get(f"/?branch={branch}").content.decode()
    client.post("/", ORDER)
    order = Order.objects.get()
    row = harness._store.get(order.run_id)
    assert row is not None
    assert row.carried is None
