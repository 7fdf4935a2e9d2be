"""What the shop's workflows do to the world, one unit of work in each function, and how it is undone.

A step's function may run more often than it is recorded. So each of these is either run with `atomic=True`, which makes
its rows and its record one commit, or with `once=True` and a function that finds out whether it was done, or hands the
step's idempotency key to the service, or asks first. Handlers of rollback get the step's output and must bear
repetition too.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db.models import Count, Q, Sum

from durable import Found, NotDone, RollbackContext, RunInfo, current_step
from durable.hooks.signatures import stripe
from project.shop.branches import current_branch
from project.shop.models import Customer, Order, Product, Subscription
from project.shop.services import bank, carrier, pictures, post, writer

__all__ = [
    "add_up_day",
    "ask_for_transfer",
    "book_transfer",
    "buy_label",
    "charge_card",
    "charge_month",
    "cutest_cat",
    "end_order",
    "fetch_picture",
    "find_order_charge",
    "give_money_back",
    "hand_over",
    "keep_description",
    "list_cats",
    "look_up_customer",
    "mark_paid",
    "refund_card",
    "send_mail",
    "send_order_mail",
    "send_report",
    "signed_by_bank",
    "tell_customer",
    "void_label",
    "write_description",
    "write_order",
]

KEEPER = "keeper@example.org"

#: Whether a request is the bank's: it signs as Stripe does.
signed_by_bank = stripe(lambda: settings.SHOP["BANK_SECRET"])


def charge_card(order_id: int) -> int:
    """Take the money of an order; the id of the charge.

    The bank charges as often as it is asked: that the card is charged once is the work of `once=True` alone. The key
    only lets `find_order_charge` find what this call has done.
    """
    step = current_step()
    order = Order.objects.get(pk=order_id)
    charge = bank.charge(order.payment_reference, order.total, request=step.idempotency_key, attempt=step.attempt)
    return charge.pk


def find_order_charge(_order_id: int) -> Found[int] | NotDone:
    """Ask the bank whether `charge_card` has taken the money. The question comes after the attempt that it is about."""
    step = current_step()
    charge = bank.find_request(step.idempotency_key, attempt=step.attempt + 1)
    return NotDone("the bank has no such charge") if charge is None else Found(charge.pk)


def refund_card(rollback: RollbackContext, charge_id: int) -> None:
    """Give the money back."""
    bank.refund(charge_id, key=f"refund-{charge_id}", attempt=current_step().attempt)
    Order.objects.filter(pk=rollback.args[0]).update(status=Order.Status.REFUNDED)


def ask_for_transfer(order_id: int, answer_to: str) -> None:
    """Have the bank ask the customer for the money of an order, and tell the shop at an address of the run."""
    step = current_step()
    order = Order.objects.get(pk=order_id)
    bank.ask_for_transfer(
        order.payment_reference, order.total, answer_to, key=step.idempotency_key, attempt=step.attempt
    )


def book_transfer(_order_id: int, told: dict[str, Any]) -> int:
    """The id of the charge of which the bank has told."""
    return int(told["charge"])


def give_money_back(order_id: int) -> None:
    """Give the money of an order back that was sent. The key is that of `refund_card`: the bank does it once."""
    order = Order.objects.get(pk=order_id)
    assert order.charge_id is not None, "what was sent is paid"
    bank.refund(order.charge_id, key=f"refund-{order.charge_id}", attempt=current_step().attempt)
    Order.objects.filter(pk=order_id).update(status=Order.Status.REFUNDED)


def end_order(run: RunInfo) -> None:
    """Note in the order how its run has ended, unless it was sent or refunded, which is noted already.

    A replay under an id of its own is not the order's run, and changes nothing.
    """
    if run.state == "completed":
        return
    order = Order.of_run(run.id)
    ended = Order.Status.CANCELLED if run.state == "cancelled" else Order.Status.UNPAID
    order.filter(status=Order.Status.PAID).update(status=Order.Status.STOPPED)
    order.filter(status=Order.Status.PLACED).update(status=ended)


def mark_paid(order_id: int, charge_id: int) -> None:
    """Note in the order that it is paid."""
    Order.objects.filter(pk=order_id).update(status=Order.Status.PAID, charge_id=charge_id)


def buy_label(order_id: int) -> str:
    """Buy a parcel label; its tracking number."""
    step = current_step()
    reference = Order.objects.get(pk=order_id).parcel_reference
    return carrier.buy_label(reference, key=step.idempotency_key, attempt=step.attempt).tracking


def void_label(_rollback: RollbackContext, tracking: str) -> None:
    """Take the label back to the carrier."""
    carrier.void_label(tracking)


def hand_over(order_id: int) -> None:
    """Give the parcel to the carrier."""
    Order.objects.filter(pk=order_id).update(status=Order.Status.SENT)


def send_order_mail(order_id: int) -> None:
    """Tell the customer that the parcel is being packed."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    send_mail(order.customer.email, f"We are packing order {order.pk}", f"It comes to {order.total}. Purr.")


def tell_customer(order_id: int, subject: str, body: str) -> None:
    """Mail the customer of an order."""
    send_mail(Order.objects.select_related("customer").get(pk=order_id).customer.email, subject, body)


def send_mail(to: str, subject: str, body: str) -> None:
    """Send a mail, signed by the branch of the run if it has one; tried again it is not sent again."""
    step, branch = current_step(), current_branch()
    body = f"{body}\n\n{branch}" if branch else body
    post.send(to, subject, body, key=step.idempotency_key, attempt=step.attempt)


def write_order(quantities: dict[str, int], visitor: dict[str, str]) -> int:
    """Write the order of a cart; its number."""
    products = Product.objects.in_bulk(list(quantities), field_name="slug")
    chosen = {products[slug]: quantity for slug, quantity in quantities.items() if slug in products}
    return Order.write(visitor["name"], visitor["email"], chosen).pk


def add_up_day(until: str) -> dict[str, str]:
    """The sums of the orders of the 24 hours before a moment."""
    end = datetime.fromisoformat(until)
    orders = Order.objects.filter(placed_at__gt=end - timedelta(days=1), placed_at__lte=end)
    sent = Q(status=Order.Status.SENT)
    sums: dict[str, Any] = orders.aggregate(
        orders=Count("pk"),
        sent=Count("pk", filter=sent),
        refunded=Count("pk", filter=Q(status=Order.Status.REFUNDED)),
        taken=Sum("total", filter=sent),
    )
    taken = sums.pop("taken") or Decimal(0)
    return {**{name: str(value) for name, value in sums.items()}, "taken": f"{taken:.2f}"}


def send_report(day: str, sums: dict[str, str]) -> None:
    """Mail the sums of a day to the shopkeeper."""
    body = ", ".join(f"{name}: {value}" for name, value in sums.items())
    send_mail(KEEPER, f"Report of {day}", body)


def charge_month(subscription_id: int, month: int) -> int:
    """Take the money of one month, unless it was taken already; the id of the charge.

    The process may die after the bank has taken the money and before that is recorded. Then this runs again, and must
    ask before it acts.
    """
    subscription = Subscription.objects.get(pk=subscription_id)
    reference = subscription.payment_reference(month)
    charge = bank.find_charge(reference, attempt=current_step().attempt)
    if charge is None:
        charge = bank.charge(reference, subscription.price, attempt=current_step().attempt)
    return charge.pk


def look_up_customer(email: str) -> dict[str, str]:
    """What is known about a customer."""
    customer = Customer.objects.get(email=email)
    return {"name": customer.name, "since": f"{customer.created_at:%B %Y}"}


def list_cats() -> list[str]:
    """The names of all cats in the archive."""
    return pictures.names(attempt=current_step().attempt)


def cutest_cat(rank: int = 1) -> str:
    """The name of the cutest cat, or of the second cutest, and so on."""
    return pictures.cutest(rank, attempt=current_step().attempt)


def fetch_picture(name: str) -> str:
    """The picture of one cat."""
    return pictures.fetch(name, attempt=current_step().attempt)


def write_description(slug: str) -> str:
    """A new text about a product; who reads the step's stream sees each word as it comes."""
    words = []
    product = Product.objects.filter(slug=slug).first()
    for word in writer.words_about("An empty shelf" if product is None else product.name):
        current_step().emit(word)
        words.append(word)
    return " ".join(words)


def keep_description(slug: str, text: str) -> None:
    """Put the text beside the product."""
    Product.objects.filter(slug=slug).update(description=text)
