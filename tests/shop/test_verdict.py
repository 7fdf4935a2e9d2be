"""The demo's verdict: it holds when the rows are right, and each wrong row is found and named."""

from collections.abc import Callable

import pytest
from django.utils.timezone import now

from durable.models import Run
from durable.testing import Harness
from project.demo.verdict import Finding, judge
from project.shop import checkout
from project.shop.models import Charge, Label, Mail, Order, Refund
from tests.shop.conftest import PlaceOrder

pytestmark = pytest.mark.django_db

PROMISES = ["reached its end", "charged exactly once", "refunded once", "was sent"]


@pytest.fixture
def orders(harness: Harness, place_order: PlaceOrder) -> list[Order]:
    """One that was sent and one that was rejected, with the rows that workers would have left."""
    placed = [place_order(), place_order()]
    for order, verdict, state in zip(placed, ["approved", "rejected"], ["completed", "failed"], strict=True):
        checkout.answer(order, verdict, by="tests")
        assert harness.finish(order.run_id).state == state
        Run.objects.create(
            id=order.run_id, workflow="shop.fulfil", state=state, input="{}", created_at=now(), finished_at=now()
        )
    return placed


def broken(findings: list[Finding]) -> list[str]:
    return [promise for promise in PROMISES for finding in findings if promise in finding.promise and not finding.held]


def test_right_rows_hold(orders: list[Order]) -> None:
    findings = judge(orders, [orders[1].pk])
    assert len(findings) == len(PROMISES)
    assert broken(findings) == []


@pytest.mark.parametrize(
    ("disturb", "promise"),
    [
        (lambda sent, _rejected: Charge.objects.create(reference=sent.payment_reference, amount=1), PROMISES[1]),
        (
            lambda sent, _rejected: Run.objects.filter(pk=sent.run_id).update(state="running", finished_at=None),
            PROMISES[0],
        ),
        (lambda sent, _rejected: Run.objects.filter(pk=sent.run_id).delete(), PROMISES[0]),
        (lambda _sent, rejected: Refund.objects.filter(charge__order=rejected).delete(), PROMISES[2]),
        (lambda sent, _rejected: Refund.objects.create(charge=sent.charge, idempotency_key="again"), PROMISES[2]),
        (lambda sent, _rejected: Label.objects.filter(reference=f"order-{sent.pk}").delete(), PROMISES[3]),
        (lambda sent, _rejected: Mail.objects.filter(subject=f"We are packing order {sent.pk}").delete(), PROMISES[3]),
    ],
)
def test_a_wrong_row_is_found(orders: list[Order], disturb: Callable[[Order, Order], object], promise: str) -> None:
    for order in orders:
        order.refresh_from_db()
    disturb(*orders)
    assert broken(judge(orders, [orders[1].pk])) == [promise]


def test_a_refund_that_never_came_is_found_by_its_order(orders: list[Order]) -> None:
    Refund.objects.all().delete()
    found = next(finding for finding in judge(orders, [orders[1].pk]) if not finding.held)
    assert f"not so: order {orders[1].pk}" in found.found
