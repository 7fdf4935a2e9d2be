"""What a visitor's buttons do: place an order, answer it as the shopkeeper, cancel it, run an example.

Views and the demo call these; the rows and the run that they start are one transaction.
"""

from collections.abc import Mapping
from contextlib import suppress

from django.db import transaction

from durable import MessageConflictError, get_run
from project.shop.models import Customer, Order, Product
from project.shop.workflows import fulfil

__all__ = ["answer", "cancel", "place_order"]


def place_order(name: str, email: str, quantities: Mapping[Product, int]) -> Order:
    """Create the order and start the run that fulfils it: both, or neither."""
    with transaction.atomic():
        customer, _ = Customer.objects.get_or_create(email=email, defaults={"name": name})
        total = sum(quantity * product.price for product, quantity in quantities.items())
        order = Order.objects.create(customer=customer, total=total)
        order.add_lines(quantities)
        fulfil.using(id=order.run_id).start(order.pk)
    return order


def answer(order: Order, verdict: str, by: str) -> None:
    """Say "approved" or "rejected". The first answer counts: a second one has the same message id, and is dropped.

    Raises InvalidTransitionError when the run has ended.
    """
    with suppress(MessageConflictError):  # a second answer that is another
        get_run(order.run_id).send(verdict, {"by": by}, id="answer")


def cancel(order: Order) -> None:
    """Stop the run and undo what it did. Raises InvalidTransitionError when it has ended."""
    get_run(order.run_id).cancel(rollback=True, reason="cancelled by the customer")
