"""The refund of an order that was sent: two colleagues decide, the parcel comes back, and the customer watches."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import django
import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import Client, override_settings
from django.urls import reverse

from durable import Handle, get_run
from durable.errors import NotAllowedError
from durable.people import questions_for
from durable.testing import Harness
from project.shop import checkout, steps
from project.shop.models import Mail, Order, Refund
from project.shop.workflows import refund
from tests.shop.conftest import PlaceOrder

pytestmark = pytest.mark.django_db

QUESTION = "give the money back"
YES = {"decision": "yes", "words": "Sorry!"}


@pytest.fixture
def harness(db: None) -> Iterator[Harness]:
    """Runs in the database, where the admin reads them."""
    with Harness(now=datetime(2026, 1, 1, 12, tzinfo=UTC), store="database") as harness:
        yield harness


@pytest.fixture
def order(harness: Harness, place_order: PlaceOrder) -> Order:
    """An order that was sent."""
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    order.refresh_from_db()
    return order


@pytest.fixture
def run(harness: Harness, order: Order) -> Handle:
    assert checkout.ask_for_refund(order)
    harness.settle()
    return get_run(order.refund_run_id)


def colleague(name: str) -> User:
    user = User.objects.create_user(name, f"{name}@example.org", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="add_refund"))
    return user


@pytest.fixture
def colleagues(db: None) -> list[User]:
    return [colleague(name) for name in ("mia", "tom")]


def test_two_colleagues_and_the_parcel_give_the_money_back(
    harness: Harness, order: Order, run: Handle, colleagues: list[User]
) -> None:
    for each in colleagues:
        [question] = questions_for(each)
        question.answer(YES, by=each)
        harness.settle()
    assert run.status is not None
    assert (run.status.text, Refund.objects.count()) == ("agreed; please send the parcel back", 0)
    checkout.hand_back(order)
    harness.settle()
    order.refresh_from_db()
    assert (run.output, order.status) == ("given back", Order.Status.REFUNDED)
    assert Refund.objects.get().charge == order.charge
    assert Mail.objects.get(subject="Your money is on its way").body.startswith("Sorry!\nSorry!")


def test_one_colleague_is_not_two(harness: Harness, run: Handle, colleagues: list[User]) -> None:
    harness.answer(run, QUESTION, YES, by=colleagues[0])
    with pytest.raises(NotAllowedError):
        harness.answer(run, QUESTION, YES, by=colleagues[0])
    with pytest.raises(NotAllowedError):
        harness.answer(run, QUESTION, YES, by=User.objects.create_user("eve"))
    harness.settle()
    assert run.state == "sleeping"


def test_the_parcel_may_be_back_before_they_agree(
    harness: Harness, order: Order, run: Handle, colleagues: list[User]
) -> None:
    checkout.hand_back(order)
    harness.advance("1 hour")
    for each in colleagues:
        harness.answer(run, QUESTION, YES, by=each)
    harness.settle()
    assert run.output == "given back"


def refused(harness: Harness, run: Handle, colleagues: list[User]) -> None:
    harness.answer(run, QUESTION, {"decision": "no", "words": "It is scratched."}, by=colleagues[0])


def undecided(harness: Harness, _run: Handle, _colleagues: list[User]) -> None:
    harness.advance("10 days")


def not_sent_back(harness: Harness, run: Handle, colleagues: list[User]) -> None:
    for each in colleagues:
        harness.answer(run, QUESTION, YES, by=each)
    harness.settle()
    harness.advance("30 days")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (refused, "It is scratched."),
        (undecided, "Nobody has decided in time."),
        (not_sent_back, "The parcel did not come back."),
    ],
)
def test_otherwise_the_money_is_kept_and_the_customer_hears_why(
    client: Client, harness: Harness, order: Order, run: Handle, colleagues: list[User], happens: Any, why: str
) -> None:
    happens(harness, run, colleagues)
    harness.settle()
    order.refresh_from_db()
    assert (run.output, order.status) == ("kept", Order.Status.SENT)
    assert not Refund.objects.exists()
    assert why in Mail.objects.get(subject="Your money is not given back").body
    assert "Your money is not given back" in client.get(order.get_absolute_url()).content.decode()


def test_a_parcel_that_is_back_is_inspected_once(harness: Harness, order: Order, run: Handle) -> None:
    for _ in range(2):
        checkout.hand_back(order)
    harness.settle()
    assert get_run(f"shop.inspect:back-{order.pk}").state == "completed"
    assert Mail.objects.get(to=steps.KEEPER).subject == f"Order {order.pk} is back"


def test_the_customer_watches_on_the_page_of_the_order(
    client: Client, harness: Harness, order: Order, colleagues: list[User]
) -> None:
    ask, back = (reverse(f"shop:{name}", args=[order.token]) for name in ("refund", "hand-back"))
    assert f'action="{ask}"' in client.get(order.get_absolute_url()).content.decode()
    for _ in range(2):
        assert client.post(ask)["Location"] == order.get_absolute_url()
    assert "A worker asks the colleagues" in client.get(order.get_absolute_url()).content.decode()
    harness.settle()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "Two colleagues look at it" in page
    assert "waits for colleagues to decide" in page
    assert "data-ended" not in page
    assert page.count("data-durable-progress") == 2
    assert ask not in page
    assert f'action="{back}"' in page

    run = get_run(order.refund_run_id)
    for each in colleagues:
        harness.answer(run, QUESTION, YES, by=each)
    assert client.post(back)["Location"] == order.get_absolute_url()
    harness.settle()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "Your money is on its way" in page
    assert page.count('<li class="done">') == len(["Sent", "Decided", "Parcel back", "Refunded"])
    assert "data-ended" in page
    assert client.post(back).status_code == 400


def test_only_an_order_that_was_sent_is_given_back(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    answer = client.post(reverse("shop:refund", args=[order.token]), follow=True)
    assert "Only an order that was sent" in answer.content.decode()
    assert client.post(reverse("shop:hand-back", args=[order.token])).status_code == 400
    assert client.get(reverse("shop:refund", args=[order.token])).status_code == 405


def test_a_colleague_answers_from_the_page_of_the_post_without_a_login(
    client: Client, harness: Harness, order: Order, colleagues: list[User]
) -> None:
    backend = "project.shop.services.post.Postman"
    mailing = {"EMAIL_BACKEND": backend} if django.VERSION < (6, 1) else {"MAILERS": {"default": {"BACKEND": backend}}}
    with override_settings(**mailing):
        checkout.ask_for_refund(order)
        harness.settle()
    assert mail.outbox == []
    assert client.get(reverse("shop:post")).status_code == 403
    keeper = Client()
    keeper.force_login(User.objects.create_superuser("keeper"))
    page = keeper.get(reverse("shop:post")).content.decode()
    links = re.findall(r'href="https?://[^/]+(/durable/questions/[^"]+)"', page)
    assert len(links) == 2, page
    form = client.get(links[0])
    assert f"You answer as {colleagues[1].username}" in form.content.decode()
    token = form.cookies["csrftoken"].value
    answer = client.post(links[0], {**YES, "csrfmiddlewaretoken": token})
    assert "Somebody else has to agree too" in answer.content.decode()
    assert questions_for(colleagues[1]) == []
    assert len(questions_for(colleagues[0])) == 1


def test_staff_find_the_inbox_the_admin_and_the_post_beside_an_order(client: Client, order: Order, run: Handle) -> None:
    addresses = [
        reverse("admin:shop_order_change", args=[order.pk]),
        reverse("admin:durable_run_inbox"),
        reverse("shop:post"),
    ]
    page = client.get(order.get_absolute_url()).content.decode()
    assert not [each for each in addresses if f'href="{each}"' in page]
    client.force_login(User.objects.create_superuser("keeper"))
    page = client.get(order.get_absolute_url()).content.decode()
    assert [each for each in addresses if f'href="{each}"' in page] == addresses
    assert "a colleague" not in page
    assert QUESTION in client.get(addresses[1]).content.decode()


@pytest.mark.slow
def test_wherever_the_process_dies_the_money_is_given_back_once(
    harness: Harness, order: Order, colleagues: list[User]
) -> None:
    def drive(world: Harness, run: Handle) -> None:
        world.settle()
        for each in colleagues:
            for question in questions_for(each):
                question.answer(YES, by=each)
        checkout.hand_back(order)
        world.finish(run)

    def check() -> None:
        assert Refund.objects.count() == 1
        assert Mail.objects.filter(subject="Your money is on its way").count() == 1

    assert harness.crash_everywhere(refund, order.pk, drive=drive, check=check) >= 5
