"""What a visitor's buttons do: fill a cart, place an order, answer it as the shopkeeper, cancel it, give it back.

Views and the demo call these; the rows and the run that they start are one transaction.
"""

from collections.abc import Mapping
from contextlib import suppress

from django.db import transaction

from durable import Handle, get_run, publish
from durable.errors import MessageConflictError
from project.shop.models import Order, Product
from project.shop.workflows import cart, fulfil, refund

__all__ = ["add_to_cart", "answer", "ask_for_refund", "cancel", "hand_back", "place_order", "send_to_cart"]


def place_order(name: str, email: str, quantities: Mapping[Product, int], *, by_transfer: bool = False) -> Order:
    """Create the order and start the run that fulfils it: both, or neither."""
    with transaction.atomic():
        order = Order.write(name, email, quantities)
        fulfil.using(id=order.run_id, about=order).start(order.pk, by_transfer=by_transfer)
    return order


def add_to_cart(visitor: str, quantities: Mapping[Product, int]) -> Handle[int | None]:
    """Put products into the visitor's cart, a new one unless there is one; the cart's run."""
    chosen = {product.slug: quantity for product, quantity in quantities.items()}
    return cart.using(key=f"cart-{visitor}").start_or_send("add", chosen)


def send_to_cart(visitor: str, verb: str, customer: Mapping[str, str]) -> bool:
    """Send "order" or "empty" to the visitor's cart; whether there is one."""
    run = cart.open_run(key=f"cart-{visitor}")
    if run is None:
        return False
    run.send(verb, dict(customer))
    return True


def answer(order: Order, verdict: str, by: str) -> None:
    """Say "approved" or "rejected". The first answer counts: a second one has the same message id, and is dropped.

    Raises InvalidTransitionError when the run has ended.
    """
    with suppress(MessageConflictError):  # a second answer that is another
        get_run(order.run_id).send(verdict, {"by": by}, id="answer")


def cancel(order: Order) -> None:
    """Stop the run and undo what it did. Raises InvalidTransitionError when it has ended."""
    get_run(order.run_id).cancel(rollback=True, reason="cancelled by the customer")


def ask_for_refund(order: Order) -> bool:
    """Ask for the money of an order that was sent; whether it was. Asking twice is asking once."""
    if not Order.objects.filter(pk=order.pk, status=Order.Status.SENT).exists():
        return False
    refund.using(id=order.refund_run_id, about=order).start(order.pk)
    return True


def hand_back(order: Order) -> None:
    """Give the parcel to the carrier, who says that it is back, and does not know who waits for that."""
    publish("parcel.back", {"order": order.pk}, key=str(order.pk), id=f"back-{order.pk}")
