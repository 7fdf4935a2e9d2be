"""What the shop itself knows: products, customers, orders, subscriptions and reviews.

What the outside world knows (the bank, the carrier, the post) is in `project.shop.services.models`.
"""

import uuid
from collections.abc import Mapping
from decimal import Decimal

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse

from project.shop.services.models import Charge, Fault, Label, Mail, Refund, Transfer

__all__ = [
    "Charge",
    "Customer",
    "Fault",
    "Label",
    "Mail",
    "Order",
    "OrderLine",
    "Product",
    "Refund",
    "Review",
    "Subscription",
    "Transfer",
]


class Product(models.Model):
    """Something on the shelf. `slug` also names its picture."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=8, decimal_places=2, validators=[MinValueValidator(Decimal("0.01"))])

    class Meta:
        ordering = ["price", "pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def picture(self) -> str:
        """The static file with its picture."""
        return f"shop/products/{self.slug}.svg"


class Customer(models.Model):
    """Someone who has ordered or subscribed. A new one is welcomed by a workflow: see `receivers`."""

    name = models.CharField(max_length=80)
    email = models.EmailField(unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


class Order(models.Model):
    """An order. `token` is its unguessable address; the run that fulfils it has the id `run_id`.

    The last three of `status` are ends without a sale: it could not be paid, the customer or an operator cancelled it,
    or it was paid and then stopped without giving the money back.
    """

    class Status(models.TextChoices):
        PLACED = "placed"
        PAID = "paid"
        SENT = "sent"
        REFUNDED = "refunded"
        UNPAID = "unpaid"
        CANCELLED = "cancelled"
        STOPPED = "stopped"

    token = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    customer = models.ForeignKey(Customer, models.PROTECT, related_name="orders")
    status = models.CharField(max_length=9, choices=Status, default=Status.PLACED)
    total = models.DecimalField(max_digits=9, decimal_places=2)
    charge = models.OneToOneField(Charge, models.PROTECT, null=True, blank=True, related_name="order")
    placed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=[self.token])

    @property
    def run_id(self) -> str:
        """One order, one run: starting it twice gives the same run."""
        return self.run_id_of(self.pk)

    @staticmethod
    def run_id_of(number: int) -> str:
        """The run of the order with this number."""
        return f"order-{number}"

    @property
    def refund_run_id(self) -> str:
        """The run that asks whether the money is given back."""
        return f"refund-{self.pk}"

    @classmethod
    def of_run(cls, run_id: str) -> models.QuerySet["Order"]:
        """The order with this run, as rows to read or to update: none for the run of anything else."""
        number = run_id.removeprefix("order-")
        is_one = run_id.startswith("order-") and number.isdecimal()
        return cls.objects.filter(pk=int(number)) if is_one else cls.objects.none()

    @property
    def payment_reference(self) -> str:
        """What the bank statement says."""
        return f"order-{self.pk}"

    @property
    def parcel_reference(self) -> str:
        """What the parcel's label says."""
        return f"order-{self.pk}"

    @classmethod
    def write(cls, name: str, email: str, quantities: Mapping[Product, int]) -> "Order":
        """Write an order with its lines and, if they are new, its customer."""
        customer, _ = Customer.objects.get_or_create(email=email, defaults={"name": name})
        total = sum(quantity * product.price for product, quantity in quantities.items())
        order = cls.objects.create(customer=customer, total=total)
        order.add_lines(quantities)
        return order

    def add_lines(self, quantities: Mapping[Product, int]) -> None:
        """Put products into the order at the prices of this moment."""
        OrderLine.objects.bulk_create(
            OrderLine(order=self, product=product, quantity=quantity, price=product.price)
            for product, quantity in quantities.items()
        )


class OrderLine(models.Model):
    """So many of one product, at the price it had."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.PositiveSmallIntegerField()
    price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        constraints = [
            models.UniqueConstraint("order", "product", name="shop_line_per_product"),
            models.CheckConstraint(condition=models.Q(quantity__gt=0), name="shop_line_quantity_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} of {self.product}"

    @property
    def amount(self) -> Decimal:
        """The price of all of them."""
        return self.quantity * self.price


class Review(models.Model):
    """What a customer says about an order. A workflow says thank you: see `receivers`."""

    order = models.OneToOneField(Order, models.CASCADE, related_name="review")
    stars = models.PositiveSmallIntegerField(validators=[MinValueValidator(1), MaxValueValidator(5)])
    text = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.stars} of 5 for {self.order}"


class Subscription(models.Model):
    """A box of treats each month until the customer says stop."""

    customer = models.ForeignKey(Customer, models.PROTECT, related_name="subscriptions")
    price = models.DecimalField(max_digits=8, decimal_places=2, default=Decimal("10.00"))
    started_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"subscription {self.pk}"

    def payment_reference(self, month: int) -> str:
        """What the bank statement says for the so-manieth month."""
        return f"subscription-{self.pk}-month-{month}"
