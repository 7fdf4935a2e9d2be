"""The bank: takes money and gives it back. What it says of a transfer, it signs, as Stripe does."""

import hashlib
import hmac
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from time import time
from urllib.error import HTTPError, URLError
from uuid import UUID

from django.conf import settings
from django.db import transaction

from project.shop.services import line
from project.shop.services.models import Charge, Fault, Refund, Transfer

__all__ = [
    "Notice",
    "ask_for_transfer",
    "charge",
    "deliver",
    "find_charge",
    "find_request",
    "find_transfer",
    "forge",
    "refund",
    "return_transfer",
    "take_transfer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the bank posts to a shop: where to, and how it is signed."""

    url: str
    body: bytes
    headers: Mapping[str, str]


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


def ask_for_transfer(reference: str, amount: Decimal, answer_to: str, *, key: str, attempt: int = 1) -> Transfer:
    """Ask the customer for a transfer, once for each `key`, and tell `answer_to` when the money is there."""
    asked = {"reference": reference, "amount": amount, "answer_to": answer_to}
    with line.to(Fault.Service.BANK, attempt):
        return Transfer.objects.get_or_create(idempotency_key=key, defaults=asked)[0]


def find_transfer(reference: str) -> Transfer | None:
    """The transfer that the customer is asked for."""
    return Transfer.objects.filter(reference=reference).order_by("-pk").first()


def take_transfer(token: UUID) -> Notice:
    """The customer's click: take the money, once; what the shop is to be told."""
    with transaction.atomic():
        transfer = Transfer.objects.select_for_update().get(token=token)
        if transfer.charge is None:
            transfer.charge = Charge.objects.create(reference=transfer.reference, amount=transfer.amount)
            transfer.save()
    return _notice(transfer, transfer.charge.pk, settings.SHOP["BANK_SECRET"])


def forge(token: UUID) -> Notice:
    """What somebody would send who has the address and not the bank's secret. No money is taken."""
    return _notice(Transfer.objects.get(token=token), 0, "a guess")


def return_transfer(token: UUID) -> None:
    """Give the money of a transfer back that the shop does not take any more."""
    transfer = Transfer.objects.get(token=token)
    if transfer.charge_id is not None:
        refund(transfer.charge_id, key=f"returned-{transfer.charge_id}")


def deliver(notice: Notice) -> int:
    """Post it to the shop; the status of the answer, 0 if none came."""
    request = urllib.request.Request(notice.url, notice.body, dict(notice.headers), method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # of the shop's own DURABLE["BASE_URL"]
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
    except (URLError, TimeoutError):
        return 0


def _notice(transfer: Transfer, charge_id: int, secret: str) -> Notice:
    body = json.dumps({"event": "transfer.received", "reference": transfer.reference, "charge": charge_id}).encode()
    moment = int(time())
    signature = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", "Stripe-Signature": f"t={moment},v1={signature}"}
    return Notice(url=transfer.answer_to, body=body, headers=headers)
