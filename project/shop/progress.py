"""Where an order or an example stands, as its page shows it: one frozen value, made from the run and the order's row.

`version` names what is shown: a page that has it already need not be sent again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from django.urls import reverse

from durable import Handle, get_run
from durable.errors import RunNotFoundError
from durable.operations import HistoryEntry
from project.shop.models import Order, Product
from project.shop.services import bank
from project.shop.services.line import ServiceDownError
from project.shop.timeline import Step, build_timeline, clock

__all__ = ["Action", "Link", "Milestone", "Progress", "progress_of_cart", "progress_of_example", "progress_of_order"]

TIMES = "\N{MULTIPLICATION SIGN}"
_ENDED = {"completed", "failed", "cancelled"}
_LABELS = {
    "pending": "Queued",
    "running": "Working",
    "sleeping": "Waiting",
    "paused": "Paused",
    "rolling_back": "Undoing",
    "completed": "Done",
    "failed": "Stopped",
    "cancelled": "Cancelled",
}
# The stages of an order after it was placed, and the entries that stand for them.
_MILESTONES = {"Paid": "mark paid", "Approved": "approval", "Packed": "ship", "Sent": "hand over"}
# Those of a refund, after the order was sent.
_OF_REFUND = {"Decided": "give the money back", "Parcel back": "parcel is back", "Refunded": "give back"}
_MOODS = {"completed": "good", "failed": "bad", "cancelled": "bad", "rolling_back": "bad"}


@dataclass(frozen=True, slots=True)
class Milestone:
    """A stage of an order: "done", "current", "ahead" or "undone"."""

    title: str
    status: str


@dataclass(frozen=True, slots=True)
class Action:
    """A button: what it posts, where to, and how it looks."""

    name: str
    title: str
    url: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A way to another page."""

    title: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All that the changing part of a run's page shows."""

    state: str
    headline: str
    detail: str = ""
    milestones: Sequence[Milestone] = ()
    actions: Sequence[Action] = ()
    link: Link | None = None
    steps: Sequence[Step] = field(default_factory=list)

    @property
    def label(self) -> str:
        return _LABELS[self.state]

    @property
    def mood(self) -> str:
        return _MOODS.get(self.state, "")

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def version(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """The run as it was when it was looked at, so that all parts of a page speak of one moment."""

    state: str
    because: str
    wake_at: datetime | None
    output: Any
    history: Sequence[HistoryEntry]
    children: Mapping[str, Sequence[HistoryEntry]]

    @classmethod
    def of(cls, run: Handle) -> Self:
        error = run.error
        return cls(
            because=f"Because: {error.message}" if error else "",
            wake_at=run.wake_at,
            output=run.output,
            history=run.history(),
            children={each.id: each.history() for each in run.children()},
            state=run.state,  # read last: what has ended is shown whole
        )

    @property
    def steps(self) -> list[Step]:
        """What happened, with what the children did."""
        return build_timeline(self.history, self.children)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to answer or to stop."""
        return self.state in _ENDED or self.state == "rolling_back"

    @property
    def waits_for_bank(self) -> bool:
        """Whether the charge can neither be made nor be found out about."""
        return any(entry.location == "charge" and entry.status in {"held", "unknown"} for entry in self.history)

    @property
    def waits_for_transfer(self) -> bool:
        """Whether the customer has still to pay."""
        return not self.is_over and any(e.location == "transfer" and e.status != "completed" for e in self.history)

    @property
    def open_wait(self) -> HistoryEntry | None:
        """The message it waits for."""
        if self.is_over:
            return None
        return next((each for each in self.history if each.kind == "message" and each.status != "completed"), None)


def progress_of_order(order: Order) -> Progress:
    """Where the order stands."""
    try:
        now = _Standing.of(get_run(order.run_id))
    except RunNotFoundError:  # runs that have ended are pruned some day; orders are kept
        return _progress_of_row(order)
    order.refresh_from_db(fields=["status"])  # not older than the run
    if now.state == "completed" and (refund := _refund_of(order)) is not None:
        return _progress_of_refund(order, now, refund)
    return Progress(
        state=now.state,
        headline=_headline(order, now),
        detail=_detail(now),
        milestones=_milestones(order, now),
        actions=_order_actions(order, now),
        link=_way_to_bank(order) if now.waits_for_transfer else None,
        steps=now.steps,
    )


def _refund_of(order: Order) -> Handle | None:
    try:
        refund = get_run(order.refund_run_id)
        refund.info()
    except RunNotFoundError:
        return None
    return refund


def _progress_of_refund(order: Order, sent: "_Standing", refund: Handle) -> Progress:
    """Where the refund of an order stands that was sent, in the words of its run."""
    now, status = _Standing.of(refund), refund.status
    says = "A worker asks the colleagues" if status is None else status.text
    back = Action("hand-back", "Hand the parcel to the carrier", reverse("shop:hand-back", args=[order.token]))
    return Progress(
        state=now.state,
        headline=f"{says[:1].upper()}{says[1:]}",
        detail=now.because,
        milestones=[Milestone("Sent", "done"), *([] if now.output == "kept" else _stages(_OF_REFUND, now))],
        actions=[] if now.is_over else [back],
        steps=[*sent.steps, *(replace(each, where=each.where or "refund") for each in now.steps)],
    )


def _way_to_bank(order: Order) -> Link | None:
    transfer = bank.find_transfer(order.payment_reference)
    return None if transfer is None else Link("Pay it at the bank", reverse("shop:transfer", args=[transfer.token]))


def _progress_of_row(order: Order) -> Progress:
    headline = "The parcel is on its way" if order.status == Order.Status.SENT else _stopped(order)
    return Progress(
        state="completed" if order.status == Order.Status.SENT else "failed",
        headline=headline,
        detail="What happened on the way is no longer recorded.",
    )


def progress_of_example(run: Handle, stop_url: str) -> Progress:
    """Where the run of an example stands."""
    now = _Standing.of(run)
    can_stop = now.open_wait is not None and "stop" in now.open_wait.data["names"]
    return Progress(
        state=now.state,
        headline=f"Returned {now.output!r}" if now.state == "completed" else _current(now),
        detail=now.because if now.is_over else "",
        actions=[Action("stop", "Send it “stop”", stop_url)] if can_stop else [],
        steps=now.steps,
    )


def progress_of_cart(run: Handle, url: str) -> Progress:
    """Where the cart stands, and what is in it. `url` is where its buttons post to."""
    now = _Standing.of(run)
    if now.state == "completed" and now.output is not None:
        order = Order.objects.get(pk=now.output)
        headline, link = f"This cart is {order} now", Link(f"See {order}", order.get_absolute_url())
        return Progress(state=now.state, headline=headline, link=link, steps=build_timeline(now.history))
    if now.is_over:
        return Progress(state=now.state, headline="This cart was left", detail=now.because)
    loop = next((each for each in now.history if each.kind == "loop"), None)
    kept: dict[str, int] = {} if loop is None else loop.data["state"]
    is_kept_until = f"Left alone, it is emptied at {clock(now.wake_at)}." if now.open_wait and now.wake_at else ""
    return Progress(
        state=now.state,
        headline=_contents(kept),
        detail=is_kept_until,
        actions=[Action("order", "Order it", url), Action("empty", "Empty the cart", url, "plain")] if kept else [],
        steps=build_timeline(now.history),
    )


def _contents(kept: Mapping[str, int]) -> str:
    if not kept:
        return "A worker puts it in"
    products = Product.objects.in_bulk(list(kept), field_name="slug")
    total = sum(products[slug].price * quantity for slug, quantity in kept.items() if slug in products)
    things = ", ".join(f"{quantity} {TIMES} {products[slug]}" for slug, quantity in kept.items() if slug in products)
    return f"{things}: € {total}"


def _headline(order: Order, now: _Standing) -> str:
    if now.state == "completed":
        return "The parcel is on its way"
    if now.state == "rolling_back":
        return "Taking back what was done"
    if now.is_over:
        return "The order was stopped; nothing was charged" if _is_uncharged(now.history) else _stopped(order)
    if now.waits_for_transfer:
        return "Waiting for your transfer"
    if now.waits_for_bank:
        return "The bank does not answer; the order waits for it"
    if now.open_wait is not None:
        return "Paid; waiting for the shopkeeper"
    return _current(now)


def _stopped(order: Order) -> str:
    is_refunded = order.status == Order.Status.REFUNDED
    return "The money has been returned" if is_refunded else "The order was stopped"


def _is_uncharged(history: Sequence[HistoryEntry]) -> bool:
    """Whether that is known: the bank was never asked, or could not be reached, or has not told of a transfer."""
    charge = next((entry for entry in history if entry.location in {"charge", "transfer"}), None)
    if charge is None:
        return True
    if charge.location == "transfer":
        return charge.status != "completed"
    return charge.status != "completed" and charge.error is not None and charge.error.type == ServiceDownError.__name__


def _current(now: _Standing) -> str:
    if now.state == "pending":
        return "Waiting for a worker"
    if now.state == "paused":
        return "Paused by an operator"
    if now.is_over:
        return "Stopped"
    open_steps = [step for step in now.steps if step.status not in {"completed", "undone"}]
    if not open_steps:
        return "A worker has it" if now.state == "running" else "Waiting for a worker"
    newest = open_steps[-1]
    return f"{newest.title.capitalize()}: {newest.note}"


def _detail(now: _Standing) -> str:
    if now.because and now.is_over:
        return now.because
    if now.open_wait is not None and now.wake_at is not None:
        return f"Without an answer by {clock(now.wake_at)} the money is returned."
    if now.waits_for_bank and not now.is_over:
        return "It can still be cancelled. If the money was taken, it is returned then."
    return ""


def _milestones(order: Order, now: _Standing) -> list[Milestone]:
    if now.is_over and now.state != "completed":
        is_paid = _stages(_MILESTONES, now)[0].status == "done"
        ways = [Milestone("Placed", "done"), *([Milestone("Paid", "done")] if is_paid else [])]
        refunded = [Milestone("Refunded", "undone")] if order.status == Order.Status.REFUNDED else []
        return [*ways, Milestone("Stopped", "undone"), *refunded]
    return [Milestone("Placed", "done"), *_stages(_MILESTONES, now)]


def _stages(places: Mapping[str, str], now: _Standing) -> list[Milestone]:
    """The milestones, by the entries that stand for them."""
    done = {entry.location for entry in now.history if entry.status == "completed"}
    reached = {title: location in done for title, location in places.items()}
    current = next((title for title, is_reached in reached.items() if not is_reached), "")
    return [
        Milestone(title, "done" if is_reached else "current" if title == current else "ahead")
        for title, is_reached in reached.items()
    ]


def _order_actions(order: Order, now: _Standing) -> list[Action]:
    if now.is_over:
        refund = Action("refund", "Ask for the money back", reverse("shop:refund", args=[order.token]), "plain")
        return [refund] if order.status == Order.Status.SENT else []
    answer = reverse("shop:answer", args=[order.token])
    answers = [Action("approved", "Approve", answer), Action("rejected", "Reject", answer, "bad")]
    cancel = Action("cancel", "Cancel the order", reverse("shop:cancel", args=[order.token]), "plain")
    return [*(answers if now.open_wait is not None else []), cancel]
