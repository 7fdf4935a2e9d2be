"""The workflows that keep one rule each, with what the page of examples needs to show and to start them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from durable import Handle
from project.shop import workflows
from project.shop.models import Customer, Product, Subscription

__all__ = ["EXAMPLES", "Example", "start"]

GUEST = {"name": "Guest", "email": "guest@example.org"}


@dataclass(frozen=True, slots=True)
class Example:
    """A workflow, and how it is started: by `arguments()` from its page, or by something else, the `trigger`.

    `stream` is the step whose words its page shows as they come.
    """

    name: str
    workflow: Any
    arguments: Callable[[], tuple[Any, ...]] | None = None
    trigger: str = ""
    stream: str = ""

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def summary(self) -> str:
        return self._doc[0]

    @property
    def rule(self) -> str:
        return self._doc[1]

    @property
    def is_started_by_hand(self) -> bool:
        """Whether its page has a button that runs it."""
        return self.arguments is not None

    @property
    def _doc(self) -> tuple[str, str]:
        summary, _, rule = (inspect.getdoc(self.workflow.function) or "").partition("\n\n")
        return " ".join(summary.split()), " ".join(rule.split())


def _new_subscription() -> tuple[int]:
    customer, _ = Customer.objects.get_or_create(email=GUEST["email"], defaults=GUEST)
    return (Subscription.objects.create(customer=customer).pk,)


def _guest() -> tuple[str]:
    customer, _ = Customer.objects.get_or_create(email=GUEST["email"], defaults=GUEST)
    return (customer.email,)


def _cheapest() -> tuple[str]:
    cheapest = Product.objects.first()
    return ("" if cheapest is None else cheapest.slug,)


EXAMPLES = {
    example.name: example
    for example in [
        Example("fulfil", workflows.fulfil, trigger="Runs for each order that is placed."),
        Example("ship", workflows.ship, trigger="Runs for each order that is approved, as a child of the order's run."),
        Example(
            "transfer", workflows.transfer, trigger="Runs for each order that is paid by transfer, as a child of it."
        ),
        Example(
            "refund", workflows.refund, trigger="Runs when the customer of an order that was sent wants money back."
        ),
        Example("inspect", workflows.inspect, trigger="Runs for each parcel that comes back, started by an event."),
        Example("cart", workflows.cart, trigger="Runs for each visitor who puts something into a cart."),
        Example("nightly", workflows.nightly, trigger="Runs each night at half past two, by its schedule."),
        Example("subscription", workflows.subscription, _new_subscription),
        Example("postcard", workflows.postcard, lambda: (GUEST["email"],)),
        Example("surprise", workflows.surprise, tuple),
        Example("describe", workflows.describe, _cheapest, stream="write"),
        Example("gallery", workflows.gallery, tuple),
        Example("sync", workflows.sync, _guest),
        Example("welcome", workflows.welcome, trigger="Runs for each new customer, started by a model signal."),
        Example("thank", workflows.thank, trigger="Runs for each review, started by a model signal."),
    ]
}


def start(example: Example, run_id: str) -> Handle:
    """Start a run of the example, with the rows it needs. Raises ValueError for one that has a trigger of its own."""
    if example.arguments is None:
        raise ValueError(f"{example.name} is not started from its page: {example.trigger}")
    with transaction.atomic():
        handle: Handle = example.workflow.using(id=run_id).start(*example.arguments())
    return handle
