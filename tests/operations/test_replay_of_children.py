"""What the preview of a replay says of the children that it starts again, and that just these are started."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from durable import Break, Context, Continue, current_step, get_run, workflow
from durable.core.records import EntryKind
from durable.models import Run
from durable.operations.replay_plan import StartsAgain
from durable.testing import Harness
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.slow

KEYS: list[str] = []


def do(number: int) -> int:
    KEYS.append(current_step().idempotency_key)
    return number


@workflow(name="tests.again.bill")
def bill(ctx: Context, number: int) -> int:
    return ctx.step("charge", do, number)


@workflow(name="tests.again.label")
def label(ctx: Context, number: int) -> int:
    return ctx.step("print", do, number)


@workflow(name="tests.again.night")
def night(ctx: Context) -> int:
    """Three ways to start children, among steps."""
    ctx.step("customers", int)
    mail = ctx.start_child("mail", label, 0)
    ctx.map("bills", bill, [(number,) for number in range(3)])
    ctx.child("label", label, 1)
    mail.result("mailed")
    return ctx.step("report", int)


@workflow(name="tests.again.looping")
def looping(ctx: Context) -> int:
    """A child and a map of two in each of five iterations, of which the older ones are pruned."""

    def round_of(scope: Context, number: int) -> Break | Continue:
        scope.child("label", label, number)
        scope.map("bills", bill, [(1,), (2,)])
        return Break(number) if number == 5 else Continue(number + 1)

    ctx.loop("rounds", round_of, state=1, history_prune_interval=1)
    return ctx.step("report", int)


@pytest.fixture(params=["database", "memory"])
def store(request: pytest.FixtureRequest, db: None) -> Iterator[None]:
    KEYS.clear()
    if request.param == "memory":
        with Harness():
            yield
    else:
        with in_force():
            yield


def completed(flow: Any) -> None:
    flow.using(id="one").start()
    ended("one")


def ended(run_id: str) -> None:
    for _ in range(50):
        if get_run(run_id).state == "completed":
            return
        settle()
    raise AssertionError(get_run(run_id).state)


MAIL = StartsAgain(location="mail", workflow="tests.again.label", number=1)
BILLS = StartsAgain(location="bills", workflow="tests.again.bill", number=3)
LABEL = StartsAgain(location="label", workflow="tests.again.label", number=1)
STARTS = [
    ("customers", (MAIL, BILLS, LABEL)),
    ("mail", (MAIL, BILLS, LABEL)),
    ("bills", (BILLS, LABEL)),
    ("label", (LABEL,)),
    ("mailed", ()),
    ("report", ()),
]


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize(("location", "starts"), STARTS, ids=[location for location, _ in STARTS])
def test_what_is_said_is_what_is_started(
    store: None, location: str, starts: tuple[StartsAgain, ...], in_place: bool
) -> None:
    completed(night)
    before = list(KEYS)
    plan = get_run("one").plan_replay(location)
    assert plan.starts == starts
    number = sum(each.number for each in starts)
    assert (plan.counts.starts, plan.counts.started_children) == (len(starts), number)
    assert [each for each in plan.notes if "started again" in each] == ([plan.starts_note] if starts else [])
    assert before == KEYS
    new = get_run("one").replay(location, in_place=in_place, plan_hash=plan.hash)
    ended(new.id)
    assert len(KEYS) - len(before) == number
    assert set(before).isdisjoint(KEYS[len(before) :])


def test_the_first_note_has_the_number_and_the_workflows(store: None) -> None:
    completed(night)
    run = get_run("one")
    plan = run.plan_replay("bills")
    assert (
        plan.notes[0]
        == plan.starts_note
        == (
            '4 children of "tests.again.bill", "tests.again.label" are started again, as new runs with new idempotency keys: '
            "what those before did stays, and is done again"
        )
    )
    assert run.plan_replay("label").starts_note == (
        '1 child of "tests.again.label" is started again, as a new run with new idempotency keys: what the one before did '
        "stays, and is done again"
    )


@pytest.mark.parametrize("is_short", [False, True])
def test_the_children_of_pruned_iterations_are_counted(
    store: None, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("durable.operations.replay"), "_SHORT", 1_000 if is_short else -1)
    completed(looping)
    before = len(KEYS)
    entries = [each for each in get_run("one").history() if each.kind in (EntryKind.CHILD, EntryKind.MAP)]
    assert len(entries) < 10, "none was pruned"
    plan = get_run("one").plan_replay("rounds")
    assert plan.starts == (
        StartsAgain(location="rounds", workflow="tests.again.bill", number=10),
        StartsAgain(location="rounds", workflow="tests.again.label", number=5),
    )
    assert get_run("one").plan_replay("report").starts == ()
    ended(get_run("one").replay("rounds").id)
    assert len(KEYS) - before == plan.counts.started_children


def test_a_plan_lists_the_first_operations_and_counts_all(db: None) -> None:
    with in_force():
        many.using(id="one").start()
        ended("one")
        plan = get_run("one").plan_replay("before")
        assert (len(plan.starts), plan.counts.starts, plan.counts.started_children) == (50, 60, 60)
        assert [each.location for each in plan.starts] == [f"child {number}" for number in range(50)]
        assert Run.objects.filter(workflow="tests.again.bill").count() == 60


@workflow(name="tests.again.many")
def many(ctx: Context) -> None:
    ctx.step("before", int)
    for each in [ctx.start_child(f"child {number}", bill, number) for number in range(60)]:
        each.result(f"{each.id} read")


def test_a_start_that_was_refused_has_started_nothing(store: None) -> None:
    label.using(id="taken").start(1)
    refused.using(id="one").start()
    for _ in range(5):
        settle()
    assert get_run("one").state == "failed"
    assert get_run("one").plan_replay("before").starts == ()


@workflow(name="tests.again.refused")
def refused(ctx: Context) -> None:
    ctx.step("before", int)
    ctx.child("mine", bill.using(id="taken"), 1)


def test_the_plan_of_a_replay_of_a_replay_counts_what_it_has_copied(store: None) -> None:
    completed(night)
    second = get_run("one").replay("report")
    ended(second.id)
    assert second.plan_replay("bills").starts == (BILLS, LABEL)
