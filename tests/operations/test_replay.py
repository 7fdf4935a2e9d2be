"""Replaying on a database: all or nothing, under the run's lock, on each store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from durable import Break, Context, Continue, Handle, current_step, operations, workflow
from durable.errors import EntryNotFoundError, RunConflictError, StalePlanError, StaleRunError
from durable.models import Attempt, Entry, OperatorAction, QueueMessage, Run
from durable.operations import ReplayPlan, acting_as, audit
from durable.operations.audit import Actor
from durable.runtime import Runtime
from tests.support.stores import in_force, passed

CALLS: list[str] = []
KEYS: list[str] = []


def do(name: str) -> str:
    CALLS.append(name)
    KEYS.append(current_step().idempotency_key)
    if name == "fails once" and CALLS.count(name) == 1:
        raise ValueError(name)
    return name


@workflow(name="tests.replay.fulfil")
def fulfil(ctx: Context, order: int) -> list[Any]:
    def item(scope: Context, number: int) -> Break | Continue:
        scope.step("item", do, f"item {number}")
        return Break(number) if number == order else Continue(number + 1)

    started = ctx.now()
    ctx.step("charge", do, "charge")
    ctx.loop("items", item, state=1, history_prune_interval=1)
    message = ctx.queue.next("approval", ["approved"], completable=True)
    ctx.join(
        "ship",
        {
            "label": lambda scope: scope.step("buy", do, "buy"),
            "mail": lambda scope: scope.step("send", do, "fails once", retry_backoff_base=0),
        },
    )
    ctx.step("close", do, "close")
    message.complete("thanks")
    return [message.body, started.isoformat()]


@pytest.fixture
def at(db: None) -> Iterator[Runtime]:
    CALLS.clear()
    KEYS.clear()
    with in_force() as at:
        yield at


@pytest.fixture
def run(at: Runtime) -> Handle:
    """A run that went through it all."""
    run = fulfil.using(id="first").start(3)
    run.send("approved", {"by": 7}, id="once")
    finished(at, run)
    CALLS.clear()
    OperatorAction.objects.all().delete()
    return run


def finished(at: Runtime, run: Handle) -> Handle:
    for _ in range(5):
        if run.state in ("pending", "sleeping"):
            passed(at, run.id)
    assert run.state == "completed"
    return run


def rows() -> list[list[Any]]:
    """All that there is, but for what a lock leaves."""
    models = (Run, Entry, Attempt, QueueMessage, OperatorAction)
    return [list(model.objects.order_by("pk").values()) for model in models]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("target", "calls"),
    [
        ("charge", ["charge", "item 1", "item 2", "item 3", "buy", "fails once", "close"]),
        ("items/~2/item", ["item 1", "item 2", "item 3", "buy", "fails once", "close"]),
        ("approval", ["buy", "fails once", "close"]),
        ("ship/label/buy", ["buy", "close"]),
        ("close", ["close"]),
    ],
)
def test_what_runs_again(at: Runtime, run: Handle, target: str, calls: list[str], in_place: bool) -> None:
    before, output = rows(), run.output
    plan = run.plan_replay(target)
    assert rows() == before  # a plan changes nothing
    again = run.replay(target, in_place=in_place, plan_hash=plan.hash)
    assert {each.location for each in again.history()} == set(plan.kept)
    CALLS.append("fails once")  # so that it does not fail again
    finished(at, again)
    assert sorted(CALLS[1:]) == sorted(calls)
    assert len(KEYS) == len(set(KEYS)) + 1  # but for the failed attempt and its retry
    assert again.output == output
    [message] = at.store.messages(again.id)
    assert (message.state, message.response) == ("completed", '"thanks"')
    if not in_place:
        untouched = [[row for row in table if row.get("run_id", row["id"]) == "first"] for table in rows()[:4]]
        assert untouched == [[row for row in table if row.get("run_id", row["id"]) == "first"] for table in before[:4]]


PLACES = ["charge", "items", "approval", "ship/label/buy", "ship/mail/send", "close"]


@pytest.mark.parametrize("first", PLACES)
def test_the_same_id_from_another_place_is_refused(at: Runtime, run: Handle, first: str) -> None:
    again = run.replay(first, id="again")

    def check() -> None:
        for place in PLACES:
            if place == first:
                assert run.replay(place, id="again").id == again.id
            else:
                with pytest.raises(RunConflictError, match=f'was not replayed from "{place}"'):
                    run.replay(place, id="again")

    check()
    passed(at, again.id)
    check()
    finished(at, again)
    check()
    assert Run.objects.count() == 2


def test_the_same_id_from_a_place_that_means_the_same_is_not_refused(run: Handle) -> None:
    again = run.replay("items/~2/item", id="again")
    assert run.replay("items", id="again").id == again.id
    with pytest.raises(EntryNotFoundError):
        run.replay("itms", id="again")
    again.replay("charge", in_place=True)  # what it began with can no longer be told
    assert run.replay("items", id="again").id == again.id


def test_the_same_id_as_a_restart_or_a_given_output_is_refused(run: Handle) -> None:
    run.restart(id="restarted")
    with acting_as(Actor("cli", label="ops"), reason="by hand"):
        run.give_output("close", "closed", id="given")
    for run_id in ("restarted", "given"):
        with pytest.raises(RunConflictError, match="was not replayed"):
            run.replay("close", id=run_id)


def test_failed_attempts_go_and_stay_with_their_steps(at: Runtime, run: Handle) -> None:
    new = run.replay("close")
    assert [each.location for each in at.store.attempts(new.id)] == ["ship/mail/send"]
    run.replay("ship", in_place=True)
    assert at.store.attempts(run.id) == []


@pytest.mark.parametrize("in_place", [False, True])
def test_all_of_it_or_nothing(at: Runtime, run: Handle, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    before = rows()

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(type(at.store), "log", broken)
    with pytest.raises(ConnectionError):
        run.replay("approval", in_place=in_place)
    assert rows() == before


@pytest.mark.parametrize("in_place", [False, True])
def test_it_happens_if_the_callers_transaction_commits(run: Handle, in_place: bool) -> None:
    before = rows()
    with suppress(ZeroDivisionError), transaction.atomic():
        run.replay("approval", in_place=in_place)
        raise ZeroDivisionError
    assert rows() == before


def test_two_operators_that_saw_the_same(run: Handle) -> None:
    plan = run.plan_replay("close")
    seen = audit.revision(operations.record(run.id))
    with acting_as(Actor("cli"), expected=seen):
        run.replay("close", in_place=True, plan_hash=plan.hash)
        with pytest.raises(StaleRunError):
            run.replay("close", in_place=True, plan_hash=plan.hash)
    with pytest.raises(StalePlanError):
        run.replay("close", in_place=True, plan_hash=plan.hash)


def test_a_replay_of_a_replay_whose_first_run_is_gone(at: Runtime, run: Handle) -> None:
    """The history of a new run is its own, and read also when no record says any more where it came from."""
    output = run.output
    second = run.replay("close")
    Run.objects.filter(id=run.id).delete()
    finished(at, second)
    assert CALLS == ["close"]
    third = finished(at, second.replay("close"))
    assert third.output == output
    assert CALLS == ["close", "close"]


def test_a_plan_is_read_in_five_queries(run: Handle) -> None:
    with CaptureQueriesContext(connections["default"]) as queries:
        assert run.plan_replay("charge").reruns
    # two for its family: the children of the iterations that the loop has pruned, and the replays that read the run
    assert len(queries) == 5


def test_from_async_code(at: Runtime, run: Handle) -> None:

    async def replayed() -> tuple[ReplayPlan, Handle]:
        plan = await run.aplan_replay("close")
        return plan, await run.areplay("close", plan_hash=plan.hash, id="second")

    plan, new = async_to_sync(replayed)()
    assert (plan.reruns, new.id) == (("close",), "second")
    finished(at, new)
    assert CALLS == ["close"]
