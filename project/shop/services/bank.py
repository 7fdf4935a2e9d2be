"""The bank: takes money and gives it back."""

from decimal import Decimal

from project.shop.services import line
from project.shop.services.models import Charge, Fault, Refund

__all__ = ["charge", "find_charge", "find_request", "refund"]


def charge(reference: str, amount: Decimal, *, request: str = "", attempt: int = 1) -> Charge:
    """Take money, each time it is called. `request` is a number of the caller's, by which the bank finds the charge."""
    with line.to(Fault.Service.BANK, attempt):
        return Charge.objects.create(reference=reference, amount=amount, request=request)


def find_charge(reference: str, *, attempt: int = 1) -> Charge | None:
    """Whether money was taken for `reference`."""
    with line.to(Fault.Service.BANK, attempt):
        return Charge.objects.filter(reference=reference).first()


def find_request(request: str, *, attempt: int = 1) -> Charge | None:
    """The charge that this request has made, if any."""
    with line.to(Fault.Service.BANK, attempt):
        return Charge.objects.filter(request=request).first()


def refund(charge_id: int, *, key: str, attempt: int = 1) -> Refund:
    """Give the money of one charge back, once for each `key`."""
    with line.to(Fault.Service.BANK, attempt):
        return Refund.objects.get_or_create(idempotency_key=key, defaults={"charge_id": charge_id})[0]
