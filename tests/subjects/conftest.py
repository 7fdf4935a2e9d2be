"""The backend of production without Redis, in this thread, on tables that are really written; and orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db.models.signals import post_delete, post_save, pre_delete

from durable.operations import subjects
from durable.runtime import Runtime
from project.shop.models import Customer, Order
from tests.support.stores import in_force

#: Writes so many orders of one customer.
Orders = Callable[[int], list[Any]]


@pytest.fixture
def at(transactional_db: None) -> Iterator[Runtime]:
    with in_force() as at:
        yield at


@pytest.fixture
def orders() -> Orders:
    """Write so many orders of one customer."""

    def write(number: int) -> list[Any]:
        customer, _ = Customer.objects.get_or_create(email="ada@example.org", defaults={"name": "Ada"})
        return [Order.objects.create(customer=customer, total=number) for _ in range(number)]

    return write


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """Disconnect what earlier tests have connected, and what the test has."""
    for model in apps.get_models():
        for signal in (pre_delete, post_delete):
            signal.disconnect(sender=model, dispatch_uid="durable.subjects")
    subjects._followed.clear()
    kept = list(post_save.receivers)
    yield
    post_save.receivers[:] = kept
    post_save.sender_receivers_cache.clear()
