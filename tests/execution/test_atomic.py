"""`atomic=True`: the rows that a step writes and its record are one commit."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from durable import Break, Context, Continue, RetryLater, current_step
from durable.errors import OpenTransactionError
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of

pytestmark = pytest.mark.django_db


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def create(name: str) -> int:
    return int(Group.objects.create(name=name).pk > 0)


def test_writes_and_returns(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        found = await ctx.step("a", create, "one", atomic=True)
        await ctx.sleep("rest", 60)
        return found

    assert h.finish(h.start(flavour(ship))).output == 1
    assert names() == ["one"]


@pytest.mark.parametrize(("when", "left"), [("before", []), ("after", ["one"])])
def test_a_crash_takes_both_or_neither(h: Harness, flavour: Flavour, when: Any, left: list[str]) -> None:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", create, "one", atomic=True)

    run = h.start(flavour(ship))
    with h.crash_at(1, when), pytest.raises(SimulatedCrash):
        h.run(run)
    assert names() == left
    h.finish(run)
    assert names() == ["one"]
    assert run.output == 1


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", create, "one", atomic=True)
        await ctx.step("b", lambda: 1)
        await ctx.step("c", create, "two", atomic=True, ephemeral=True)

    assert h.crash_everywhere(flavour(ship), check=names) == 8
    assert names() == []


def test_what_a_failed_attempt_wrote_is_gone(h: Harness, flavour: Flavour) -> None:
    calls: list[int] = []

    def sometimes(name: str) -> int:
        create(name)
        calls.append(1)
        if len(calls) < 3:
            create(name)  # twice the same name
        return len(calls)

    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", sometimes, "one", atomic=True)

    run = h.start(flavour(ship))
    assert h.finish(run).output == 3
    assert names() == ["one"]
    assert [each.error.type for each in h._store.attempts(run.id)] == ["IntegrityError"] * 2


def test_an_output_that_the_codec_refuses_undoes_the_writes(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: Group.objects.create(name="one"), atomic=True)

    check_failed(h.run(h.start(flavour(ship))), "PayloadError")
    assert names() == []


def test_a_commit_that_is_refused_is_a_failed_attempt(h: Harness, flavour: Flavour) -> None:
    """A constraint that is checked at the end, say."""
    refusals = [IntegrityError("deferred")]
    store_transaction = h._store.transaction

    def refusing() -> Any:
        from contextlib import contextmanager

        @contextmanager
        def wrapped() -> Any:
            with store_transaction():
                yield
                if refusals:
                    raise refusals.pop()

        return wrapped()

    h._store.transaction = refusing  # type: ignore[method-assign]

    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", create, "one", atomic=True)

    run = h.start(flavour(ship))
    assert h.run(run).state == "sleeping"
    entry = run.history()[0]
    assert (entry.status, entry.attempts) == ("failed", 1)
    assert h.finish(run).output == 1
    assert names() == ["one"]


def test_sync_functions_of_an_async_workflow_may_use_the_orm(h: Harness) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.step("a", create, "one")
        return await ctx.step("b", names)

    assert h.run(h.start(ship)).output == ["one"]


def test_async_functions_may_use_the_orm(h: Harness, flavour: Flavour) -> None:
    async def later(name: str) -> str:
        group = await Group.objects.acreate(name=name)
        return group.name

    async def ship(ctx: Any) -> Any:
        return await ctx.step("a", later, "one")

    assert h.run(h.start(flavour(ship))).output == "one"
    assert names() == ["one"]


def test_an_async_function_cannot_be_atomic_in_an_async_workflow(h: Harness) -> None:
    async def later() -> None:
        return None

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", later, atomic=True, max_retries=0)

    assert "a database transaction stays in one thread" in error_of(h.run(h.start(ship))).message


def test_in_branches_it_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    """Its commit takes its record alone there; what stands before it is committed before."""

    async def one(ctx: Any) -> Any:
        await ctx.step("before", lambda: 1, ephemeral=True)
        await ctx.step("a", create, "one", atomic=True)
        return await ctx.step("b", create, "two", atomic=True)

    async def other(ctx: Any) -> Any:
        async def iteration(ctx: Any, n: int) -> Any:
            await ctx.step("a", create, f"other {n}", atomic=True)
            return Break(n) if n == 2 else Continue(n + 1)

        return await ctx.loop("loop", iteration, state=0)

    async def ship(ctx: Any) -> Any:
        return await ctx.join("join", {"one": one, "other": other})

    assert h.crash_everywhere(flavour(ship), check=names) > 10
    assert names() == []


# -- inside a transaction of the workflow's


def test_an_operation_inside_a_transaction_stops_the_run_before_anything_runs(h: Harness) -> None:
    called: list[int] = []

    def ship(ctx: Context) -> None:
        with transaction.atomic():
            ctx.step("charge", called.append, 1)

    ended = h.run(h.start(ship))
    check_failed(ended, OpenTransactionError.__name__, 'step "charge" was called inside transaction.atomic()')
    assert called == []


def test_code_that_swallows_the_error_does_not_go_on(h: Harness) -> None:
    def ship(ctx: Context) -> str:
        try:
            with transaction.atomic():
                ctx.step("charge", lambda: 1)
        except OpenTransactionError:
            pass
        return "shipped"

    check_failed(h.run(h.start(ship)), OpenTransactionError.__name__)


# -- other options of a step


def test_is_rolled_back_and_tried_again_when_it_asks_for_that(h: Harness) -> None:
    attempts: list[int] = []

    def asks_once(name: str) -> list[int]:
        attempts.append(current_step().attempt)
        create(name)
        if len(attempts) == 1:
            raise RetryLater("1 hour", counts=False)
        return attempts

    async def ship(ctx: Any) -> Any:
        return await ctx.step("call", asks_once, "one", atomic=True, max_retries=0)

    run = h.start(ship)
    assert h.run(run).state == "sleeping"
    assert names() == []
    assert h.finish(run).output == [1, 2]
    assert names() == ["one"]


def test_cannot_save(h: Harness, flavour: Flavour) -> None:
    def work() -> None:
        assert current_step().saved is None
        current_step().save(1)

    async def ship(ctx: Any) -> Any:
        return await ctx.step("import", work, atomic=True)

    check_failed(
        h.run(h.start(flavour(ship))),
        "CriticalError",
        "it is atomic: what an attempt has done is rolled back if it fails",
    )
