"""A step that runs hears of a pause and of a cancel, and the end of a run is a point at which they are honoured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from durable import AsyncContext, Context, CriticalError, Handle, current_step, get_run, workflow
from durable.conf import conf
from durable.execution.passes import execute_pass
from durable.store import store_for
from durable.testing import Harness
from durable.worker import leases
from durable.worker.executor import RunExecutor
from durable.worker.presence import ShutdownFlag
from tests.support.worker import lease_manager

LIMIT = 120.0  # seconds
began = threading.Event()
heard: list[str] = []
reasons: list[str] = []


def listen(what: str = "returned") -> str:
    """A step's function: says that it runs, and goes on until it is asked to end."""
    began.set()
    until = time.monotonic() + LIMIT
    while not current_step().is_evicted():
        if time.monotonic() > until:
            return "never heard of it"
        time.sleep(0.01)
    heard.append(current_step().location)
    reasons.append(current_step().eviction_reason())
    if what == "raise":
        raise CriticalError("asked to end")
    return what


async def alisten() -> str:
    return listen()


@workflow(name="requests.last_step")
def last_step(ctx: Context, what: str = "returned") -> str:
    """Its only step is its last operation."""
    result: str = ctx.step("listen", listen, what)
    return result


@workflow(name="requests.alast_step")
async def alast_step(ctx: AsyncContext) -> str:
    """The same in an async workflow."""
    result: str = await ctx.step("listen", alisten)
    return result


@workflow(name="requests.branches")
def branches(ctx: Context) -> dict[str, Any]:
    """The same in threads of branches."""
    return ctx.join("all", {name: lambda c: c.step("listen", listen) for name in ("one", "other")})


@workflow(name="requests.body")
def body(ctx: Context) -> str:
    """Workflow code that takes long after its last operation."""
    ctx.step("before", lambda: None)
    began.set()
    until = time.monotonic() + LIMIT
    while not ctx.is_evicted() and time.monotonic() < until:
        time.sleep(0.01)
    return "returned"


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], threading.Thread]]:
    """Pass the run that is due in a thread, as a worker does; the thread."""
    began.clear()
    heard.clear()
    reasons.clear()
    stop, store = ShutdownFlag(), store_for(conf.DATABASE)
    with lease_manager(store, stop) as watching:
        holder = RunExecutor(store=store, execute=execute_pass, leases=watching, stop=stop)

        def carry_on() -> None:
            try:
                while batch := holder.claim("default", 10, time.monotonic() + LIMIT):
                    for record in batch:
                        holder.execute(record)
            finally:
                connections.close_all()

        def start() -> threading.Thread:
            thread = threading.Thread(target=carry_on)
            thread.start()
            return thread

        yield start


def steer(handle: Handle, verb: str, passing: Callable[[], threading.Thread]) -> None:
    """Pass the run, and call a verb while its step runs."""
    thread = passing()
    assert began.wait(LIMIT)
    getattr(handle, verb)()
    thread.join(LIMIT)
    assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("of", [last_step, alast_step, branches])
def test_a_cancelled_run_ends_cancelled_after_the_step_that_heard_of_it(
    passing: Callable[[], threading.Thread], of: Any
) -> None:
    handle = of.start()
    steer(handle, "cancel", passing)
    assert handle.state == "cancelled"
    assert heard
    assert set(reasons) == {"cancel"}
    steps = [entry for entry in handle.history() if entry.kind == "step"]
    assert {entry.status for entry in steps} == {"completed"}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_step_that_gives_up_when_it_hears_of_a_cancel_does_not_fail_the_run(
    passing: Callable[[], threading.Thread],
) -> None:
    handle = last_step.start("raise")
    steer(handle, "cancel", passing)
    assert handle.state == "cancelled"
    assert handle.history()[0].status == "exhausted"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_paused_run_stands_still_at_its_end_and_completes_when_it_is_resumed(
    passing: Callable[[], threading.Thread],
) -> None:
    handle = last_step.start()
    steer(handle, "pause", passing)
    assert handle.state == "paused"
    assert reasons == ["pause"]
    handle.resume()
    passing().join(LIMIT)
    assert (handle.state, handle.output) == ("completed", "returned")
    assert heard == ["listen"]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_code_after_the_last_operation_does_not_complete_a_run_that_it_was_asked_to_end(
    passing: Callable[[], threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conf, "LEASE", 3.0)  # the requests come with its renewals, every second
    handle = body.start()
    steer(handle, "cancel", passing)
    assert handle.state == "cancelled"


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_lease_renewal_tells_of_requests_too(
    passing: Callable[[], threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LONG", 10 * LIMIT)
    monkeypatch.setattr(conf, "LEASE", 3.0)
    handle = last_step.start()
    steer(handle, "cancel", passing)
    assert handle.state == "cancelled"
    assert heard == ["listen"]


@pytest.mark.parametrize("verb", ["cancel", "pause"])
@pytest.mark.parametrize("of", [last_step, alast_step, branches])
def test_in_the_harness_a_step_hears_of_it_at_once(db: None, of: Any, verb: str) -> None:
    calls: list[bool] = []

    def ask_oneself() -> str:
        before = current_step().is_evicted()
        getattr(get_run(current_step().run_id), verb)()
        calls.append(not before and current_step().is_evicted())
        return "returned"

    def sync(ctx: Context) -> Any:
        if of is branches:
            return ctx.join("all", {"one": lambda c: c.step("ask", ask_oneself)})
        return ctx.step("ask", ask_oneself)

    async def asynchronous(ctx: AsyncContext) -> Any:
        return await ctx.step("ask", ask_oneself)

    with Harness() as h:
        handle = h.start(asynchronous if of is alast_step else sync)
        h.run(handle)
        assert calls == [True]
        assert handle.state == ("cancelled" if verb == "cancel" else "paused")
        if verb == "pause":
            handle.resume()
            assert h.finish(handle).state == "completed"


def test_a_rollback_is_asked_for_by_a_cancel_while_the_last_step_runs(db: None) -> None:
    def run(ctx: Context) -> str:
        ctx.rollback_checkpoint("from here")
        ctx.step("charge", lambda: "charged", rollback=refund)
        ctx.step("last", lambda: get_run(ctx.run_id).cancel(rollback=True))
        return "done"

    refunds.clear()
    with Harness() as h:
        assert h.finish(h.start(run)).state == "cancelled"
    assert refunds == ["charged"]


refunds: list[Any] = []


def refund(_rollback: Any, output: Any) -> None:
    refunds.append(output)
