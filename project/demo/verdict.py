"""Whether the demo's promises held, judged from the rows alone."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django.db.models import Min

from durable import Handle
from durable.models import Child, EntryMetadata, Run
from project.shop.models import Charge, Label, Mail, Order, Refund

__all__ = ["Finding", "judge", "judge_cart", "judge_report", "judge_syncs"]


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
    shipments = _shipments(orders)
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
        _all(
            "each of those has one shipment, a child that has completed",
            {order.run_id: shipments[order.run_id] == 1 for order in orders if order.pk not in refused},
            f"{shipments.total()} shipments",
        ),
    ]


def judge_cart(clicks: Collection[str], order: Order | None) -> Finding:
    """Look at the runs that the clicks of one visitor were sent to, and at the order that came of them."""
    return Finding(
        held=len(clicks) == 1 and order is not None and order.lines.count() == 3,
        promise="three clicks of one visitor filled one cart, which is one order of three lines",
        found=f"{len(clicks)} cart, {order or 'no order'}",
    )


def judge_report(run: Handle, orders: Sequence[Order], rejected: Collection[int]) -> Finding:
    """Look at the output of the report that was made when all orders had ended."""
    sums = run.output or {}
    return Finding(
        held=int(sums.get("sent", 0)) >= len(orders) - len(rejected),
        promise="the report of the day has every order that was sent",
        found=", ".join(f"{name} {value}" for name, value in sums.items()) or f"the run {run.id} is {run.state}",
    )


def judge_syncs(runs: Sequence[Handle]) -> Finding:
    """Look at when these runs, which share a slot, did their first and their last."""
    ids = [run.id for run in runs]
    ended = dict(Run.objects.filter(pk__in=ids, state="completed").values_list("pk", "finished_at"))
    entries = EntryMetadata.objects.filter(entry__run__in=ids).values_list("entry__run").order_by()
    begun = dict(entries.annotate(Min("created_at")))
    order = sorted(begun, key=lambda run_id: begun[run_id])
    apart = all(one in ended and ended[one] <= begun[other] for one, other in pairwise(order))
    return Finding(
        held=apart and len(ended) == len(ids),
        promise="a customer's syncs went one after the other",
        found=f"{len(ended)} of {len(ids)} completed{'' if apart else ', two at the same time'}",
    )


def _shipments(orders: Sequence[Order]) -> Counter[str]:
    """How many completed children the runs of the orders have, by the parent's id."""
    parents = [order.run_id for order in orders]
    found = Child.objects.filter(parent__in=parents, run__state="completed", run__workflow="shop.ship")
    return Counter(str(parent) for parent in found.values_list("parent", flat=True))


def _parcels(order_id: int) -> tuple[int, int]:
    labels = Label.objects.filter(reference=f"order-{order_id}", is_void=False).count()
    return labels, Mail.objects.filter(subject=f"We are packing order {order_id}").count()


def _all(promise: str, cases: dict[str, bool], found: str) -> Finding:
    broken = [name for name, held in cases.items() if not held]
    return Finding(not broken, promise, f"{found}; not so: {', '.join(broken)}" if broken else found)
