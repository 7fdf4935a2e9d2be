"""The orders of one demo: places and answers them, and reads where they stand, in two queries however many they are."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from django.utils.timezone import now

from durable import Handle
from durable.models import EntryMetadata, Run
from project.demo.display import OrderLine
from project.shop import checkout
from project.shop.models import Order, Product
from project.shop.workflows import sync

__all__ = ["Scene"]

NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Fritz", "Gustav", "Hedy", "Ivo", "Juno", "Kurt", "Lotte"]

# The entries that an order passes, and what it is doing until each is there.
_STAGES = {
    "charge": "charging the card",
    "mark paid": "charging the card",
    "approval": "waits for the shopkeeper",
    "ship": "its shipment buys the label",
    "hand over": "cooling off",
}
_ENDS = {"completed": "sent", "failed": "rejected, refunded", "cancelled": "cancelled", "rolling_back": "refunding"}


class Scene:
    """`orders` in the order in which they were placed; `rejected` are the ids of those that are turned down.

    The second customer fills a cart, click by click, and orders that; the others order at once.
    """

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.cart: Handle[int | None] | None = None
        self.cart_order: Order | None = None
        self.clicks: set[str] = set()  # the runs that they were sent to
        self.rejected: set[int] = set()
        self.syncs: list[Handle[str]] = []  # of the first customer, one at a time
        self._answered: set[int] = set()
        self._rejects_cart = False
        self._products = list(Product.objects.all())
        self._runs: dict[str, Run] = {}

    @property
    def placed(self) -> int:
        """How many orders were placed, that of a cart included whose run has not written it yet."""
        return len(self.orders) + (self.cart is not None and self.cart_order is None)

    def place_one(self, *, reject: bool) -> None:
        """A customer comes in."""
        count = self.placed
        name = NAMES[count % len(NAMES)]
        email = f"{name.lower()}-{count}@example.org"
        product = self._products[count % len(self._products)]
        if count == 1:
            self._rejects_cart = reject
            self._fill_cart(name, email)
            return
        order = checkout.place_order(name, email, {product: 1 + count % 3})
        self.orders.append(order)
        if count == 0:
            self.syncs = [sync.using(id=f"sync-{order.pk}-{number}").start(email) for number in range(3)]
        if reject:
            self.rejected.add(order.pk)

    def _fill_cart(self, name: str, email: str) -> None:
        """So many clicks, so fast that the second may come before a worker has taken up the first."""
        visitor = f"{name.lower()}-{now():%H%M%S%f}"
        for product in self._products[:3]:
            self.cart = checkout.add_to_cart(visitor, {product: 1})
            self.clicks.add(self.cart.id)
        checkout.send_to_cart(visitor, "order", {"name": name, "email": email})

    def _look_into_cart(self) -> None:
        if self.cart is not None and self.cart_order is None and (number := self.cart.output) is not None:
            self.cart_order = Order.objects.select_related("customer").get(pk=number)
            self.orders.append(self.cart_order)
            if self._rejects_cart:
                self.rejected.add(number)

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
        self._look_into_cart()
        ids = [order.run_id for order in self.orders]
        self._runs = Run.objects.in_bulk(ids)
        done: Mapping[str, set[str]] = defaultdict(set)
        completed = EntryMetadata.objects.filter(entry__run__in=ids, entry__location__in=_STAGES, status="completed")
        for run_id, location in completed.values_list("entry__run", "entry__location"):
            done[run_id].add(location)
        return [self._line(order, done[order.run_id]) for order in self.orders]

    def held_by(self, pids: Collection[int]) -> tuple[int, list[str]] | None:
        """A worker process of these pids that is at work on an order, and the orders that it holds; None if none is.

        Orders that are turned down do not count: they are to show something else.
        """
        held: dict[int, list[str]] = defaultdict(list)
        ids = [order.run_id for order in self.orders if order.pk not in self.rejected]
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
