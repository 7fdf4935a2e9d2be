"""Signals, misuse of contexts, eviction: what workflow code cannot swallow, and what it may not do."""

from __future__ import annotations

import asyncio
import decimal
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from durable import CriticalError
from durable.errors import HistoryDivergedError
from durable.testing import Harness
from tests.core.driving import evicted_pass
from tests.core.flavours import Flavour
from tests.core.scopes import SCOPES
from tests.support.errors import check_failed, error_of

PARKS: dict[str, Callable[[Any], Any]] = {
    "sleep": lambda ctx: ctx.sleep("wait", 60),
    "message": lambda ctx: ctx.queue.next("wait", ["go"], timeout=60),
    "retry": lambda ctx: ctx.step("wait", [].pop, retry_backoff_base=60, max_retries=1),
}


@pytest.mark.parametrize("park", PARKS)
def test_except_exception_does_not_see_a_park(h: Harness, flavour: Flavour, park: str) -> None:
    swallowed = []

    async def ship(ctx: Any) -> Any:
        try:
            await PARKS[park](ctx)
        except Exception as error:
            swallowed.append(type(error).__name__)
            if park == "sleep":
                raise
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).state == "sleeping"
    assert swallowed == []
    assert h.finish(run).output == "done"
    assert swallowed == {"sleep": [], "message": ["MessageTimeoutError"], "retry": ["StepExhaustedError"]}[park]


async def swallow_and_go_on(ctx: Any, act: Callable[[Any], Any]) -> Any:
    with suppress(BaseException):
        await act(ctx)
    await ctx.step("never", lambda: NEVER.append(1))
    return "swallowed"


async def swallow_and_return(ctx: Any, act: Callable[[Any], Any]) -> Any:
    try:
        await act(ctx)
    finally:
        return "swallowed"  # noqa: B012


async def swallow_and_raise(ctx: Any, act: Callable[[Any], Any]) -> Any:
    try:
        await act(ctx)
    except BaseException:
        raise CriticalError("mine") from None


NEVER: list[int] = []
SWALLOWING = [swallow_and_go_on, swallow_and_return, swallow_and_raise]


@pytest.mark.parametrize("park", PARKS)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("swallow", SWALLOWING)
def test_code_cannot_swallow_a_park(h: Harness, flavour: Flavour, park: str, scope: Any, swallow: Any) -> None:
    """Fault 14: not with `except BaseException`, not with `finally: return`, not by an error of its own instead."""
    NEVER.clear()

    async def ship(ctx: Any) -> Any:
        return await scope(ctx, lambda ctx: swallow(ctx, PARKS[park]))

    run = h.start(flavour(ship))
    parked = h.run(run)
    assert parked.state == "sleeping"
    assert parked.error is None
    assert parked.wake_at is not None
    assert NEVER == []


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("swallow", SWALLOWING)
def test_code_cannot_swallow_a_divergence(h: Harness, flavour: Flavour, scope: Any, swallow: Any) -> None:
    NEVER.clear()
    name = "old"

    async def act(ctx: Any) -> None:
        await ctx.step(name, lambda: 1)

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any) -> Any:
            found = await swallow(ctx, act)
            await ctx.sleep("wait", 60)
            return found

        return await scope(ctx, body)

    run = h.start(flavour(ship))
    if swallow is swallow_and_raise:
        return  # nothing is recorded that could diverge
    h.run(run)
    NEVER.clear()
    name = "new"
    check_failed(h.run(run), "HistoryDivergedError")
    assert NEVER == []


def test_an_error_class_of_the_engine_raised_by_code_is_no_signal(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        try:
            raise HistoryDivergedError("mine")
        except HistoryDivergedError:
            return "caught"

    assert h.run(h.start(flavour(ship))).output == "caught"


# -- one operation of a scope at a time


def diverted(h: Harness, workflow: Any) -> str:
    """The message of the EntryInProgressError with which the run has failed."""
    ended = h.run(h.start(workflow))
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error.type == "EntryInProgressError", ended.error
    return ended.error.message


def test_a_missing_await_before_another_operation(h: Harness) -> None:
    async def ship(ctx: Any) -> None:
        ctx.step("forgotten", lambda: 1)
        await ctx.step("next", lambda: 2)

    told = diverted(h, ship)
    assert 'step "forgotten" of scope "the root" has not ended, but the code came to step "next"' in told
    assert told.endswith("it was called without `await`; write that before it"), "one cause, not three"


def test_a_missing_await_that_is_garbage_by_then(h: Harness) -> None:
    """The next coroutine is likely to be at the same address."""

    async def ship(ctx: Any) -> None:
        for number in range(50):
            ctx.sleep(f"forgotten {number}", 60)
        await ctx.step("next", lambda: 2)

    assert 'sleep "forgotten 0"' in diverted(h, ship)


def test_a_missing_await_at_the_end(h: Harness) -> None:
    async def ship(ctx: Any) -> str:
        ctx.step("forgotten", lambda: 1)
        return "done"

    assert 'step "forgotten" of scope "the root" has not ended, but the code came to the end' in diverted(h, ship)


def test_a_missing_await_of_complete(h: Harness) -> None:
    async def ship(ctx: Any) -> str:
        message = await ctx.queue.next("a", names=[], completable=True)
        message.complete(1)
        return "done"

    run = h.start(ship)
    h.send(run, "q")
    check_failed(h.run(run), "EntryInProgressError")


def test_gather_is_refused(h: Harness) -> None:
    async def ship(ctx: Any) -> Any:
        return await asyncio.gather(ctx.step("a", lambda: 1), ctx.step("b", lambda: 2))

    assert "use ctx.join for concurrency" in diverted(h, ship)


def test_tasks_are_refused(h: Harness) -> None:
    async def slow() -> None:
        await asyncio.sleep(0)

    async def ship(ctx: Any) -> Any:
        task = asyncio.ensure_future(ctx.step("a", slow))
        await asyncio.sleep(0)
        try:
            await ctx.step("b", lambda: 2)
        finally:
            await task

    diverted(h, ship)


@pytest.mark.parametrize("scope", SCOPES)
def test_an_operation_that_the_code_cancels_stops_the_run(h: Harness, scope: Any) -> None:
    """It would go on here, and not fit its history on replay."""
    called = []

    async def hang() -> None:
        await asyncio.sleep(3600)

    async def body(ctx: Any) -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.step("a", hang)
        await ctx.step("b", lambda: called.append(1))

    async def ship(ctx: Any) -> Any:
        return await scope(ctx, body)

    text = diverted(h, ship)
    assert 'step "a" of scope' in text
    assert "was cancelled before it had ended, by asyncio.timeout" in text
    assert called == []


@pytest.mark.parametrize("scope", SCOPES[1:])
def test_the_outer_context_inside_a_body_is_refused(h: Harness, flavour: Flavour, scope: Any) -> None:
    called = []

    async def ship(ctx: Any) -> Any:
        async def body(_inner: Any) -> Any:
            return await ctx.step("a", lambda: called.append(1))

        return await scope(ctx, body)

    assert "use the context that a body receives (not the outer one)" in diverted(h, flavour(ship))
    assert called == []


def test_a_swallowed_misuse_stops_the_run_all_the_same(h: Harness, flavour: Flavour) -> None:
    called = []

    async def ship(ctx: Any) -> Any:
        async def body(_inner: Any) -> Any:
            try:
                await ctx.step("a", lambda: called.append(1))
            except Exception:
                return "swallowed"

        return await ctx.try_block("block", body)

    diverted(h, flavour(ship))


def test_a_context_used_from_two_threads_is_refused(h: Harness) -> None:
    def ship(ctx: Any) -> Any:
        errors = []

        def intrude() -> None:
            try:
                ctx.step("b", lambda: 2)
            except Exception as error:
                errors.append(type(error).__name__)

        def within() -> list[str]:
            thread = threading.Thread(target=intrude)
            thread.start()
            thread.join()
            return errors

        return ctx.step("a", within)

    assert 'step "a" of scope "the root" has not ended, but the code came to step "b"' in diverted(h, ship)


# -- bodies that have not run


def generator(ctx: Any) -> Any:
    yield 1


async def coroutine(ctx: Any) -> Any:
    return 1


async def async_generator(ctx: Any) -> Any:
    yield 1


BODIES = [generator, coroutine, async_generator]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "scope",
    [
        lambda ctx, body: ctx.try_block("block", body),
        lambda ctx, body: ctx.loop("loop", body),
        lambda ctx, body: ctx.join("join", {"a": body}),
    ],
)
def test_a_lazy_body_of_a_synchronous_workflow_is_refused(h: Harness, body: Any, scope: Any) -> None:
    def ship(ctx: Any) -> Any:
        return scope(ctx, body)

    assert "so none of its code has run" in error_of(h.run(h.start(ship))).message


@pytest.mark.parametrize("body", [generator, async_generator])
def test_a_generator_as_a_body_of_an_async_workflow_is_refused(h: Harness, body: Any) -> None:
    async def ship(ctx: Any) -> Any:
        return await ctx.try_block("block", body)

    assert "so none of its code has run" in error_of(h.run(h.start(ship))).message


@pytest.mark.parametrize("body", [generator, async_generator])
def test_a_generator_cannot_be_a_workflow(h: Harness, body: Any) -> None:
    with pytest.raises(TypeError, match="is a generator"):
        h.start(body)


def test_a_synchronous_workflow_that_returns_a_coroutine_is_refused(h: Harness) -> None:
    def ship(ctx: Any) -> Any:
        return coroutine(ctx)

    check_failed(h.run(h.start(ship)), "TypeError")


# -- eviction


@pytest.mark.parametrize("scope", SCOPES)
def test_an_evicted_pass_ends_at_its_next_operation(h: Harness, flavour: Flavour, scope: Any) -> None:
    calls: list[str] = []
    seen = []

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any) -> Any:
            await ctx.step("a", lambda: calls.append("a"))
            seen.append((ctx.is_evicted(), ctx.eviction_reason()))
            await ctx.step("b", lambda: calls.append("b"))
            return "done"

        return await scope(ctx, body)

    run = h.start(flavour(ship), id="run")
    outcome = evicted_pass(h, "run", when=lambda: calls == ["a"])
    assert (outcome.state, outcome.due_now) == ("pending", True)
    assert seen == [(True, "shutdown")]
    assert calls == ["a"]
    assert run.wake_at == h.now
    assert h.finish(run).output == "done"
    assert calls == ["a", "b"]


def test_code_cannot_swallow_an_eviction(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: calls.append("a"))
        try:
            await ctx.step("b", lambda: calls.append("b"))
        finally:
            return "swallowed"  # noqa: B012

    h.start(flavour(ship), id="run")
    assert evicted_pass(h, "run", when=lambda: calls == ["a"]).state == "pending"


def test_a_step_may_ask_whether_it_should_hurry(h: Harness, flavour: Flavour) -> None:
    from durable import current_step

    seen = []

    h.start(flavour.calling(lambda ctx: ctx.step("a", lambda: seen.append(current_step().is_evicted()))), id="run")
    evicted_pass(h, "run", when=lambda: True, after_begin=True)
    assert seen == [True]


@pytest.mark.parametrize("wait", [lambda ctx: ctx.sleep("rest", 60), lambda ctx: ctx.queue.next("approval")])
def test_a_wait_in_a_task_group_parks_the_run(h: Harness, wait: Any) -> None:
    async def ship(ctx: Any) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(ctx))
        return "shipped"

    run = h.start(ship)
    assert h.run(run).state == "sleeping"
    h.send(run, "approval")
    assert h.finish(run).output == "shipped"


def test_a_group_of_other_ends_fails_the_run_as_before(h: Harness) -> None:
    async def ship(ctx: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    async def fails() -> None:
        raise ValueError("broken")

    check_failed(h.run(h.start(ship)), "ExceptionGroup")


async def leaves_a_task(ctx: Any) -> None:
    task = asyncio.create_task(ctx.sleep("rest", 60))
    await asyncio.sleep(0.01)
    await asyncio.wait([task])


async def leaves_an_async_generator(ctx: Any) -> None:
    async def pages() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await ctx.step("close", lambda: None)

    async for _ in pages():
        await ctx.sleep("rest", 60)


def leaves_a_generator(ctx: Any) -> None:
    def pages() -> Iterator[int]:
        try:
            yield 1
        finally:
            ctx.step("close", lambda: None)

    for _ in pages():
        ctx.sleep("rest", 60)


@pytest.mark.parametrize(
    "ship", [leaves_a_task, leaves_an_async_generator, leaves_a_generator], ids=lambda each: each.__name__
)
def test_a_park_in_what_the_code_has_left_prints_nothing(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ship: Any
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    run = h.start(ship)
    assert h.run(run).state == "sleeping"
    gc.collect()
    assert unraisable == []
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


def test_the_decimal_context_of_a_run_is_its_own(h: Harness) -> None:
    found = []

    def coarse() -> None:
        decimal.getcontext().prec = 5

    def ship(ctx: Any) -> None:
        ctx.step("round", coarse)

    def other(ctx: Any) -> None:
        found.append(decimal.getcontext().prec)

    before = decimal.getcontext().prec
    assert before != 5
    h.run(h.start(ship))
    h.run(h.start(other))
    assert (set(found), decimal.getcontext().prec) == ({before}, before)
