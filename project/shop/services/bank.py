"""The bank: takes money and gives it back."""

from decimal import Decimal

from project.shop.services import line
from project.shop.services.models import Charge, Fault, Refund

__all__ = ["charge", "find_charge", "refund"]


def charge(reference: str, amount: Decimal, *, key: str | None = None, attempt: int = 1) -> Charge:
    """Take money. The same `key` gives the charge of the first time; without one every call takes money again."""
    line.call(Fault.Service.BANK, attempt)
    if key is None:
        return Charge.objects.create(reference=reference, amount=amount)
    return Charge.objects.get_or_create(idempotency_key=key, defaults={"reference": reference, "amount": amount})[0]


def find_charge(reference: str, *, attempt: int = 1) -> Charge | None:
    """Whether money was taken for `reference`."""
    line.call(Fault.Service.BANK, attempt)
    return Charge.objects.filter(reference=reference).first()


def refund(charge_id: int, *, key: str) -> Refund:
    """Give the money of one charge back, once for each `key`."""
    line.call(Fault.Service.BANK)
    return Refund.objects.get_or_create(idempotency_key=key, defaults={"charge_id": charge_id})[0]
