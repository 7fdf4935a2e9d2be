"""The shop's workflows with the production store failing at every one of its calls, those of the verbs included.

Whatever call fails, and however: the run comes to the same end, and the bank, the carrier and the post have the rows of
the undisturbed run. Runs and rows live in one database, as they do in production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from durable.core.errors import InvalidTransitionError
from durable.models import Attempt, EntryMetadata, QueueMessage, Run
from project.shop import checkout
from project.shop.models import Charge, Customer, Label, Mail, Order, Product, Refund, Subscription
from project.shop.workflows import postcard, subscription, surprise
from tests.faults.injection import HOWS, DatabaseWorld, Fault, FaultyHarness, persistently

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

#: A step with `once=True`: an attempt of it that was begun and not recorded is a death, and its charge is looked for.
ONCE = "charge"
#: Calls that change what a run is; the others read, or concern leases.
WRITES = {"create", "send", "change", "commit"}
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
Drive = Callable[[FaultyHarness], None]


def ordered(harness: FaultyHarness) -> Order:
    product = Product.objects.get_or_create(slug="box", defaults={"name": "Box", "price": Decimal(7)})[0]
    order = persistently(lambda: checkout.place_order("Ada", "ada@example.org", {product: 2}))
    harness.settle()
    return order


def approved(harness: FaultyHarness) -> None:
    order = ordered(harness)
    persistently(lambda: checkout.answer(order, "approved", by="tests"))
    harness.finish(order.run_id)


def rejected(harness: FaultyHarness) -> None:
    order = ordered(harness)
    persistently(lambda: checkout.answer(order, "rejected", by="tests"))
    harness.finish(order.run_id)


def cancelled(harness: FaultyHarness) -> None:
    order = ordered(harness)
    persistently(lambda: checkout.answer(order, "approved", by="tests"))
    harness.settle()
    harness.advance("2 seconds")  # a label that is bought again waits for its turn by the rate of the carrier
    harness.settle()
    with suppress(InvalidTransitionError):  # the first try was heard, though not answered
        persistently(lambda: checkout.cancel(order))
    harness.settle()


@transaction.atomic
def subscribe() -> Subscription:
    return Subscription.objects.create(customer=Customer.objects.create(email="bob@example.org", name="Bob"))


def stopped(harness: FaultyHarness) -> None:
    subscribed = persistently(subscribe)
    handle = persistently(lambda: subscription.using(id=f"s-{subscribed.pk}").start(subscribed.pk))
    harness.settle()
    harness.advance("31 days")
    harness.settle()
    persistently(lambda: handle.send("stop", id="stop"))
    harness.finish(handle)


def posted(harness: FaultyHarness) -> None:
    harness.finish(persistently(lambda: postcard.using(id="card").start("carl@example.org")))


def surprised(harness: FaultyHarness) -> None:
    harness.finish(persistently(lambda: surprise.using(id="cats").start()))


DRIVES: dict[str, Drive] = {each.__name__: each for each in (approved, rejected, cancelled, stopped, posted, surprised)}


def outcome() -> dict[str, Any]:
    """Everything that is to be the same, whatever happened on the way."""
    orders = dict(Order.objects.values_list("pk", "pk"))
    runs = Run.objects.order_by("workflow", "created_at")  # a second attempt makes what follows later
    entries = EntryMetadata.objects.values_list(
        "entry__run__workflow", "entry__location", "entry__kind", "status", "attempts", "entry__run"
    )
    failed = Attempt.objects.all()
    deaths = {
        (each.run_id, each.number) for each in failed if each.location == ONCE and each.error.type == "WorkerDied"
    }
    return {
        "runs": [(run.workflow, run.state, run.error and run.error.message, run.lease_expires_at) for run in runs],
        "entries": sorted(
            (workflow, location, kind, status, attempts - sum((run, number) in deaths for number in range(1, attempts)))
            if location == ONCE
            else (workflow, location, kind, status, attempts)
            for workflow, location, kind, status, attempts, run in entries
        ),
        "messages": sorted(QueueMessage.objects.values_list("queue", "order", "state", "received_by")),
        "attempts": len(failed) - len(deaths),
        "orders": sorted(Order.objects.values_list("status", flat=True)),
        "charges": Counter(Charge.objects.values_list("amount", flat=True)),
        "refunds": Refund.objects.count(),
        "labels": Counter(Label.objects.values_list("is_void", flat=True)),
        "mails": Counter(subject.rstrip("0123456789") for subject in Mail.objects.values_list("subject", flat=True)),
        "order count": len(orders),
    }


class _Undo(Exception):
    pass


def trial(drive: Drive, faults: Sequence[Fault] = (), **options: Any) -> tuple[dict[str, Any], FaultyHarness]:
    """One play in rows of its own, which are undone."""
    harness = FaultyHarness(START, store=DatabaseWorld(), **options)
    found: dict[str, Any] = {}
    try:
        with transaction.atomic():
            with harness:
                harness.faulty.arm(faults)
                drive(harness)
            found = outcome()
            raise _Undo
    except _Undo:
        return found, harness


def plans(name: str, calls: Sequence[str]) -> Iterator[Fault]:
    """Every call in one way, by turns. On the main path, in each way what writes and the first of each call."""
    for number, call in enumerate(calls, 1):
        in_each = name == "approved" and (call in WRITES or call not in calls[: number - 1])
        yield from (Fault(number, how) for how in (HOWS if in_each else [HOWS[number % len(HOWS)]]))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIVES)
def test_a_fault_at_every_call_changes_neither_outcome_nor_rows(name: str) -> None:
    undisturbed, harness = trial(DRIVES[name])
    calls = list(harness.faulty.calls)
    assert len(calls) > 8, calls
    for fault in plans(name, calls):
        found, faulty = trial(DRIVES[name], [fault])
        assert found == undisturbed, f"{fault} of {list(enumerate(calls, 1))}, struck {faulty.faulty.struck}"


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_faults_in_pairs_change_neither_outcome_nor_rows(data: st.DataObject) -> None:
    drive = data.draw(st.sampled_from(list(DRIVES.values())), label="drive")
    faults = st.lists(st.builds(Fault, st.integers(1, 60), st.sampled_from(HOWS)), min_size=2, max_size=2)
    pair = data.draw(faults, label="faults")
    undisturbed, _ = trial(drive)
    found, harness = trial(drive, pair, counts_crashes=False)
    note(f"struck {harness.faulty.struck} of {harness.faulty.calls}")
    assert found == undisturbed


def test_the_trials_leave_nothing_behind() -> None:
    trial(approved)
    assert connection.in_atomic_block
    assert not Run.objects.exists()
    assert not Charge.objects.exists()
