"""The shop's pages: what they show, what their buttons do, and that none of it needs JavaScript."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from durable import Handle, get_run
from durable.testing import Harness
from project.shop import checkout
from project.shop.models import Customer, Fault, Mail, Order, Product, Review
from project.shop.progress import TIMES, progress_of_example
from project.shop.services import bank
from project.shop.services.line import ServiceDownError
from tests.shop.conftest import PlaceOrder

pytestmark = pytest.mark.django_db

ORDER = {"name": "Ada", "email": "ada@example.org", "box": "2"}


def progress_url(order: Order) -> str:
    return reverse("shop:order-progress", args=[order.token])


def test_the_storefront_shows_the_shelf(client: Client, product: Product) -> None:
    page = client.get("/").content.decode()
    assert product.name in page
    assert "€ 7.00" in page


def test_an_order_starts_its_run(client: Client, product: Product, harness: Harness) -> None:
    answer = client.post("/", ORDER)
    order = Order.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == order.get_absolute_url()
    assert order.total == Decimal("14.00")
    assert [(line.product, line.quantity) for line in order.lines.all()] == [(product, 2)]
    assert get_run(order.run_id).state == "pending"


def staff(client: Client, *permissions: str) -> Client:
    """The client, as a staff user with these permissions."""
    user = get_user_model().objects.create_user("staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def test_staff_break_the_bank_and_repair_it(client: Client, product: Product) -> None:
    assert "Break the bank" not in client.get("/").content.decode()
    staff(client, "change_fault")
    assert "Break the bank" in client.get("/").content.decode()
    for wanted, offered, is_on in (("broken", "Repair the bank", True), ("working", "Break the bank", False)):
        page = client.post("/bank/", {"bank": wanted}, follow=True)
        assert offered in page.content.decode()
        assert Fault.objects.get(service=Fault.Service.BANK).is_on is is_on
        if is_on:
            with pytest.raises(ServiceDownError, match="staff can repair it on the shop's first page"):
                bank.find_charge("order-1")
    assert client.post("/bank/", {"bank": "robbed"}).status_code == 400
    assert client.get("/bank/").status_code == 405


def test_nobody_else_breaks_it(client: Client, product: Product) -> None:
    assert client.post("/bank/", {"bank": "broken"}).status_code == 403
    staff(client)
    assert client.post("/bank/", {"bank": "broken"}).status_code == 403
    assert "Break the bank" not in client.get("/").content.decode()
    assert not Fault.objects.filter(is_on=True).exists()


def test_staff_have_a_link_from_an_order_to_its_run(client: Client, product: Product, harness: Harness) -> None:
    client.post("/", ORDER)
    order = Order.objects.get()
    address = f'href="/admin/durable/run/{order.run_id}/change/"'
    assert address not in client.get(order.get_absolute_url()).content.decode()
    staff(client)
    assert address in client.get(order.get_absolute_url()).content.decode()


def test_an_order_that_is_not_placed_starts_nothing(
    client: Client, product: Product, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows and the run are one transaction: an error after the start takes back both."""

    def fail(_self: Order, _quantities: object) -> None:
        raise RuntimeError("no pencil")

    monkeypatch.setattr(Order, "add_lines", fail)
    with pytest.raises(RuntimeError, match="no pencil"):
        checkout.place_order("Ada", "ada@example.org", {product: 1})
    assert not Order.objects.exists()
    assert not Customer.objects.exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"box": "0"}, "Choose at least one thing"),
        ({"box": "21"}, "less than or equal to 20"),
        ({"box": "-1"}, "greater than or equal to 0"),
        ({"email": "nowhere"}, "valid email"),
        ({"name": ""}, "required"),
    ],
)
def test_a_wrong_order_is_said_to_be_wrong(
    client: Client, product: Product, changes: dict[str, str], complaint: str
) -> None:
    answer = client.post("/", {**ORDER, **changes})
    assert answer.status_code == 422
    assert complaint in answer.content.decode()
    assert not Order.objects.exists()


def test_a_visitor_sees_their_own_orders_and_staff_see_all(
    client: Client, product: Product, harness: Harness, place_order: PlaceOrder
) -> None:
    other = place_order()
    client.post("/", ORDER)
    mine = Order.objects.exclude(pk=other.pk).get()
    page = client.get("/").content.decode()
    assert mine.get_absolute_url() in page
    assert other.get_absolute_url() not in page

    client.force_login(get_user_model().objects.create_user("keeper", is_staff=True))
    assert other.get_absolute_url() in client.get("/").content.decode()


def test_an_order_is_approved_on_its_page(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "Waiting for a worker" in page
    assert 'value="approved"' not in page

    harness.settle()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "waiting for the shopkeeper" in page
    assert 'value="approved"' in page
    assert 'data-location="charge"' in page

    answer = client.post(reverse("shop:answer", args=[order.token]), {"verb": "approved"})
    assert answer["Location"] == order.get_absolute_url()
    harness.finish(order.run_id)
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The parcel is on its way" in page
    assert "data-ended" in page
    assert "live.js" not in page
    assert "http-equiv" not in page
    assert 'value="cancel"' not in page


def test_an_order_is_rejected_on_its_page(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    client.post(reverse("shop:answer", args=[order.token]), {"verb": "rejected"})
    harness.settle()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The money has been returned" in page
    assert "rejected by the shopkeeper" in page
    assert "undo charge" in page


def test_an_order_is_cancelled_on_its_page(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    client.post(reverse("shop:cancel", args=[order.token]))
    harness.settle()
    assert "The money has been returned" in client.get(order.get_absolute_url()).content.decode()

    for name, verb in [("cancel", "cancel"), ("answer", "approved")]:
        answer = client.post(reverse(f"shop:{name}", args=[order.token]), {"verb": verb}, follow=True)
        assert "Too late" in answer.content.decode()


@pytest.mark.parametrize("is_charged", [True, False])
def test_the_page_of_a_stopped_order_says_whether_money_was_taken(
    client: Client, harness: Harness, place_order: PlaceOrder, is_charged: bool
) -> None:
    order = place_order()
    if is_charged:
        harness.settle()
    get_run(order.run_id).cancel()  # an operator's cancel compensates only with rollback=True
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The order was stopped" in page
    assert ("nothing was charged" in page) is not is_charged


def test_an_order_outlives_the_record_of_its_run(client: Client, place_order: PlaceOrder) -> None:
    with Harness():
        order = place_order()
    order.status = Order.Status.SENT
    order.save()
    page = client.get(order.get_absolute_url()).content.decode()
    assert "The parcel is on its way" in page
    assert "no longer recorded" in page
    answer = client.post(reverse("shop:cancel", args=[order.token]), follow=True)
    assert "Too late" in answer.content.decode()


def test_an_order_is_only_approved_or_rejected(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    assert client.post(reverse("shop:answer", args=[order.token]), {"verb": "stop"}).status_code == 400


def test_progress_is_sent_only_when_it_has_changed(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    first = client.get(progress_url(order))
    assert first.status_code == 200
    version = first["X-Version"]
    assert f'data-version="{version}"' in client.get(order.get_absolute_url()).content.decode()
    assert client.get(progress_url(order), {"version": version}).status_code == 204

    harness.settle()
    second = client.get(progress_url(order), {"version": version})
    assert second.status_code == 200
    assert second["X-Version"] != version
    assert "<html" not in second.content.decode()


@pytest.mark.parametrize("name", ["answer", "cancel", "review", "refund", "hand-back"])
def test_what_changes_something_is_posted_with_a_token(name: str, harness: Harness, place_order: PlaceOrder) -> None:
    client = Client(enforce_csrf_checks=True)
    url = reverse(f"shop:{name}", args=[place_order().token])
    assert client.get(url).status_code == 405
    assert client.post(url, {"verb": "approved"}).status_code == 403


def test_pages_have_no_inline_script_or_style(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    harness.settle()
    for url in ("/", order.get_absolute_url(), reverse("shop:examples")):
        page = client.get(url).content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=", page)
        assert all("src=" in script for script in re.findall(r"<script[^>]*>", page))


def test_what_is_typed_in_is_shown_as_text(client: Client, harness: Harness, product: Product) -> None:
    client.post("/", {**ORDER, "name": "<script>alert(1)</script>"})
    page = client.get(Order.objects.get().get_absolute_url()).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_what_is_typed_in_turns_no_other_text_round(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    Customer.objects.update(name="Ada \u202e")
    page = client.get(order.get_absolute_url()).content.decode()
    assert "For <bdi>Ada \u202e</bdi>, placed at" in page
    Review.objects.create(order=order, stars=5, text="good \u202e")
    page = client.get(order.get_absolute_url()).content.decode()
    assert "5 of 5. <bdi>good \u202e</bdi></p>" in page


def test_an_unknown_order_is_not_found(client: Client) -> None:
    assert client.get(reverse("shop:order", args=[uuid4()])).status_code == 404
    assert client.get(reverse("shop:example", args=[uuid4()])).status_code == 404


def test_a_review_starts_its_thanks(client: Client, harness: Harness, place_order: PlaceOrder) -> None:
    order = place_order()
    url = reverse("shop:review", args=[order.token])
    client.post(url, {"stars": "6", "text": "Too good"})
    assert not Review.objects.exists()
    client.post(url, {"stars": "5", "text": "Purr"})
    harness.settle()
    assert Mail.objects.filter(subject="Thank you, Ada").count() == 1

    answer = client.post(url, {"stars": "1", "text": "Hiss"}, follow=True)
    assert "has a review already" in answer.content.decode()
    assert Review.objects.get().stars == 5


@pytest.mark.parametrize("name", ["subscription", "postcard", "surprise", "gallery", "describe"])
def test_an_example_is_run_from_its_page(client: Client, harness: Harness, name: str) -> None:
    url = reverse("shop:start-example", args=[name])
    assert f'action="{url}"' in client.get(reverse("shop:examples")).content.decode()
    answer = client.post(url)
    harness.settle()
    page = client.get(answer["Location"]).content.decode()
    assert 'data-location="' in page
    assert "The rule" in page


def test_a_subscription_is_stopped_from_its_page(client: Client, harness: Harness) -> None:
    url = client.post(reverse("shop:start-example", args=["subscription"]))["Location"]
    harness.settle()
    assert 'value="stop"' in client.get(url).content.decode()
    for _ in range(2):
        assert client.post(f"{url}stop/")["Location"] == url
        harness.settle()
    assert "Returned 1" in client.get(url).content.decode()


def test_a_text_is_streamed_word_by_word(client: Client, product: Product, harness: Harness) -> None:
    url = client.post(reverse("shop:start-example", args=["describe"]))["Location"]
    assert f'data-stream="{url}stream/"' in client.get(url).content.decode()
    harness.settle()
    answer = client.get(f"{url}stream/")
    assert answer["Content-Type"] == "text/event-stream"
    kept = Product.objects.order_by("price", "pk")[0]
    assert answer.content.decode().count("event: chunk") == len(kept.description.split())
    assert client.get(f"{url}stream/", headers={"Last-Event-ID": "end"}).status_code == 204


def test_an_example_that_emits_nothing_has_no_stream(client: Client, harness: Harness) -> None:
    url = client.post(reverse("shop:start-example", args=["gallery"]))["Location"]
    assert "data-stream" not in client.get(url).content.decode()
    assert client.get(f"{url}stream/").status_code == 404


def test_what_a_trigger_starts_is_not_started_by_hand(client: Client) -> None:
    assert client.post(reverse("shop:start-example", args=["fulfil"])).status_code == 404
    assert client.post(reverse("shop:start-example", args=["nothing"])).status_code == 404


def test_an_operator_breaks_and_mends_a_service_in_the_admin(admin_client: Client) -> None:
    for service in Fault.Service:
        Fault.switch(service, on=False)
    url = reverse("admin:shop_fault_changelist")
    page = admin_client.get(url)
    switches = list(page.context["cl"].result_list)
    assert [switch.service for switch in switches] == ["bank", "carrier", "pictures", "post"]
    form = {"form-TOTAL_FORMS": "4", "form-INITIAL_FORMS": "4", "_save": "Save", "form-0-is_on": "on"}
    form |= {f"form-{number}-id": str(switch.pk) for number, switch in enumerate(switches)}
    admin_client.post(url, form)
    assert [switch.service for switch in Fault.objects.filter(is_on=True)] == ["bank"]


@pytest.mark.parametrize(
    "model", ["product", "customer", "order", "charge", "transfer", "refund", "label", "mail", "review"]
)
def test_the_admin_lists_what_happened(
    admin_client: Client, harness: Harness, place_order: PlaceOrder, model: str
) -> None:
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    assert admin_client.get(reverse(f"admin:shop_{model}_changelist")).status_code == 200
    assert admin_client.get(reverse("admin:shop_order_change", args=[order.pk])).status_code == 200


def test_a_cart_is_filled_and_ordered_on_its_page(client: Client, product: Product, harness: Harness) -> None:
    assert "Nothing is in it" in client.get("/cart/").content.decode()
    assert client.get("/cart/progress/").status_code == 404

    for _ in range(2):
        assert client.post("/", {**ORDER, "verb": "cart"})["Location"] == "/cart/"
    assert not Order.objects.exists()
    harness.settle()
    page = client.get("/cart/").content.decode()
    assert f"4 {TIMES} Cardboard box: € 28.00" in page
    assert 'value="order"' in page
    assert client.get("/cart/progress/").status_code == 200

    assert client.post("/cart/click/", {"verb": "order"})["Location"] == "/cart/"
    harness.settle()
    order = Order.objects.get()
    assert (order.customer.email, order.total) == ("ada@example.org", Decimal("28.00"))
    page = client.get("/cart/").content.decode()
    assert f'href="{order.get_absolute_url()}"' in page
    assert order.get_absolute_url() in client.get("/").content.decode()

    late = client.post("/cart/click/", {"verb": "order"}, follow=True)
    assert "Too late: this cart has come to its end." in late.content.decode()
    client.post("/", {**ORDER, "verb": "cart"})
    harness.settle()
    assert f"2 {TIMES} Cardboard box" in client.get("/cart/").content.decode()


def test_a_cart_is_emptied(client: Client, product: Product, harness: Harness) -> None:
    client.post("/", {**ORDER, "verb": "cart"})
    harness.settle()
    client.post("/cart/click/", {"verb": "empty"})
    harness.settle()
    assert "This cart was left" in client.get("/cart/").content.decode()
    assert client.post("/cart/click/", {"verb": "steal"}).status_code == 400
    assert client.get("/cart/click/").status_code == 405
    assert not Order.objects.exists()


def test_each_visitor_has_a_cart(client: Client, product: Product, harness: Harness) -> None:
    client.post("/", {**ORDER, "verb": "cart"})
    other = Client()
    other.post("/", {**ORDER, "box": "1", "verb": "cart"})
    harness.settle()
    assert f"2 {TIMES} Cardboard box" in client.get("/cart/").content.decode()
    assert f"1 {TIMES} Cardboard box" in other.get("/cart/").content.decode()


def test_the_steps_of_a_shipment_are_on_the_page_of_its_order(
    client: Client, harness: Harness, place_order: PlaceOrder
) -> None:
    order = place_order()
    checkout.answer(order, "approved", by="tests")
    harness.finish(order.run_id)
    page = client.get(order.get_absolute_url()).content.decode()
    assert 'data-location="ship"' in page
    assert 'data-location="ship/pack/label/buy"' in page


@dataclass
class Standing:
    """A run that has recorded nothing yet, as far as a page of the shop looks at it."""

    state: str
    error: None = None
    wake_at: None = None
    output: None = None

    def history(self) -> list[Any]:
        return []

    def children(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("state", "headline"),
    [("pending", "Waiting for a worker"), ("sleeping", "Waiting for a worker"), ("running", "A worker has it")],
)
def test_a_run_is_said_to_have_a_worker_only_while_one_has_it(state: str, headline: str) -> None:
    assert progress_of_example(cast("Handle[Any]", Standing(state)), "").headline == headline
