"""The runs of the study. What each has to come to follows from its input alone."""

from __future__ import annotations

import select
import time
from typing import Final

from durable import Context, current_step, workflow
from project.shop.models import Charge
from tests.tools.hosts import ledger

CALLS: Final = 3
NUMBERS: Final = 5
BUSY: Final = 0.1  # seconds that a call takes
PATIENCE: Final = 120.0  # seconds


def call(run_id: str, number: int) -> None:
    """Do something outside of the database."""
    key = current_step().idempotency_key
    ledger.note("begin", run_id, number, key)
    select.select([], [], [], BUSY)  # faketime breaks `time.sleep` of Python 3.11: "Invalid argument"
    ledger.note("end", run_id, number, key)


def call_through(run_id: str, number: int, event: str) -> None:
    """Be busy until the ledger has an event."""
    key = current_step().idempotency_key
    ledger.note("begin", run_id, number, key)
    deadline = time.monotonic() + PATIENCE
    while not any(each.what == event and each.run == run_id for each in ledger.read()):
        assert time.monotonic() < deadline, event
        time.sleep(0.1)
    ledger.note("end", run_id, number, key)


def book(run_id: str, number: int) -> None:
    """Write a row that does not bear repetition."""
    Charge.objects.create(reference=f"{run_id}/{number}", amount=1)


@workflow(name="hosts.order")
def order(ctx: Context) -> int:
    """Calls and rows, with sleeps between them."""
    for number in range(CALLS):
        ctx.step(f"call {number}", call, ctx.run_id, number)
        ctx.step(f"book {number}", book, ctx.run_id, number, atomic=True)
        ctx.sleep(f"rest {number}", 0.3)
    return CALLS


@workflow(name="hosts.patient")
def patient(ctx: Context, first: str, second: str) -> int:
    """What an order does, in one pass whose calls last through two events."""
    for number, event in enumerate((first, second, "")):
        if event:
            ctx.step(f"call {number}", call_through, ctx.run_id, number, event, timeout=PATIENCE)
        else:
            ctx.step(f"call {number}", call, ctx.run_id, number)
        ctx.step(f"book {number}", book, ctx.run_id, number, atomic=True)
    return CALLS


@workflow(name="hosts.collect")
def collect(ctx: Context) -> list[int]:
    """The numbers that were sent, in the order of their receipt."""
    return [ctx.queue.next(f"number {each}", names=["numbers"]).body for each in range(NUMBERS)]
