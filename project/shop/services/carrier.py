"""The carrier: sells parcel labels and takes them back."""

import hashlib

from project.shop.services import line
from project.shop.services.models import Fault, Label

__all__ = ["buy_label", "void_label"]


def buy_label(reference: str, *, key: str, attempt: int = 1) -> Label:
    """Sell a label; the same `key` gives the label of the first time."""
    tracking = f"NL{int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10**10:010}"
    label = {"reference": reference, "tracking": tracking}
    with line.to(Fault.Service.CARRIER, attempt):
        return Label.objects.get_or_create(idempotency_key=key, defaults=label)[0]


def void_label(tracking: str) -> None:
    """Take a label back."""
    with line.to(Fault.Service.CARRIER):
        Label.objects.filter(tracking=tracking).update(is_void=True)
