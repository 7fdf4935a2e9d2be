"""Runs of several tenants in one worker at once: none sees another's, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import override_settings

from durable import AsyncContext, Context, runtime, workflow
from durable.conf import conf
from durable.core.places import Place
from durable.execution.passes import execute_pass
from durable.models import Run
from durable.store import store_for
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.carry import carrying
from tests.carry.carrying import ThreadTenant, tenant, thread_tenant
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

CARRY = {"tenant": "tests.carry.carrying.carry", "thread": "tests.carry.carrying.thread_carry"}
TENANTS = ["a", "b", "c", "d"]

together = threading.Barrier(len(TENANTS))


def meet() -> list[str | None]:
    """Read what is in force while the other three runs are at the same place."""
    together.wait(60)
    found = [tenant.get(), thread_tenant()]
    together.wait(60)
    tenant.set("left behind")
    carrying.here.tenant = "left behind"
    return found


def read() -> list[str | None]:
    return [tenant.get(), thread_tenant()]


@workflow(name="tests.carry.meets")
def meets(ctx: Context) -> list[Any]:
    first = ctx.step("meet", meet)
    code = tenant.get()
    branches = ctx.join("join", {each: lambda ctx: ctx.step("read", read) for each in "xyz"})
    return [first, ctx.step("after", read), branches["x"], branches["y"], branches["z"], code]


async def ameet() -> str | None:
    await asyncio.to_thread(together.wait, 60)
    found = tenant.get()
    await asyncio.to_thread(together.wait, 60)
    tenant.set("left behind")
    return found


async def aread() -> str | None:
    return tenant.get()


@workflow(name="tests.carry.ameets")
async def ameets(ctx: AsyncContext) -> list[Any]:
    async def branch(ctx: AsyncContext) -> list[Any]:
        return [await ctx.step("read", read), await ctx.step("async", aread)]

    first = await ctx.step("meet", ameet)
    branches = await ctx.join("join", dict.fromkeys("xyz", branch))
    return [first, await ctx.step("after", aread), *branches["x"], *branches["y"], *branches["z"], tenant.get()]


@pytest.fixture
def carry() -> Iterator[None]:
    if connection.vendor == "sqlite":
        pytest.skip("a run that waits for others in a step keeps them from writing")
    with override_settings(DURABLE={**settings.DURABLE, "CARRY": CARRY}):
        yield


def work(threads: int) -> None:
    store = store_for(conf.DATABASE)
    with WorkerLoop(ThreadPool(threads), store=store, execute=execute_pass, stop=ShutdownFlag()) as loop:

        def have_ended() -> bool:
            loop.work("default")  # returns while passes are still executed, and one of them may make its run due again
            return not Run.objects.exclude(state="completed").exists()

        eventually(have_ended)
    connections.close_all()


def started(which: Any) -> None:
    for each in TENANTS:
        token = tenant.set(each)
        carrying.here.tenant = each
        which.using(id=each).start()
        tenant.reset(token)
    carrying.here.tenant = None


def outputs() -> dict[str, Any]:
    at = runtime.current()
    assert set(Run.objects.values_list("state", flat=True)) == {"completed"}
    found = {}
    for each in TENANTS:
        row = at.store.get(each)
        assert row is not None
        found[each] = at.decode(row.output or "", Place(each, "output"))
    return found


def test_four_threads_of_a_worker(carry: None) -> None:
    started(meets)
    work(4)
    assert outputs() == {each: [[each, each]] * 5 + [each] for each in TENANTS}
    assert read() == [None, None]
    assert ThreadTenant.entered == 0


def test_four_async_runs_in_one_worker(carry: None) -> None:
    started(ameets)
    work(4)
    assert outputs() == {each: [each, each, *[[each, each], each] * 3, each] for each in TENANTS}
    assert read() == [None, None]
    assert ThreadTenant.entered == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_carries_nothing_sees_none_of_those_before(carry: None, threads: int) -> None:
    started(alone)
    alone.using(id="plain").start()
    work(threads)
    assert Run.objects.get(pk="plain").carried is None
    seen = outputs()
    assert seen == {each: [each, each] for each in TENANTS}
    row = runtime.current().store.get("plain")
    assert row is not None
    assert runtime.current().decode(row.output or "", Place("plain", "output")) == [None, None]


@workflow(name="tests.carry.alone")
def alone(ctx: Context) -> Any:
    return ctx.step("read", read)
