"""Encrypted values that belong to their place, and a run of many records."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Break, Context, Continue, current_step, runtime
from durable.core.places import Place
from durable.crypto import FernetCodec
from durable.migrations import RenameStep
from durable.models import Entry, Run, StepSave
from durable.renames.rewriting import RenameRefused
from tests.renames.conftest import apply, go_on, locations
from tests.replay_check.conftest import NAME, Deploys


@pytest.fixture
def bound(deploys: Deploys) -> Iterator[Deploys]:
    """The values are encrypted for their places."""
    at = replace(deploys.at, codec=FernetCodec(keys=[Fernet.generate_key()], bind="require"))
    runtime.activate(at)
    deploys.at = at
    yield deploys
    runtime.deactivate(at)


def orders(loop: str, step: str, fork: str) -> object:
    def body(ctx: Context, state: list[str]) -> Break[list[str]] | Continue[list[str]]:
        paid = ctx.step(step, lambda: "paid")
        both = ctx.join(fork, {"label": lambda c: c.step("buy", lambda: "bought"), "mail": lambda c: "sent"})
        if len(state) == 1:
            ctx.sleep("rest", "1 day")
            return Break([*state, paid, both["label"], both["mail"]])
        return Continue([*state, paid])

    def order(ctx: Context) -> object:
        first: list[str] = []
        return ctx.loop(loop, body, first)

    return order


def test_values_that_are_bound_to_their_place_are_bound_to_the_new_one(bound: Deploys) -> None:
    bound.deploy(orders("orders", "charge", "ship"))  # type: ignore[arg-type]  # a workflow function
    bound.start()
    apply(RenameStep(NAME, "orders", "all orders", wait=0))
    apply(RenameStep(NAME, "all orders/~/charge", "all orders/~/charge card", wait=0))
    apply(RenameStep(NAME, "all orders/~/ship", "all orders/~/send", wait=0))
    assert {"all orders", "all orders/~1/charge card", "all orders/~1/send/label/buy"} <= set(locations())
    bound.deploy(orders("all orders", "charge card", "send"))  # type: ignore[arg-type]  # a workflow function
    assert bound.goes_on()
    assert go_on(bound) == "completed"


def test_what_a_step_has_saved_is_found_under_the_new_name(bound: Deploys) -> None:
    found: list[object] = []

    def copies() -> None:
        found.append(current_step().saved)
        current_step().save({"row": 7})
        if len(found) == 1:
            raise ConnectionError("gone")

    def order(name: str) -> object:
        def order(ctx: Context) -> None:
            ctx.step(name, copies, retry_backoff_base=3600, retry_backoff_max=3600)

        return order

    bound.deploy(order("copy"))  # type: ignore[arg-type]  # a workflow function
    bound.start()
    assert StepSave.objects.get().location == "copy"
    apply(RenameStep(NAME, "copy", "copy rows", wait=0))
    bound.deploy(order("copy rows"))  # type: ignore[arg-type]  # a workflow function
    assert go_on(bound) == "completed"
    assert found == [None, {"row": 7}]
    assert not StepSave.objects.exists()


def test_a_value_that_the_codec_cannot_read_stops_the_migration_in_its_run(bound: Deploys) -> None:
    bound.deploy(orders("orders", "charge", "ship"))  # type: ignore[arg-type]  # a workflow function
    bound.start()
    before = locations()
    other = FernetCodec(keys=[Fernet.generate_key()], bind="require")
    text = other.encode("paid", place=Place("order-1", "output", "orders/~1/charge"))
    Entry.objects.filter(location="orders/~1/charge").update(output=text)
    with pytest.raises(RenameRefused, match='a value of the run "order-1" cannot be read'):
        apply(RenameStep(NAME, "orders/~/charge", "orders/~/charge card", wait=0))
    assert locations() == before


@pytest.mark.slow
@pytest.mark.usefixtures("db")
def test_30_000_entries_take_no_more_memory_at_a_time_than_a_few_batches() -> None:
    number = 30_000
    now = timezone.now()
    run = Run.objects.create(id="long", workflow=NAME, queue="default", input="{}", state="sleeping", created_at=now)
    for first in range(0, number, 5_000):
        Entry.objects.bulk_create(
            Entry(run=run, location=f"pages/~{n}/get", kind="step", ordinal=n) for n in range(first, first + 5_000)
        )
    most = statements = 0

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal most, statements
        statements += 1
        if statements % 21 == 0:
            gc.collect()  # only what is in use is counted
            # isinstance() would ask proxies, also one whose object is gone
            most = max(most, sum(type(each) is Entry for each in gc.get_objects()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        apply(RenameStep(NAME, "pages/~/get", "pages/~/fetch", wait=0))
    assert statements < 300
    assert 0 < most <= 3 * 500
    assert Entry.objects.filter(location__endswith="/fetch").count() == number


def test_the_statements_grow_with_the_batches_and_not_with_the_records(deploys: Deploys) -> None:
    def pays(ctx: Context) -> None:
        ctx.step("charge", print)

    deploys.deploy(pays)

    def statements(old: str, new: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            apply(RenameStep(NAME, old, new, wait=0))
        return len(captured)

    for number in range(3):
        deploys.start(id=f"few-{number}")
    few = statements("charge", "charge card")
    for number in range(40):
        deploys.start(id=f"more-{number}")
    assert statements("charge card", "charge the card") == few
