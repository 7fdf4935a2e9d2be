"""An order while the bank is away: nothing is charged twice or lost, and what nobody knows is settled by a person."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Literal

import pytest
from django.test import Client
from django.urls import reverse

from durable import Context, Handle, get_run
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.models import Cause, OperatorAction
from durable.operations import bulk
from durable.testing import Harness
from project.shop import checkout
from project.shop.models import Charge, Fault, Label, Mail, Order, Refund
from project.shop.workflows import fulfil
from tests.shop.conftest import PlaceOrder

pytestmark = pytest.mark.django_db

ORDERS = 12


@pytest.fixture
def stored(db: None) -> Iterator[Harness]:
    """Runs in the database, as in production."""
    with Harness(now=datetime(2026, 1, 1, 12, tzinfo=UTC), store="database") as harness:
        yield harness


def settled(harness: Harness) -> None:
    """Until nothing goes on by itself: the clock is moved past all retries, and not as far as an answer's deadline."""
    harness.settle()
    for _ in range(60):
        harness.advance("10 seconds")
        harness.settle()


def held(order: Order) -> list[tuple[str, str]]:
    return [(each.location, each.reason) for each in get_run(order.run_id).info().held]


def status(order: Order) -> str:
    order.refresh_from_db()
    return order.status


def test_a_bank_that_charges_and_does_not_answer_charges_once(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.BANK, on=True, first_attempts=1, late=True)
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert status(order) == Order.Status.SENT
    assert order.charge == Charge.objects.get()
    [charge] = [entry for entry in get_run(order.run_id).history() if entry.location == "charge"]
    assert (charge.status, charge.attempts) == ("completed", 1)


def test_a_bank_that_cannot_be_reached_keeps_the_order_open(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.BANK, on=True)
    order = place_order()
    settled(harness)
    assert held(order) == [("charge", "exhausted")]
    assert (get_run(order.run_id).state, status(order)) == ("sleeping", Order.Status.PLACED)
    checkout.answer(order, "approved", by="tests")  # messages are received meanwhile

    Fault.switch(Fault.Service.BANK, on=False)
    get_run(order.run_id).recover()
    harness.finish(order.run_id)
    assert status(order) == Order.Status.SENT
    assert Charge.objects.count() == 1


def test_a_charge_of_which_nobody_knows_is_found_when_the_bank_is_back(
    harness: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, late=True)
    order = place_order()
    settled(harness)
    assert held(order) == [("charge", "unknown")]
    assert Charge.objects.count() == 1

    Fault.switch(Fault.Service.BANK, on=False)
    get_run(order.run_id).recover()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert status(order) == Order.Status.SENT
    assert Charge.objects.count() == 1


@pytest.mark.slow
def test_an_operator_settles_twelve_orders_with_what_the_bank_says_by_telephone(
    stored: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, late=True)
    orders = [place_order() for _ in range(ORDERS)]
    settled(stored)
    assert [held(order) for order in orders] == [[("charge", "unknown")]] * ORDERS

    charges = {charge.reference: charge.pk for charge in Charge.objects.all()}
    for order in orders:
        get_run(order.run_id).settle("charge", done=charges[order.payment_reference])
        checkout.answer(order, "approved", by="tests")
    settled(stored)
    for order in orders:
        assert (status(order), order.charge_id) == (Order.Status.SENT, charges[order.payment_reference])
        assert get_run(order.run_id).state == "completed"
    assert Charge.objects.count() == ORDERS
    assert Label.objects.count() == ORDERS
    assert Mail.objects.filter(subject__startswith="We are packing").count() == ORDERS
    assert OperatorAction.objects.filter(action="settle", outcome="done").count() == ORDERS


@pytest.mark.slow
def test_an_operator_settles_twelve_orders_at_once_that_the_bank_has_lost(
    stored: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, late=True)
    orders = [place_order() for _ in range(ORDERS)]
    settled(stored)
    Charge.objects.all().delete()  # the bank has lost them, and says so by telephone
    Fault.switch(Fault.Service.BANK, on=False)
    [cause] = Cause.objects.filter(place="charge")
    bulk.apply("settle", Filtered(RunCriteria(cause=cause.fingerprint)), not_done=True, expected=ORDERS)
    stored.settle()
    settled_runs = OperatorAction.objects.filter(action="settle", outcome="done").values_list("run_id", flat=True)
    assert {order.run_id for order in orders} <= set(settled_runs)
    for order in orders:
        checkout.answer(order, "approved", by="tests")
    settled(stored)
    assert [status(order) for order in orders] == [Order.Status.SENT] * ORDERS
    charges = Counter(Charge.objects.values_list("reference", flat=True))
    assert charges == {order.payment_reference: 1 for order in orders}


def test_a_customer_cancels_while_the_bank_cannot_be_reached(
    client: Client, harness: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True)
    order = place_order()
    settled(harness)
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The bank does not answer; the order waits for it" in page
    assert "waits for someone to look at it, after 6 attempts" in page

    client.post(reverse("shop:cancel", args=[order.token]))
    harness.settle()
    assert (get_run(order.run_id).state, status(order)) == ("cancelled", Order.Status.CANCELLED)
    assert "nothing was charged" in client.get(order.get_absolute_url()).content.decode()
    assert not Charge.objects.exists()


@pytest.mark.parametrize("is_charged", [True, False])
def test_an_order_that_is_cancelled_in_an_outage_is_refunded_if_and_only_if_it_was_charged(
    harness: Harness, place_order: PlaceOrder, is_charged: bool
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, late=True)
    order = place_order()
    settled(harness)
    checkout.cancel(order)
    settled(harness)
    assert (get_run(order.run_id).state, held(order)) == ("rolling_back", [("charge", "unknown")])
    assert status(order) == Order.Status.PLACED
    assert not Refund.objects.exists()

    if not is_charged:
        Charge.objects.all().delete()  # the bank has lost it
    Fault.switch(Fault.Service.BANK, on=False)
    get_run(order.run_id).recover()
    settled(harness)
    assert get_run(order.run_id).state == "cancelled"
    assert status(order) == (Order.Status.REFUNDED if is_charged else Order.Status.CANCELLED)
    assert Refund.objects.count() == is_charged


def test_the_page_of_a_stopped_order_does_not_say_what_nobody_knows(
    client: Client, harness: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, late=True)
    order = place_order()
    settled(harness)
    get_run(order.run_id).cancel()  # an operator's, which undoes nothing
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The order was stopped" in page
    assert "nothing was charged" not in page
    assert "money has been returned" not in page


def fail_the_charge(run: Handle) -> None:
    run.settle("charge", fail=True)


def cancel(run: Handle) -> None:
    run.cancel()


@pytest.mark.parametrize(
    ("is_paid", "end", "state", "expected"),
    [
        (False, fail_the_charge, "failed", Order.Status.UNPAID),
        (False, cancel, "cancelled", Order.Status.CANCELLED),
        (True, cancel, "cancelled", Order.Status.STOPPED),  # an operator's cancel, which undoes nothing
    ],
)
def test_an_order_says_how_it_has_ended(
    stored: Harness, place_order: PlaceOrder, is_paid: bool, end: Callable[[Handle], None], state: str, expected: str
) -> None:
    Fault.switch(Fault.Service.BANK, on=not is_paid)
    order = place_order()
    settled(stored)
    end(get_run(order.run_id))
    stored.settle()
    assert (get_run(order.run_id).state, status(order)) == (state, expected)


def test_an_order_that_failed_unpaid_can_still_be_recovered(stored: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.BANK, on=True)
    order = place_order()
    settled(stored)
    fail_the_charge(get_run(order.run_id))
    stored.settle()
    assert status(order) == Order.Status.UNPAID

    Fault.switch(Fault.Service.BANK, on=False)
    get_run(order.run_id).recover()
    checkout.answer(order, "approved", by="tests")
    stored.finish(order.run_id)
    assert status(order) == Order.Status.SENT
    assert Charge.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "database"])
def test_wherever_the_process_dies_run_and_order_agree_on_an_end_without_a_charge(
    store: Literal["memory", "database"], db: None, place_order: PlaceOrder
) -> None:
    with Harness():
        order = place_order()
    Fault.switch(Fault.Service.BANK, on=True)

    def begin(ctx: Context, order_id: int) -> None:  # the order's run has the id of the order, as with a cart
        child = fulfil.using(id=Order.run_id_of(order_id), when_parent_ends="leave")
        ctx.start_child("fulfil", child, order_id)

    def drive(world: Harness, _run: Handle) -> None:
        settled(world)
        run = get_run(order.run_id)
        while run.info().held:  # and again in the rollback, if nobody knows whether the card was charged
            fail_the_charge(run)
            world.settle()

    def check() -> tuple[str, str, int]:
        return get_run(order.run_id).state, status(order), Charge.objects.count()

    with Harness(now=datetime(2026, 1, 1, 12, tzinfo=UTC), store=store) as harness:
        assert harness.crash_everywhere(begin, order.pk, drive=drive, check=check) >= 20
        drive(harness, fulfil.using(id=order.run_id).start(order.pk))
        assert check() == ("failed", Order.Status.UNPAID, 0)


@pytest.mark.slow
def test_wherever_the_process_dies_a_bank_that_does_not_answer_charges_once(
    harness: Harness, place_order: PlaceOrder
) -> None:
    Fault.switch(Fault.Service.BANK, on=True, first_attempts=1, late=True)
    order = place_order()

    def drive(world: Harness, run: Handle) -> None:
        world.settle()
        if run.state == "sleeping":
            world.send(run, "approved", id="answer")
        world.finish(run)

    def check() -> tuple[int, int]:
        return Charge.objects.count(), Label.objects.count()

    assert harness.crash_everywhere(fulfil, order.pk, drive=drive, check=check) >= 8
