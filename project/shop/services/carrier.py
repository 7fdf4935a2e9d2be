"""The carrier: sells parcel labels and takes them back."""

import hashlib

from project.shop.services import line
from project.shop.services.models import Fault, Label

__all__ = ["buy_label", "void_label"]


def buy_label(reference: str, *, key: str, attempt: int = 1) -> Label:
    """Sell a label; the same `key` gives the label of the first time."""
    line.call(Fault.Service.CARRIER, attempt)
    tracking = f"NL{int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10**10:010}"
    return Label.objects.get_or_create(idempotency_key=key, defaults={"reference": reference, "tracking": tracking})[0]


def void_label(tracking: str) -> None:
    """Take a label back."""
    line.call(Fault.Service.CARRIER)
    Label.objects.filter(tracking=tracking).update(is_void=True)
