"""The demo's verdict: it holds when the rows are right, and each wrong row is found and named."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from durable import get_run
from durable.models import Child, Run
from durable.testing import Harness
from project.demo.verdict import Finding, judge, judge_cart, judge_report
from project.shop import checkout
from project.shop.models import Charge, Label, Mail, Order, Product, Refund
from project.shop.workflows import nightly
from tests.shop.conftest import PlaceOrder

pytestmark = pytest.mark.django_db

PROMISES = ["reached its end", "charged exactly once", "refunded once", "was sent", "one shipment"]


@pytest.fixture
def harness(db: None) -> Iterator[Harness]:
    with Harness(now=datetime(2026, 1, 1, 12, tzinfo=UTC), store="database") as harness:
        yield harness


@pytest.fixture
def orders(harness: Harness, place_order: PlaceOrder) -> list[Order]:
    """One that was sent and one that was rejected."""
    placed = [place_order(), place_order()]
    for order, verdict, state in zip(placed, ["approved", "rejected"], ["completed", "failed"], strict=True):
        checkout.answer(order, verdict, by="tests")
        assert harness.finish(order.run_id).state == state
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
        (lambda _sent, rejected: Refund.objects.filter(charge__order=rejected).delete(), PROMISES[2]),
        (lambda sent, _rejected: Refund.objects.create(charge=sent.charge, idempotency_key="again"), PROMISES[2]),
        (lambda sent, _rejected: Label.objects.filter(reference=f"order-{sent.pk}").delete(), PROMISES[3]),
        (lambda sent, _rejected: Mail.objects.filter(subject=f"We are packing order {sent.pk}").delete(), PROMISES[3]),
        (lambda sent, _rejected: Child.objects.filter(parent=sent.run_id).delete(), PROMISES[4]),
        (lambda sent, _rejected: Run.objects.filter(pk=f"{sent.run_id}:ship").update(state="failed"), PROMISES[4]),
    ],
)
def test_a_wrong_row_is_found(orders: list[Order], disturb: Callable[[Order, Order], object], promise: str) -> None:
    for order in orders:
        order.refresh_from_db()
    disturb(*orders)
    assert broken(judge(orders, [orders[1].pk])) == [promise]


def test_an_order_without_a_run_is_found(orders: list[Order]) -> None:
    Run.objects.filter(pk=orders[0].run_id).delete()
    assert broken(judge(orders, [orders[1].pk])) == [PROMISES[0], PROMISES[4]]


def test_two_carts_of_one_visitor_are_found(orders: list[Order], product: Product) -> None:
    order = orders[0]
    assert not judge_cart({"a"}, order).held, "an order of one line"
    other = {slug: Product.objects.create(slug=slug, name=slug, description="", price=1) for slug in ("x", "y")}
    order.add_lines({other["x"]: 1, other["y"]: 1})
    assert judge_cart({"a"}, order).held
    assert not judge_cart({"a", "b"}, order).held
    assert not judge_cart({"a"}, None).held


def test_a_report_without_an_order_is_found(orders: list[Order], harness: Harness) -> None:
    Order.objects.update(placed_at=harness.now)
    harness.finish(nightly.using(id="full").start())
    assert judge_report(get_run("full"), orders, [orders[1].pk]).held
    assert not judge_report(get_run("full"), orders, []).held
    nightly.using(id="open").start()
    assert not judge_report(get_run("open"), orders, [orders[1].pk]).held


def test_a_refund_that_never_came_is_found_by_its_order(orders: list[Order]) -> None:
    Refund.objects.all().delete()
    found = next(finding for finding in judge(orders, [orders[1].pk]) if not finding.held)
    assert f"not so: order {orders[1].pk}" in found.found
