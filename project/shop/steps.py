"""What the shop's workflows do to the world, one unit of work in each function, and how it is undone.

A step's function may run more often than it is recorded. So each of these is either run with `atomic=True`, which makes
its rows and its record one commit, or hands the step's idempotency key to the service, or asks first whether it has
been done. Handlers of rollback get the step's output and must bear repetition too.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Count, Q, Sum

from durable import RollbackContext, current_step
from project.shop.models import Customer, Order, Product, Subscription
from project.shop.services import bank, carrier, pictures, post

__all__ = [
    "add_up_day",
    "buy_label",
    "charge_card",
    "charge_month",
    "cutest_cat",
    "fetch_picture",
    "hand_over",
    "list_cats",
    "look_up_customer",
    "mark_paid",
    "refund_card",
    "send_mail",
    "send_order_mail",
    "send_report",
    "void_label",
    "write_order",
]

KEEPER = "keeper@example.org"


def charge_card(order_id: int) -> int:
    """Take the money of an order; the id of the charge.

    No idempotency key on purpose: that the card is charged once is the work of `atomic=True` alone.
    """
    order = Order.objects.get(pk=order_id)
    return bank.charge(order.payment_reference, order.total, attempt=current_step().attempt).pk


def refund_card(rollback: RollbackContext, charge_id: int) -> None:
    """Give the money back."""
    with transaction.atomic():
        bank.refund(charge_id, key=f"refund-{charge_id}")
        Order.objects.filter(pk=rollback.args[0]).update(status=Order.Status.REFUNDED)


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


def send_mail(to: str, subject: str, body: str) -> None:
    """Send a mail; tried again it is not sent again."""
    step = current_step()
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
