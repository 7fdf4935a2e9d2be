"""What is shown of the children of a map, and of one that waits for its turn."""

from __future__ import annotations

import pytest
from django.utils import timezone

from durable import Context, runtime, workflow
from durable.inspection.explanation import explain
from durable.inspection.family import count_children
from durable.models import Run
from tests.support.stores import passed


@workflow(name="shown.one")
def one(ctx: Context, number: int) -> int:
    return ctx.step("twice", lambda: number)


@workflow(name="shown.alone")
def alone(ctx: Context) -> None:
    ctx.sleep("a while", 3600)


@workflow(name="shown.parent")
def parent(ctx: Context) -> int:
    ctx.start_child("alone", alone.using(when_parent_ends="leave"))
    return len(ctx.map("bills", one, [(number,) for number in range(5)], at_once=2).outputs)


def headline(run_id: str) -> str:
    return str(explain(Run.objects.get(id=run_id), timezone.now()).headline)


@pytest.mark.django_db(transaction=True)
def test_a_parent_and_its_children_are_explained_and_counted() -> None:
    at = runtime.current()
    run = parent.using(id="order-7").start()
    passed(at, "order-7")
    assert headline("order-7") == (
        'Waiting for the children of the map "bills": 0 of 5 have ended, 2 are under way, 3 wait for their turn'
    )
    assert headline("order-7:bills:4") == 'Waits for its turn: 2 of 2 of the map "bills" of "order-7" are under way'
    for number in range(2):
        passed(at, f"order-7:bills:{number}")
    alone_ones, bills = count_children("order-7").groups
    assert (alone_ones.name, dict(alone_ones.states)) == ("", {"pending": 1})
    assert (bills.name, dict(bills.states)) == ("bills", {"pending": 3, "completed": 2})
    assert len(run.children(group="bills", state="completed")) == 2
    for number in range(2, 5):
        passed(at, f"order-7:bills:{number}")
    passed(at, "order-7")
    assert run.result(timeout=1) == 5
    assert not count_children("order-7:alone")
