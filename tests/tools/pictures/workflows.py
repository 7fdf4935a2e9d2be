"""The workflows in the pictures: orders, trips and imports of a shop whose bank does not always answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from durable import Context, CriticalError, RollbackContext, workflow

#: What is broken while the runs are made, by the name of the step.
BROKEN: dict[str, Exception] = {}

#: What lets the time of an answer pass; nothing in a worker.
ANSWERING: list[Callable[[], None]] = []


class GatewayTimeout(Exception):
    """The bank did not answer."""


class CardDeclined(CriticalError):
    """The bank said no."""


class SoldOut(CriticalError):
    """Nothing is left to book."""


def call(step: str, result: Any = "ok") -> Any:
    """Return `result`, or fail as the step of this name does now, after the time that an answer takes."""
    for wait in ANSWERING:
        wait()
    if step in BROKEN:
        raise BROKEN[step]
    return result


def undo(_rollback: RollbackContext, _output: Any) -> None:
    """Give back what a step took."""


def hang() -> None:
    """Wait for an answer that does not come."""
    time.sleep(3600)


@workflow(name="acme.order")
def fulfil(ctx: Context, order_id: int) -> str:
    """Charge the card, wait for the shopkeeper's approval, buy the label and send the mail."""
    ctx.step("charge card", call, "charge card", f"ch_{order_id}", max_retries=3, retry_backoff_base=2)
    if order_id % 3 == 1:
        ctx.queue.next("approval", names=["approved", "rejected"], timeout="9 days")
    ctx.join(
        "ship",
        {
            "label": lambda c: c.step("buy", call, "buy label", "L1", max_retries=1, retry_backoff_base=2),
            "mail": lambda c: c.step("send", call, "send mail", "M1"),
        },
    )
    ctx.sleep("cool off", "3 hours" if order_id % 3 == 0 else "1 second")
    ctx.step("close order", call, "close order")
    return "sent"


@workflow(name="acme.renewal")
def renew(ctx: Context, order_id: int) -> str:
    """Charge the card for another month."""
    ctx.step("charge card", call, "charge card", f"ch_{order_id}", max_retries=3, retry_backoff_base=2)
    return "renewed"


@workflow(name="acme.trip")
def trip(ctx: Context, number: int) -> None:
    """Book a flight, a hotel and a car, or nothing."""
    ctx.rollback_checkpoint("booked together")
    ctx.step("book flight", call, "book flight", number, rollback=undo)
    ctx.step("book hotel", call, "book hotel", number, rollback=undo)
    ctx.step("book car", call, "book car", number)


@workflow(name="acme.import")
def import_catalogue(ctx: Context, supplier: str) -> None:
    """Read a supplier's catalogue."""
    ctx.step("call SOAP service", hang)
