"""A shelf with something on it, a clock that the test moves, and a way to order."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from durable.testing import Harness
from project.shop import checkout
from project.shop.models import Order, Product

PlaceOrder = Callable[[], Order]


@pytest.fixture
def product(db: None) -> Product:
    return Product.objects.get_or_create(
        slug="box", defaults={"name": "Cardboard box", "description": "Slightly too small.", "price": Decimal("7.00")}
    )[0]


@pytest.fixture
def harness(db: None) -> Iterator[Harness]:
    with Harness(now=datetime(2026, 1, 1, 12, tzinfo=UTC)) as harness:
        yield harness


@pytest.fixture
def place_order(product: Product) -> PlaceOrder:
    """Place an order for two boxes, as a visitor does; each call is a new customer's."""
    numbers = iter(range(1, 1000))

    def place() -> Order:
        return checkout.place_order("Ada", f"ada-{next(numbers)}@example.org", {product: 2})

    return place
