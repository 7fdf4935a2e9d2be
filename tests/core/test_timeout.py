"""A step's timeout and its other options. What blocks is interrupted after hundredths of a second, or a test hangs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

import durable
from durable import CriticalError
from durable.conf import conf
from durable.core.effects import Call
from durable.core.options import CommonStepOptions, StepOptions, StepPolicy
from durable.drivers import timeouts
from durable.errors import StepExhaustedError
from durable.testing import Harness
from tests.core import undoing
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed

SHORT = 0.03


@pytest.fixture(autouse=True)
def no_callbacks_of_the_collector() -> Iterator[None]:
    """What interrupts one, as Hypothesis has, is lost in it: Python reports that, and pytest fails the test for it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


def block() -> None:
    time.sleep(3600)


def spin() -> None:
    end = time.monotonic() + 3600
    while time.monotonic() < end:
        pass


def wait_on_event() -> None:
    threading.Event().wait(3600)


async def rest() -> None:
    await asyncio.sleep(3600)


class CleanUpError(Exception):
    """Of code that is interrupted, and fails as it ends what it has begun."""


def block_and_fail_to_clean_up() -> None:
    try:
        block()
    finally:
        try:
            raise OSError("the connection is busy")
        except OSError as error:
            raise CleanUpError from error


async def rest_and_fail_to_clean_up() -> None:
    try:
        await rest()
    finally:
        raise CleanUpError


@pytest.mark.parametrize("function", [block_and_fail_to_clean_up, rest_and_fail_to_clean_up])
def test_an_error_of_the_clean_up_is_a_timeout_still(h: Harness, flavour: Flavour, function: Any) -> None:
    """And not one more failure that is tried again."""

    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("a", function, timeout=SHORT)
        return result.failure.kind, result.failure.attempts, result.failure.error.type

    assert h.finish(h.start(flavour(ship))).output == ("timeout", 1, "StepTimeoutError")


def test_an_error_that_follows_a_swallowed_interruption_is_the_functions_own(h: Harness, flavour: Flavour) -> None:
    def swallow() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            block()
        raise CleanUpError

    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("a", swallow, timeout=SHORT, max_retries=0)
        return result.failure.kind, result.failure.error.type

    assert h.finish(h.start(flavour(ship))).output == ("exhausted", "CleanUpError")


@pytest.mark.parametrize("function", [block, spin, wait_on_event, rest, lambda: rest()])
def test_interrupts_what_blocks(h: Harness, flavour: Flavour, function: Any) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.step("a", function, timeout=SHORT)
        except CriticalError as error:
            seen.append(str(error))
        result = await ctx.try_step("b", function, timeout=SHORT)
        await ctx.sleep("rest", 60)
        return result.failure.kind, result.failure.attempts, result.failure.error.type

    run = h.start(flavour(ship))
    assert h.finish(run).output == ("timeout", 1, "StepTimeoutError")
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert 'step "a" ran longer than its timeout of 0.03 s; give it a longer timeout=, retry_on_timeout' in seen[0]


def test_the_run_fails_at_once_by_default(h: Harness, flavour: Flavour) -> None:
    check_failed(h.run(h.start(flavour.calling(lambda ctx: ctx.step("a", block, timeout=SHORT)))), "CriticalError")


def test_with_retry_on_timeout_it_is_retried(h: Harness, flavour: Flavour) -> None:
    calls = []

    def sometimes() -> str:
        calls.append(1)
        if len(calls) == 1:
            block()
        return "done"

    async def ship(ctx: Any) -> Any:
        first = await ctx.step("a", sometimes, timeout=SHORT, retry_on_timeout=True)
        try:
            await ctx.step("b", block, timeout=SHORT, retry_on_timeout=True, max_retries=1)
        except StepExhaustedError as error:
            last = error.last_error.type
        result = await ctx.try_step("c", rest, timeout=SHORT, retry_on_timeout=True, max_retries=1)
        return first, last, result.failure.kind, result.failure.attempts

    run = h.start(flavour(ship))
    assert h.run(run).state == "sleeping"
    assert h.finish(run).output == ("done", "StepTimeoutError", "timeout", 2)


@pytest.mark.parametrize("kind", ["timeout", "exhausted"])
def test_which_kind_catches_an_exhausted_timeout(h: Harness, flavour: Flavour, kind: str) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.try_step("a", block, timeout=SHORT, retry_on_timeout=True, max_retries=0, catch=[kind])

    assert h.run(h.start(flavour(ship))).state == ("completed" if kind == "timeout" else "failed")


@pytest.mark.parametrize("function", [spin, rest])
def test_in_a_branch_of_its_own_thread(h: Harness, flavour: Flavour, function: Any) -> None:
    """There it is interrupted at its next bytecode."""

    async def branch(ctx: Any) -> Any:
        return (await ctx.try_step("a", function, timeout=SHORT)).failure.kind

    run = h.start(flavour.calling(lambda ctx: ctx.join("join", {"a": branch, "b": branch})), id="run")
    threaded_pass(h, "run")
    assert run.output == {"a": "timeout", "b": "timeout"}


def test_zero_is_no_timeout(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        return [await ctx.step("a", lambda: brief_block(), timeout=0), await ctx.step("b", brief, timeout=0)]

    def brief_block() -> int:
        time.sleep(0.01)
        return 1

    async def brief() -> int:
        await asyncio.sleep(0.01)
        return 2

    assert h.run(h.start(flavour(ship))).output == [1, 2]


def test_code_that_cleans_up_does_so(h: Harness, flavour: Flavour) -> None:
    cleaned = []

    def tidy() -> None:
        try:
            block()
        except Exception:
            cleaned.append("an interruption is no Exception")
        finally:
            cleaned.append("up")

    async def tidy_later() -> None:
        try:
            await rest()
        finally:
            cleaned.append("up")

    async def ship(ctx: Any) -> Any:
        await ctx.try_step("a", tidy, timeout=SHORT)
        await ctx.try_step("b", tidy_later, timeout=SHORT)

    h.run(h.start(flavour(ship)))
    assert cleaned == ["up", "up"]


class Collected:
    def __del__(self) -> None:
        block()


def block_in_finalizer() -> None:
    Collected()
    block()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_interruption_that_a_finalizer_swallows_comes_again(
    h: Harness, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    monkeypatch.setattr(timeouts, "AGAIN", SHORT)
    if in_thread:
        monkeypatch.setattr(time, "sleep", busily(time.sleep))

    def branch(ctx: Any) -> Any:
        return ctx.try_step("a", block_in_finalizer, timeout=SHORT).failure.kind

    def ship(ctx: Any) -> Any:
        return ctx.join("join", {"a": branch, "b": branch}) if in_thread else branch(ctx)

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == ({"a": "timeout", "b": "timeout"} if in_thread else "timeout")


def busily(sleep: Any) -> Any:
    """Sleep in short pieces, so that a thread that is not the main one can be interrupted."""

    def slept(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            sleep(min(left, 0.001))

    return slept


def test_a_timeout_error_of_the_functions_own_is_an_ordinary_error(h: Harness, flavour: Flavour) -> None:
    def own() -> None:
        raise TimeoutError("of a socket")

    async def own_later() -> None:
        raise TimeoutError("of a socket")

    async def ship(ctx: Any) -> Any:
        found = [await ctx.try_step(name, fn, max_retries=0) for name, fn in (("a", own), ("b", own_later))]
        return [(each.failure.kind, each.failure.error.type) for each in found]

    assert h.run(h.start(flavour(ship))).output == [("exhausted", "TimeoutError")] * 2


def test_nothing_breaks_out_later(h: Harness, flavour: Flavour) -> None:
    """A function that ends just when it would be interrupted has ended."""

    def close(n: int) -> int:
        time.sleep(0.001)
        return n

    async def ship(ctx: Any) -> Any:
        found = 0
        for n in range(100):
            found += (await ctx.try_step(f"a{n}", close, n, timeout=0.0011)).ok
        return found

    assert h.run(h.start(flavour(ship))).state == "completed"


def test_nothing_breaks_out_later_in_a_thread(h: Harness) -> None:
    def close(n: int) -> int:
        time.sleep(0.001)
        return n

    def branch(ctx: Any) -> Any:
        return sum(ctx.try_step(f"a{n}", close, n, timeout=0.0011).ok for n in range(50))

    def ship(ctx: Any) -> Any:
        return ctx.join("join", {str(n): branch for n in range(4)})

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.state == "completed"


def test_errors_that_stand_in_each_others_context_are_searched_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert not timeouts.arose_from(first, KeyboardInterrupt)
    second.__context__ = KeyboardInterrupt()
    assert timeouts.arose_from(first, KeyboardInterrupt)


# -- how long a step may take that does not say it: what the setting says


@pytest.fixture
def timeouts_set(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each call of a function was given, in order."""
    found: list[float] = []
    check = Harness._check_call

    def observe(self: Harness, call: Call) -> None:
        found.append(call.timeout)
        check(self, call)

    monkeypatch.setattr(Harness, "_check_call", observe)
    return found


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 600.0),
        ({"STEP_TIMEOUT": "10 minutes"}, 600.0),
        ({"STEP_TIMEOUT": timedelta(seconds=5)}, 5.0),
        ({"STEP_TIMEOUT": 7}, 7.0),
        ({"STEP_TIMEOUT": None}, 0.0),
        ({"STEP_TIMEOUT": 0}, 0.0),
    ],
)
def test_the_setting_decides(
    flavour: Flavour, timeouts_set: list[float], given: dict[str, Any], seconds: float
) -> None:
    async def ship(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("mine", str, timeout=3)
        await ctx.step("none", str, timeout=0)
        await ctx.step("setting", str, rollback=undoing.undo)
        await ctx.try_step("try", str)
        await ctx.step("retried", str, retry_on_timeout=True)
        raise ValueError("undo it")

    with override_settings(DURABLE=given), Harness() as h:
        assert seconds == conf.STEP_TIMEOUT
        run = h.start(flavour(ship))
        assert h.finish(run).state == "failed"
    assert timeouts_set == [3.0, 0.0, seconds, seconds, seconds, seconds], "the handler's is the one recorded"


@pytest.mark.parametrize("options", [{"timeout": "109500 days"}, {"heartbeat": "109500 days", "timeout": 0}])
def test_it_may_be_longer_than_any_process_lives(h: Harness, flavour: Flavour, options: dict[str, Any]) -> None:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("charge", flavour.function(lambda: "charged"), **options)

    done = h.run(h.start(flavour(ship)))
    assert (done.output, done.error) == ("charged", None)


def test_a_step_is_stopped_by_it(flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("wait", threading.Event().wait)
        return result.failure.kind

    with override_settings(DURABLE={"STEP_TIMEOUT": 0.05}), Harness() as h:
        assert h.finish(h.start(flavour(ship))).output == "timeout"


# -- A step's options: what callers write and what the engine reads are the same


def test_callers_write_the_options_that_the_engine_reads() -> None:
    assert StepOptions.__optional_keys__ == {each.name for each in fields(StepPolicy)}
    assert not StepOptions.__required_keys__
    assert CommonStepOptions.__optional_keys__ == StepOptions.__optional_keys__ - {"rollback"}
    assert durable.StepOptions is StepOptions
