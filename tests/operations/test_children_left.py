"""How many children a run has: those left to be cancelled, in the summary of one that has ended, and those by state."""

from __future__ import annotations

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable import Context, Handle, get_run, runs_info, runtime, workflow
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.operations import queries
from durable.store import Store
from durable.store.rules.row_rules import CASCADED_AT_ONCE
from tests.support.stores import in_force, settle

#: Of one transaction the first 300 children are cancelled: a test inside one would see other numbers.
pytestmark = pytest.mark.django_db(transaction=True)

MORE = 7


@workflow(name="tests.left.child")
def child(ctx: Context, _number: int) -> None:
    ctx.queue.next("never")


@workflow(name="tests.left.parent")
def parent(ctx: Context, size: int) -> None:
    ctx.map("many", child, [(number,) for number in range(size)])


def swept() -> None:
    """Do what the sweep does once for each parent."""
    after = ""
    while (found := runtime.current().store.cascade(after, runtime.current().now())) is not None:
        after = found[0]


def test_it_says_how_many_are_left_until_none_is(store: Store) -> None:
    parent.using(id="big").start(CASCADED_AT_ONCE + MORE)
    parent.using(id="small").start(2)
    settle(2)
    before = get_run("big").summary
    assert "left" not in before
    for run_id in ("big", "small"):
        get_run(run_id).cancel(reason="not wanted")
    left = f"{MORE} of its children are left to be cancelled"
    told = get_run("big").summary
    assert told.endswith(f"; {left}")
    assert "not wanted" in told
    found = runs_info(["small", "big"])
    assert found["big"].summary == get_run("big").info().summary == told
    assert "left" not in found["small"].summary
    swept()
    assert get_run("big").summary == told.removesuffix(f"; {left}")


def test_one_child_and_very_many_children(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    parent.using(id="big").start(CASCADED_AT_ONCE + 1)
    settle(1)
    get_run("big").cancel()
    assert get_run("big").summary.endswith("1 of its children is left to be cancelled")
    monkeypatch.setattr(queries, "_MOST_LEFT", 0)
    assert get_run("big").summary.endswith("more than 0 of its children are left to be cancelled")


def test_a_completed_run_says_it_without_a_semicolon(store: Store) -> None:
    @workflow(name="tests.left.completing")
    def completing(ctx: Context, size: int) -> None:
        for number in range(size):
            ctx.start_child(f"n{number}", child, number)

    completing.using(id="done").start(CASCADED_AT_ONCE + 2)
    settle(1)
    run = get_run("done")
    assert run.state == "completed"
    assert run.summary == "2 of its children are left to be cancelled"


def test_what_is_asked_costs_few_queries(db: None) -> None:
    with in_force():
        child.using(id="open").start(1)
        child.using(id="ended").start(1).cancel()
        run = parent.using(id="some").start(5)
        settle(2)
        for look, number in (
            (lambda: runs_info(["open"]), 1),
            (lambda: runs_info(["ended"]), 2),
            (lambda: runs_info(["open", "ended"]), 2),
            (lambda: run.child_counts("many"), 1),
        ):
            with CaptureQueriesContext(connections[conf.DATABASE]) as asked:
                assert look()
            assert len(asked) == number


def test_the_children_of_a_map_are_counted_by_state(store: Store) -> None:
    run = parent.using(id="some").start(5)
    settle(6)
    assert run.child_counts() == {"sleeping": 5}
    for number in range(2):
        get_run(f"some:many:{number}").send("never")
    get_run("some:many:4").pause()
    settle(2)
    expected = {"sleeping": 2, "paused": 1, "completed": 2}
    assert run.child_counts() == run.child_counts(group="many") == expected
    assert list(run.child_counts()) == list(expected), "in the order of the states"
    assert run.child_counts(group="other") == {}
    with pytest.raises(RunNotFoundError):
        Handle("unknown").child_counts()
