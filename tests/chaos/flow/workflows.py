"""Parents that ask paid children, some of them under a key, and compensate them.

Each charge is a row, and so is each refund.
"""

from __future__ import annotations

from typing import Any, Final

from durable import Context, CriticalError, Limit, RollbackContext, workflow
from durable.errors import ChildCancelledError, ChildFailedError, KeyConflictError
from project.shop.models import Charge
from tests.chaos.families.workflows import FOR_EVER, is_mended
from tests.chaos.workflows import STUBBORN

KEYS: Final = 3
ENDS: Final = ("completes", "mended", "fails", "waits", "late")
SLOTS: Final = 8  # of the limit of all paid children
AT_ONCE: Final = 2  # children of a map
MOST: Final = 4

#: What comes after the charge of each child.
_THEN: Final = ("completes", "completes", "fails", "completes", "mended", "completes")


def charge(run_id: str) -> int:
    """Take one charge. Its number is recorded in the same commit."""
    return int(Charge.objects.create(reference=run_id, amount=1).pk)


def refund(_rollback: RollbackContext, number: int) -> None:
    """Give this one charge back, however often and however late it is asked."""
    Charge.objects.filter(pk=number).delete()


@workflow(name="chaos.paid", limit=Limit("chaos-paid", at_once=SLOTS))
def paid(ctx: Context, then: str) -> str:
    """One charge, which a compensation gives back."""
    ctx.rollback_checkpoint("from here on")
    ctx.step("charge", charge, ctx.run_id, atomic=True, rollback=refund, **STUBBORN)
    ctx.sleep("nap", 0.1)
    if then == "fails":
        raise CriticalError("as it has to")
    if then == "mended":
        ctx.step("try", is_mended, max_retries=0)
    return ctx.run_id


def _answer(ctx: Context, name: str, child: Any) -> list[str]:
    """What has become of the child that was asked."""
    try:
        return ["paid", child.result(name)]
    except ChildFailedError as error:
        return ["failed", error.child_id]
    except ChildCancelledError as error:
        return ["cancelled", error.child_id]


def _called(ctx: Context, name: str, workflow: Any) -> list[str]:
    try:
        return ["paid", ctx.child(name, workflow, "completes")]
    except KeyConflictError:
        return ["refused", ""]
    except ChildFailedError as error:
        return ["failed", error.child_id]
    except ChildCancelledError as error:
        return ["cancelled", error.child_id]


@workflow(name="chaos.asking")
def asking(ctx: Context, group: int, end: str) -> dict[str, Any]:
    """Ask children, every second under a key that others want too, then end as told. What each came to, by location."""
    ctx.rollback_checkpoint("from here on")
    found: dict[str, list[str]] = {}
    asked: dict[str, Any] = {}
    for number, then in enumerate(_THEN):
        key = f"k{(group + number) % KEYS}" if number % 2 else None
        try:
            asked[f"ask {number}"] = ctx.start_child(f"ask {number}", paid.using(rollback=True, key=key), then)
        except KeyConflictError:
            found[f"ask {number}"] = ["refused", ""]
    bills = ctx.map(
        "bills", paid.using(rollback=True), [(then,) for then in _THEN[:MOST]], at_once=AT_ONCE, on_failure="finish"
    )
    for name, child in asked.items():
        found[name] = _answer(ctx, f"answer to {name}", child)
    replacing = paid.using(rollback=True, key=f"k{group % KEYS}", if_open="replace")
    found["called"] = _called(
        ctx, "called", replacing if group % 4 == 0 else paid.using(rollback=True, key=f"k{group % KEYS}")
    )
    if end == "fails":
        raise CriticalError("as it has to")
    if end == "mended":
        ctx.step("try", is_mended, max_retries=0)
    if end in ("waits", "late"):
        ctx.sleep("for ever", FOR_EVER)
    return {"found": found, "bills": bills.outputs, "failed": [each.child_id for each in bills.failed]}
