"""The harness in async tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connections
from django.test import TestCase, TransactionTestCase

from durable import AsyncContext
from durable.errors import MessageTimeoutError
from durable.testing import Harness
from tests.core.flavours import Flavour


async def async_order(ctx: AsyncContext, name: str) -> Any:
    await ctx.step("create", create, name, atomic=True)
    await ctx.step("async step", asleep)
    message = await ctx.queue.next("go", timeout=60, completable=True)
    await message.complete("gone")
    await ctx.sleep("rest", 60)
    return message.body


def create(name: str) -> None:
    Group.objects.create(name=name)


async def asleep() -> None:
    await asyncio.sleep(0)


ORDERS: list[Callable[..., Any]] = [Flavour("sync")(async_order), async_order]


async def passes_an_order(order: Callable[..., Any]) -> None:
    with Harness() as h:
        run = await h.astart(order, "a", id="a")
        assert (await h.arun("a")).waiting_for == ["go"]
        assert await Group.objects.filter(name="a").acount() == 1
        await h.asend("a", "go", 1)
        assert await h.arun_due() == 1
        await h.asettle()
        assert (await h.apeek(run)).state == "sleeping"
        assert (await h.afinish(run)).output == 1
        other = await h.astart(order, "b")
        assert await other.aask("go", 2) == "gone"
        h.advance(60)
        assert await other.aresult() == 2
        late = await h.afinish(await h.astart(order, "c"))
        assert late.error is not None
        assert late.error.type == MessageTimeoutError.__name__


async def crashes_an_order(order: Callable[..., Any]) -> None:
    checks = []

    async def drive(h: Harness, run: Any) -> None:
        await h.asettle()
        await h.asend(run, "go", 1, id="once")
        await h.afinish(run)

    async def check() -> int:
        checks.append(await Group.objects.filter(name="a").acount())
        await Group.objects.all().adelete()
        return checks[-1]

    with Harness() as h:
        deaths = await h.acrash_everywhere(order, "a", drive=drive, check=check)
    assert deaths > 8
    assert checks == [1] * (deaths + 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("order", ORDERS)
class TestInPytest:
    async def test_each_method_that_passes_runs_has_a_twin(self, order: Callable[..., Any]) -> None:
        await passes_an_order(order)
        await sync_to_async(connections.close_all)()  # that of the test's own queries

    async def test_crashes(self, order: Callable[..., Any]) -> None:
        await crashes_an_order(order)
        await sync_to_async(connections.close_all)()


class OfDjango:
    async def test_each_method_that_passes_runs_has_a_twin(self) -> None:
        for order in ORDERS:
            await passes_an_order(order)
            await Group.objects.all().adelete()

    async def test_crashes(self) -> None:
        for order in ORDERS:
            await crashes_an_order(order)


class InDjangosTestCase(OfDjango, TestCase):
    """In the transaction of the test."""


class InDjangosTransactionTestCase(OfDjango, TransactionTestCase):
    """Where transactions commit."""


CALLS: dict[str, Callable[[Harness], Any]] = {
    "run": lambda h: h.run("a"),
    "run_due": lambda h: h.run_due(),
    "settle": lambda h: h.settle(),
    "finish": lambda h: h.finish("a"),
    "crash_everywhere": lambda h: h.crash_everywhere(async_order, "a"),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_method_that_passes_runs_names_its_twin(durable_harness: Harness, verb: str) -> None:
    durable_harness.start(async_order, "a", id="a")
    with pytest.raises(RuntimeError, match=rf"write `await harness\.a{verb}\(\.\.\.\)`"):
        CALLS[verb](durable_harness)
    assert callable(getattr(durable_harness, f"a{verb}"))
    assert durable_harness.commits == 0


async def test_where_the_loop_is_not_the_tests_sync_workflows_pass(
    durable_harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    assert durable_harness.finish(durable_harness.start(lambda ctx: 1)).output == 1
