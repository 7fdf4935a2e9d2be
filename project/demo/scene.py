"""The orders of one demo: places them, answers them, and reads where they stand, in two queries however many they are."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from django.utils.timezone import now

from durable.models import EntryMetadata, Run
from project.demo.display import OrderLine
from project.shop import checkout
from project.shop.models import Order, Product

__all__ = ["Scene"]

NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Fritz", "Gustav", "Hedy", "Ivo", "Juno", "Kurt", "Lotte"]

# The entries that an order passes, and what it is doing until each is there.
_STAGES = {
    "charge": "charging the card",
    "mark paid": "charging the card",
    "approval": "waits for the shopkeeper",
    "ship": "label and mail",
    "hand over": "cooling off",
}
_ENDS = {"completed": "sent", "failed": "rejected, refunded", "cancelled": "cancelled", "rolling_back": "refunding"}


class Scene:
    """`orders` in the order in which they were placed; `rejected` are the ids of those that are turned down."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.rejected: set[int] = set()
        self._answered: set[int] = set()
        self._products = list(Product.objects.all())
        self._runs: dict[str, Run] = {}

    def place_one(self, *, reject: bool) -> Order:
        """A customer comes in."""
        count = len(self.orders)
        name = NAMES[count % len(NAMES)]
        product = self._products[count % len(self._products)]
        order = checkout.place_order(name, f"{name.lower()}-{count}@example.org", {product: 1 + count % 3})
        self.orders.append(order)
        if reject:
            self.rejected.add(order.pk)
        return order

    def answer_waiting(self) -> list[tuple[Order, str]]:
        """The shopkeeper answers the orders that wait for it; what was answered."""
        answers = []
        for order in self.orders:
            if order.pk not in self._answered and self._run(order).waiting_for:
                verdict = "rejected" if order.pk in self.rejected else "approved"
                checkout.answer(order, verdict, by="the demo")
                self._answered.add(order.pk)
                answers.append((order, verdict))
        return answers

    def look(self) -> list[OrderLine]:
        """Read where the orders stand."""
        ids = [order.run_id for order in self.orders]
        self._runs = Run.objects.in_bulk(ids)
        done: Mapping[str, set[str]] = defaultdict(set)
        completed = EntryMetadata.objects.filter(entry__run__in=ids, entry__location__in=_STAGES, status="completed")
        for run_id, location in completed.values_list("entry__run", "entry__location"):
            done[run_id].add(location)
        return [self._line(order, done[order.run_id]) for order in self.orders]

    def held_by(self, pids: Collection[int]) -> tuple[int, list[str]] | None:
        """A worker process of these pids that is at work on an order, and the orders that it holds; None if none is."""
        held: dict[int, list[str]] = defaultdict(list)
        ids = [order.run_id for order in self.orders]
        for run in Run.objects.filter(pk__in=ids, lease_expires_at__gt=now()).order_by("created_at"):
            if (pid := _pid(run)) in pids:
                held[pid].append(run.pk)
        return next(iter(held.items()), None)

    def holder(self, run_id: str) -> int | None:
        """The worker process that held the run when we last looked."""
        run = self._runs[run_id]
        return _pid(run) if run.lease_expires_at else None

    def _run(self, order: Order) -> Run:
        return self._runs[order.run_id]

    def _line(self, order: Order, done: set[str]) -> OrderLine:
        run = self._run(order)
        stage = next((doing for location, doing in _STAGES.items() if location not in done), "on its way")
        return OrderLine(
            number=order.pk,
            customer=order.customer.name,
            done=len(done),
            stages=len(_STAGES),
            standing=_ENDS.get(run.state, stage if run.started_at else "queued"),
            worker=f"pid {_pid(run)}" if run.lease_expires_at else "",
            is_begun=run.started_at is not None,
            is_ended=run.finished_at is not None,
        )


def _pid(run: Run) -> int:
    """Of the worker that has the run: its name is `host:pid:random`."""
    return int(run.worker.split(":")[1])
