"""Runs that hold slots of limits: from their first pass to their end, while they are passed, and around steps."""

from __future__ import annotations

import time

from durable import Context, CriticalError, Limit, workflow
from project.shop.models import Charge
from tests.chaos.workflows import STUBBORN

#: How many slots each limit allows (those of steps in the settings), but for "chaos-edited": an operator sets between 1
#: and MOST of these.
AT_ONCE = {"chaos-open": 1, "chaos-pass": 2, "chaos-step": 1, "chaos-edited": 2, "chaos-a": 2, "chaos-b": 1}
MOST = 4
#: The rates, of passes and (in the settings) of steps.
RATES = {"chaos-starts": "20/s", "chaos-rate": "20/s"}
#: Longer than any chaos: what sleeps so long has to be ended by others.
FOR_EVER = 3_600.0

_A = Limit("chaos-a", at_once=AT_ONCE["chaos-a"])
_B = Limit("chaos-b", at_once=AT_ONCE["chaos-b"], key=lambda tenant: tenant)


def charge_once(run_id: str) -> None:
    Charge.objects.create(reference=run_id, amount=1)


def fail() -> None:
    raise CriticalError("as it has to")


def undo(_context: object, _output: object) -> None: ...


@workflow(name="chaos.member", limit=Limit("chaos-open", at_once=1, key=lambda tenant: tenant, hold="open"))
def member(ctx: Context, tenant: str) -> str:
    """One at a time for each tenant, with a nap in between."""
    ctx.sleep("nap", 0.05)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return tenant


@workflow(name="chaos.keeper", limit=Limit("chaos-open", at_once=1, key=lambda tenant: tenant, hold="open"))
def keeper(ctx: Context, tenant: str) -> str:
    """Hold the slot of the tenant until somebody cancels it."""
    ctx.sleep("for ever", FOR_EVER)
    return tenant


@workflow(name="chaos.passed", limit=Limit("chaos-pass", at_once=2))
def passed(ctx: Context) -> str:
    """Hold a slot while a worker passes it, none while it naps."""
    for number in range(3):
        ctx.sleep(f"nap {number}", 0.05)
        ctx.step(f"work {number}", time.sleep, 0.01, **STUBBORN)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return "passed"


@workflow(name="chaos.stepper")
def stepper(ctx: Context, tenant: str) -> str:
    """Steps with limits: one for each tenant, and one whose number an operator edits, in a branch each."""
    ctx.join(
        "both",
        {
            "tenant": lambda c: c.step("work", time.sleep, 0.02, limit=f"chaos-step/{tenant}", **STUBBORN),
            "edited": lambda c: c.step("work", time.sleep, 0.02, limit="chaos-edited", **STUBBORN),
        },
    )
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, limit="chaos-edited", **STUBBORN)
    return tenant


@workflow(name="chaos.rated", limit=Limit("chaos-starts", rate=RATES["chaos-starts"]))
def rated(ctx: Context, tenant: str) -> str:
    """A rate of its passes, one of a step that takes a slot too, and one of an atomic step, the charge."""
    ctx.step("work", time.sleep, 0.01, rate=f"chaos-rate/{tenant}", limit=f"chaos-step/{tenant}", **STUBBORN)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, rate="chaos-rate", **STUBBORN)
    return tenant


@workflow(name="chaos.both", limit=[_A, _B])
def pair(ctx: Context, tenant: str) -> str:
    """Two limits together or none."""
    ctx.sleep("nap", 0.05)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return tenant


@workflow(name="chaos.undone")
def undone(ctx: Context, tenant: str) -> None:
    """Fail, and give up what it holds in its compensation."""
    ctx.rollback_checkpoint("from here")
    ctx.step("work", time.sleep, 0.01, limit=f"chaos-step/{tenant}", rollback=undo, **STUBBORN)
    ctx.step("fail", fail, limit="chaos-edited")
