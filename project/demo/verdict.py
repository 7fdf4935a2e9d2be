"""Whether the demo's promises held, judged from the rows alone."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from durable.models import Run
from project.shop.models import Charge, Label, Mail, Order, Refund

__all__ = ["Finding", "judge"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, whether it held, and what was found."""

    held: bool
    promise: str
    found: str


def judge(orders: Sequence[Order], rejected: Iterable[int]) -> list[Finding]:
    """Look at the rows of these orders; `rejected` are the ids of those that were to be compensated."""
    ids = [order.pk for order in orders]
    refused = set(rejected)
    states = dict(Run.objects.filter(pk__in=[order.run_id for order in orders]).values_list("id", "state"))
    charges = Counter(
        Charge.objects.filter(reference__in=[order.payment_reference for order in orders]).values_list(
            "reference", flat=True
        )
    )
    refunds = Counter(Refund.objects.filter(charge__order__in=ids).values_list("charge__order", flat=True))
    sent = set(Order.objects.filter(pk__in=ids, status=Order.Status.SENT).values_list("pk", flat=True))
    return [
        _all(
            "every order reached its end",
            {order.run_id: states.get(order.run_id) in {"completed", "failed"} for order in orders},
            ", ".join(f"{count} {state}" for state, count in sorted(Counter(states.values()).items())),
        ),
        _all(
            "every card was charged exactly once",
            {order.payment_reference: charges[order.payment_reference] == 1 for order in orders},
            f"{charges.total()} charges for {len(orders)} orders",
        ),
        _all(
            "the rejected orders were refunded once, the others not",
            {f"order {pk}": refunds[pk] == (1 if pk in refused else 0) for pk in ids},
            f"{refunds.total()} refunded of {len(refused)} rejected",
        ),
        _all(
            "every other order was sent, with one label and one mail",
            {f"order {pk}": pk in sent and _parcels(pk) == (1, 1) for pk in ids if pk not in refused},
            f"{len(sent)} sent",
        ),
    ]


def _parcels(order_id: int) -> tuple[int, int]:
    labels = Label.objects.filter(reference=f"order-{order_id}", is_void=False).count()
    return labels, Mail.objects.filter(subject=f"We are packing order {order_id}").count()


def _all(promise: str, cases: dict[str, bool], found: str) -> Finding:
    broken = [name for name, held in cases.items() if not held]
    return Finding(not broken, promise, f"{found}; not so: {', '.join(broken)}" if broken else found)
