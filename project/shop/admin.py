"""The shop in the admin: what is sold, what was done, and the switches that break the services."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from durable.admin import RunsMixin
from project.shop.models import (
    Charge,
    Customer,
    Fault,
    Label,
    Mail,
    Order,
    OrderLine,
    Product,
    Refund,
    Review,
    Subscription,
    Transfer,
)

__all__: list[str] = []

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _TabularInline = admin.TabularInline[Any, Any]
else:  # at run time Django's classes take no parameters
    _ModelAdmin, _TabularInline = admin.ModelAdmin, admin.TabularInline


class _ReadOnly(_ModelAdmin):
    """What the outside world did: to be looked at."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 (Django's signature)
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(Fault)
class FaultAdmin(_ModelAdmin):
    """The fault switches: a row breaks its service while it is on."""

    list_display = ["service", "is_on", "first_attempts", "is_late"]
    list_editable = ["is_on", "first_attempts", "is_late"]
    list_display_links = ["service"]

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False  # there is one for each service

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(Product)
class ProductAdmin(_ModelAdmin):
    list_display = ["name", "price"]
    prepopulated_fields = {"slug": ["name"]}


@admin.register(Customer)
class CustomerAdmin(_ModelAdmin):
    list_display = ["name", "email", "created_at"]
    search_fields = ["name", "email"]


class OrderLineInline(_TabularInline):
    model = OrderLine
    extra = 0


@admin.register(Order)
class OrderAdmin(RunsMixin, _ReadOnly):
    list_display = ["__str__", "customer", "status", "total", "placed_at"]
    list_filter = ["status"]
    list_select_related = ["customer"]
    inlines = [OrderLineInline]


@admin.register(Charge)
class ChargeAdmin(_ReadOnly):
    list_display = ["reference", "amount", "created_at"]
    search_fields = ["reference"]


@admin.register(Transfer)
class TransferAdmin(_ReadOnly):
    list_display = ["reference", "amount", "charge", "created_at"]
    list_select_related = ["charge"]
    search_fields = ["reference"]


@admin.register(Refund)
class RefundAdmin(_ReadOnly):
    list_display = ["charge", "created_at"]
    list_select_related = ["charge"]


@admin.register(Label)
class LabelAdmin(_ReadOnly):
    list_display = ["tracking", "reference", "is_void", "created_at"]
    search_fields = ["tracking", "reference"]


@admin.register(Mail)
class MailAdmin(_ReadOnly):
    list_display = ["subject", "to", "sent_at"]
    search_fields = ["to", "subject"]


@admin.register(Review)
class ReviewAdmin(_ReadOnly):
    list_display = ["order", "stars", "text", "created_at"]


@admin.register(Subscription)
class SubscriptionAdmin(_ReadOnly):
    list_display = ["__str__", "customer", "price", "started_at"]
    list_select_related = ["customer"]
