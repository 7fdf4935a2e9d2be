"""Orders survive: workers are killed at random moments, Redis is flushed, and every promise holds in the rows."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
import redis

from durable import Handle, get_run
from durable.models import Entry, Run
from project.shop.checkout import place_order
from project.shop.models import Charge, Label, Order, Product
from tests.e2e.workers import Workers
from tests.e2e.workflows import collect

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

ORDERS = 80
COLLECTORS = 4
MESSAGES = 30
KILLS = 8
SEED = 20260101


def test_orders_survive_killed_workers_and_a_flushed_redis(
    child_environment: dict[str, str], redis_connection: redis.Redis, tmp_path: Path
) -> None:
    """80 orders, 3 workers, SIGKILL at random moments, Redis flushed twice."""
    chance = random.Random(SEED)
    product = Product.objects.create(name="Box", price=7)
    log = tmp_path / "workers.log"
    with Workers(3, child_environment, log) as workers:
        orders = [place_order(f"Cat {n}", f"cat{n}@example.com", {product: 1}) for n in range(ORDERS)]
        collectors = [collect.using(id=f"collect-{n}").start(MESSAGES) for n in range(COLLECTORS)]
        disturb(workers, redis_connection, chance, orders, collectors)
        wait_until_ended(log)
    assert workers.kills == KILLS
    assert_orders_are_whole(orders)
    assert_messages_came_once_and_in_order(collectors)
    assert_one_writer_per_run()


def disturb(
    workers: Workers,
    redis_connection: redis.Redis,
    chance: random.Random,
    orders: list[Order],
    collectors: list[Handle],
) -> None:
    """Approve orders and send numbers, while workers die and Redis forgets."""
    waiting = {order.run_id for order in orders}
    number = 0
    deadline = time.monotonic() + 300
    while waiting or number < MESSAGES:
        assert time.monotonic() < deadline, f"{len(waiting)} orders have not come to their approval"
        ready = Run.objects.filter(pk__in=waiting, waiting_for__contains="/approved/").values_list("pk", flat=True)
        for run_id in list(ready)[:10]:
            get_run(run_id).send("approved", {"by": "the test"})
            waiting.discard(run_id)
        if number < MESSAGES:
            for handle in collectors:
                handle.send("numbers", number)
            number += 1
        progress = 1 - len(waiting) / len(orders)
        if workers.kills < KILLS and progress >= workers.kills / KILLS:
            time.sleep(chance.uniform(0, 1.0))  # a random moment is what is wanted here
            workers.kill_one(chance)
        if number in (MESSAGES // 3, MESSAGES // 2):
            redis_connection.flushdb()
        time.sleep(0.05)


def wait_until_ended(log: Path) -> None:
    deadline = time.monotonic() + 300
    while left := Run.objects.exclude(state__in=["completed", "failed", "cancelled"]).count():
        shown = log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, f"{left} runs have not ended: {unended()}; the workers wrote: {shown}"
        time.sleep(0.2)


def unended() -> list[object]:
    rows = Run.objects.exclude(state__in=["completed", "failed", "cancelled"])
    return list(rows.values("id", "state", "wake_at", "waiting_for", "lease_expires_at", "summary", "crashes")[:5])


def assert_orders_are_whole(orders: list[Order]) -> None:
    states = Counter(Run.objects.filter(workflow="shop.fulfil").values_list("state", flat=True))
    assert states == {"completed": ORDERS}
    charges = Counter(Charge.objects.values_list("reference", flat=True))
    assert charges == {order.payment_reference: 1 for order in orders}
    assert Label.objects.count() == ORDERS
    assert Order.objects.filter(status=Order.Status.SENT).count() == ORDERS


def assert_messages_came_once_and_in_order(collectors: list[Handle]) -> None:
    for handle in collectors:
        assert handle.output == list(range(MESSAGES))


def assert_one_writer_per_run() -> None:
    """Two writers would have drawn the same numbers of the run's one counter."""
    for run in Run.objects.all():
        rows = Entry.objects.filter(run=run).values_list("ordinal", "metadata__finished_ordinal")
        drawn = [number for row in rows for number in row if number is not None]
        assert len(drawn) == len(set(drawn)), f"{run.pk}: {sorted(drawn)}"
