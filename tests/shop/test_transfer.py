"""An order that is paid by transfer: the bank's signed word counts, once, and nothing else does."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from durable import Handle, get_run
from durable.testing import Harness
from project.shop import checkout
from project.shop.models import Charge, Order, Product, Refund, Transfer
from project.shop.services import bank
from project.shop.workflows import fulfil

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clock(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank signs the time of the test."""
    monkeypatch.setattr(bank, "time", lambda: harness.now.timestamp())


@pytest.fixture
def order(harness: Harness, product: Product) -> Order:
    """An order that waits for the customer's transfer."""
    order = checkout.place_order("Ada", "ada@example.org", {product: 2}, by_transfer=True)
    harness.settle()
    return order


@pytest.fixture
def told(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bank posts reaches the shop without a server."""
    monkeypatch.setattr(bank, "deliver", lambda notice: post(harness, notice))


def post(harness: Harness, notice: bank.Notice) -> int:
    return harness.open_link(notice.url, notice.body, dict(notice.headers)).status_code


def asked(order: Order) -> Transfer:
    transfer = bank.find_transfer(order.payment_reference)
    assert transfer is not None
    return transfer


def status(order: Order) -> str:
    order.refresh_from_db()
    return order.status


def test_an_order_is_paid_when_the_bank_says_so(harness: Harness, order: Order) -> None:
    assert not Charge.objects.exists()
    for _ in range(2):  # a bank that tells it again does no harm
        assert post(harness, bank.take_transfer(asked(order).token)) == 200
    harness.settle()
    assert status(order) == Order.Status.PAID
    assert order.charge == Charge.objects.get()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert status(order) == Order.Status.SENT


def test_a_forged_word_changes_nothing(harness: Harness, order: Order) -> None:
    assert post(harness, bank.forge(asked(order).token)) == 403
    harness.settle()
    assert status(order) == Order.Status.PLACED
    assert post(harness, bank.take_transfer(asked(order).token)) == 200


def test_the_customer_is_led_to_the_bank_and_back(client: Client, harness: Harness, order: Order, told: None) -> None:
    page = client.get(order.get_absolute_url()).content.decode()
    at_bank = reverse("shop:transfer", args=[asked(order).token])
    assert "Waiting for your transfer" in page
    assert f'href="{at_bank}"' in page
    assert "waits for a signed answer" in page
    assert f'href="{order.get_absolute_url()}"' in client.get(at_bank).content.decode()

    forged = client.post(at_bank, {"verb": "forge"}, follow=True).content.decode()
    assert "answers 403" in forged
    paid = client.post(at_bank, {"verb": "pay"}, follow=True).content.decode()
    assert "answers 200" in paid
    harness.settle()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "waiting for the shopkeeper" in page
    assert at_bank not in page


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_transfer_that_comes_too_late_is_returned(
    client: Client, harness: Harness, order: Order, told: None, is_cancelled: bool
) -> None:
    if is_cancelled:
        checkout.cancel(order)
    else:
        harness.advance("3 days")
    harness.settle()
    assert status(order) == (Order.Status.CANCELLED if is_cancelled else Order.Status.UNPAID)
    assert "nothing was charged" in client.get(order.get_absolute_url()).content.decode()

    at_bank = reverse("shop:transfer", args=[asked(order).token])
    for _ in range(2):
        assert "answers 410" in client.post(at_bank, {"verb": "pay"}, follow=True).content.decode()
    assert Refund.objects.get().charge == Charge.objects.get()


def reject(order: Order) -> None:
    checkout.answer(order, "rejected", by="tests")


@pytest.mark.parametrize("stop", [reject, checkout.cancel])
def test_a_transfer_is_given_back_when_the_order_is_stopped(
    client: Client, harness: Harness, order: Order, stop: Callable[[Order], None]
) -> None:
    post(harness, bank.take_transfer(asked(order).token))
    harness.settle()
    stop(order)
    harness.settle()
    assert status(order) == Order.Status.REFUNDED
    assert Refund.objects.get().charge == Charge.objects.get()
    assert "The money has been returned" in client.get(order.get_absolute_url()).content.decode()


def test_a_shop_that_cannot_be_reached_is_told_again(client: Client, order: Order) -> None:
    Transfer.objects.update(answer_to="http://127.0.0.1:9/durable/links/dlk_x/")
    at_bank = reverse("shop:transfer", args=[asked(order).token])
    page = client.post(at_bank, {"verb": "pay"}, follow=True).content.decode()
    assert "answers nothing" in page
    assert "Tell the shop again" in page


@pytest.mark.slow
def test_wherever_the_process_dies_the_transfer_is_booked_once(harness: Harness, product: Product) -> None:
    order = checkout.place_order("Ada", "ada@example.org", {product: 2}, by_transfer=True)

    def drive(world: Harness, run: Handle) -> None:
        world.settle()
        if (transfer := bank.find_transfer(order.payment_reference)) is not None:
            assert post(world, bank.take_transfer(transfer.token)) == 200
        world.settle()
        if run.state == "sleeping":
            world.send(run, "approved", id="answer")
        world.finish(run)

    def check() -> None:
        assert status(order) == Order.Status.SENT
        assert (Charge.objects.count(), Refund.objects.count()) == (1, 0)

    assert harness.crash_everywhere(fulfil, order.pk, True, drive=drive, check=check) >= 8


def test_the_runs_of_a_transfer_are_found_at_its_order(order: Order) -> None:
    [child] = get_run(order.run_id).children()
    assert (child.id, child.state) == (f"order-{order.pk}:transfer", "sleeping")
