"""An order's workflow: what the rows say when all goes well, when it does not, and when the process dies anywhere."""

from decimal import Decimal

import pytest

from durable import Context, Handle, get_run
from durable.errors import RunCancelledError
from durable.testing import Harness
from project.shop import checkout, steps
from project.shop.models import Charge, Fault, Label, Mail, Order, Refund
from project.shop.workflows import fulfil
from tests.shop.conftest import PlaceOrder
from tests.support.errors import check_failed

pytestmark = pytest.mark.django_db


def locations(order: Order) -> dict[str, str]:
    return {entry.location: entry.status for entry in get_run(order.run_id).history()}


def shipment(order: Order) -> Handle:
    [child] = get_run(order.run_id).children()
    return child


def attempts(order: Order, location: str) -> int:
    return next(entry.attempts for entry in get_run(order.run_id).history() if entry.location == location)


def test_an_approved_order_is_charged_and_sent(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    order.refresh_from_db()
    assert order.status == Order.Status.PAID
    assert get_run(order.run_id).state == "sleeping"

    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)

    order.refresh_from_db()
    label = Label.objects.get()
    assert order.status == Order.Status.SENT
    assert get_run(order.run_id).output == {"label": label.tracking}
    assert [charge.amount for charge in Charge.objects.all()] == [Decimal("14.00")]
    assert order.charge == Charge.objects.get()
    assert Mail.objects.filter(subject=f"We are packing order {order.pk}").count() == 1
    assert not Refund.objects.exists()


def test_a_rejected_order_is_refunded(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    checkout.answer(order, "rejected", by="tests")
    harness.finish(order.run_id)

    order.refresh_from_db()
    run = get_run(order.run_id)
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.message == "rejected by the shopkeeper"
    assert order.status == Order.Status.REFUNDED
    assert Refund.objects.get().charge == Charge.objects.get()
    assert not Label.objects.exists()


def test_the_first_answer_counts(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    checkout.answer(order, "approved", by="tests")
    checkout.answer(order, "rejected", by="tests")
    harness.finish(order.run_id)
    assert get_run(order.run_id).state == "completed"


def test_an_answer_before_the_question_is_not_lost(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert get_run(order.run_id).state == "completed"


def test_without_an_answer_the_deadline_returns_the_money(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    harness.advance("2 days")
    harness.settle()

    order.refresh_from_db()
    check_failed(get_run(order.run_id), "MessageTimeoutError")
    assert order.status == Order.Status.REFUNDED


def test_a_cancelled_order_is_undone_whole(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    checkout.answer(order, "approved", by="tests")
    harness.settle()
    assert locations(order)["cool off"] == "pending"

    checkout.cancel(order)
    harness.settle()

    order.refresh_from_db()
    run = get_run(order.run_id)
    assert run.state == "cancelled"
    with pytest.raises(RunCancelledError):
        run.result(timeout=0)
    assert order.status == Order.Status.REFUNDED
    assert Label.objects.get().is_void
    assert Refund.objects.count() == 1


def test_a_bank_that_fails_twice_charges_once(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.BANK, on=True, first_attempts=2)
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert get_run(order.run_id).state == "completed"
    assert attempts(order, "charge") == 3
    assert Charge.objects.count() == 1


def test_a_carrier_that_is_mended_in_time_delays_the_parcel_only(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.CARRIER, on=True)
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.settle()
    assert {entry.location: entry.status for entry in shipment(order).history()} == {
        "from here on": "completed",
        "pack": "running",
        "pack/label/buy": "failed",
        "pack/mail/send": "completed",
    }
    assert not Label.objects.exists()

    Fault.switch(Fault.Service.CARRIER, on=False)
    harness.finish(order.run_id)
    assert get_run(order.run_id).state == "completed"
    assert Label.objects.count() == 1
    assert Mail.objects.filter(subject__startswith="We are packing").count() == 1


def test_a_shipment_is_a_child_of_its_order(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    child = shipment(order)
    assert (child.id, child.state, child.parent) == (f"order-{order.pk}:ship", "completed", get_run(order.run_id))
    assert child.output == Label.objects.get().tracking


def test_a_shipment_that_is_under_way_is_undone_with_its_order(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.POST, on=True)
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.settle()
    assert not Label.objects.get().is_void
    assert shipment(order).state == "sleeping"

    checkout.cancel(order)
    harness.settle()
    assert (get_run(order.run_id).state, shipment(order).state) == ("cancelled", "cancelled")
    assert Label.objects.get().is_void
    assert Refund.objects.count() == 1


def test_a_carrier_that_stays_away_gives_the_money_back(harness: Harness, place_order: PlaceOrder) -> None:
    Fault.switch(Fault.Service.CARRIER, on=True)
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    order.refresh_from_db()
    assert (get_run(order.run_id).state, shipment(order).state) == ("failed", "failed")
    assert order.status == Order.Status.REFUNDED
    assert Refund.objects.count() == 1


def rows(order: Order) -> dict[str, int | str]:
    """What the order says of itself, and what the bank, the carrier and the post did for it."""
    order.refresh_from_db()
    return {
        "status": order.status,
        "charges": Charge.objects.filter(reference=order.payment_reference).count(),
        "refunds": Refund.objects.count(),
        "labels": Label.objects.filter(is_void=False).count(),
        "void labels": Label.objects.filter(is_void=True).count(),
        "mails": Mail.objects.filter(subject__startswith="We are packing").count(),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("approved", {"status": "sent", "charges": 1, "refunds": 0, "labels": 1, "void labels": 0, "mails": 1}),
        ("rejected", {"status": "refunded", "charges": 1, "refunds": 1, "labels": 0, "void labels": 0, "mails": 0}),
        (None, {"status": "refunded", "charges": 1, "refunds": 1, "labels": 0, "void labels": 0, "mails": 0}),
    ],
)
def test_wherever_the_process_dies_the_rows_are_the_same(
    harness: Harness, place_order: PlaceOrder, verdict: str | None, expected: dict[str, int | str]
) -> None:
    order = place_order()

    def drive(world: Harness, run: Handle) -> None:
        world.settle()
        if verdict is not None and run.state == "sleeping":
            world.send(run, verdict, id="answer")
        world.finish(run)

    def check() -> None:
        assert rows(order) == expected

    assert harness.crash_everywhere(fulfil, order.pk, drive=drive, check=check) >= 8


@pytest.mark.slow
def test_wherever_the_process_dies_a_cancelled_order_is_undone(harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()

    def drive(world: Harness, run: Handle) -> None:
        if run.state == "pending":
            world.send(run, "approved", id="answer")
        world.settle()
        world.advance("1 second")  # a crash may have used up the moment of the label
        world.settle()
        if run.state == "sleeping":
            run.cancel(rollback=True)
        world.settle()

    def check() -> None:
        undone = {"charges": 1, "refunds": 1, "labels": 0, "void labels": 1, "mails": 1}
        assert rows(order) == {"status": "refunded", **undone}

    assert harness.crash_everywhere(fulfil, order.pk, drive=drive, check=check) >= 8


def test_without_once_a_card_would_be_charged_twice(harness: Harness, place_order: PlaceOrder) -> None:
    """The bank does not help: it takes money as often as it is asked. So the tests above can fail."""
    order = place_order()

    def careless(ctx: Context, order_id: int) -> None:
        ctx.step("charge", steps.charge_card, order_id)

    def check() -> None:
        assert rows(order)["charges"] == 1

    with pytest.raises(AssertionError, match="2 == 1"):
        harness.crash_everywhere(careless, order.pk, check=check)
