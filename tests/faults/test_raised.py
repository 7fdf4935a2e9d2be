"""Whatever workflow code and steps raise fails the run or the attempt, and never the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from durable import AsyncContext, Context, Handle, workflow
from durable.testing import Harness
from tests.faults.passing import pass_once

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


class OwnError(BaseException):
    """Not an Exception, and not control flow of durable."""


class Interrupted(KeyboardInterrupt):
    """Like what a keyboard does, and not that."""


class HidingError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not even this")


class ClasslessError(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        pass


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class LeavingError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(3)


def from_hiding() -> Exception:
    """An ordinary error that comes from one that hides."""
    error = ValueError("ordinary")
    error.__cause__ = HidingError()
    return error


RAISED: dict[str, Callable[[], BaseException]] = {
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "OwnError": OwnError,
    "Interrupted": Interrupted,
    "SystemExit": SystemExit,
    "HidingError": HidingError,
    "ClasslessError": ClasslessError,
    "SpeechlessError": SpeechlessError,
    "LeavingError": LeavingError,
    "ValueError": from_hiding,
}


def fail(kind: str) -> None:
    raise RAISED[kind]()


async def afail(kind: str) -> None:
    await asyncio.sleep(0)
    raise RAISED[kind]()


@workflow(name="raised.body")
def body(ctx: Context, kind: str) -> None:
    ctx.step("before", lambda: None)
    fail(kind)


@workflow(name="raised.abody")
async def abody(ctx: AsyncContext, kind: str) -> None:
    await ctx.step("before", lambda: None)
    await afail(kind)


@workflow(name="raised.loop")
def loop(ctx: Context, kind: str) -> None:
    ctx.loop("again", lambda _: fail(kind))


@workflow(name="raised.branch")
def branch(ctx: Context, kind: str) -> None:
    ctx.join("all", {"bad": lambda _: fail(kind), "good": lambda c: c.step("good", lambda: None)})


@workflow(name="raised.abranch")
async def abranch(ctx: AsyncContext, kind: str) -> None:
    async def bad(_: AsyncContext) -> None:
        await afail(kind)

    async def good(c: AsyncContext) -> None:
        await c.step("good", lambda: None)

    await ctx.join("all", {"bad": bad, "good": good})


@workflow(name="raised.step")
def step(ctx: Context, kind: str) -> None:
    ctx.step("bad", fail, kind, max_retries=0)


@workflow(name="raised.atomic")
def atomic(ctx: Context, kind: str) -> None:
    ctx.step("bad", fail, kind, max_retries=0, atomic=True)


@workflow(name="raised.astep")
async def astep(ctx: AsyncContext, kind: str) -> None:
    await ctx.step("bad", afail, kind, max_retries=0)


@workflow(name="raised.astep_of_sync")
def astep_of_sync(ctx: Context, kind: str) -> None:
    ctx.step("bad", afail, kind, max_retries=0)


WORKFLOWS = [body, abody, loop, branch, abranch, step, atomic, astep, astep_of_sync]


@pytest.mark.parametrize("kind", list(RAISED))
@pytest.mark.parametrize("of", WORKFLOWS, ids=lambda of: of.name)
def test_it_fails_the_run(of: Any, kind: str) -> None:
    handle: Handle = of.start(kind)
    assert pass_once(handle).state == "failed"
    assert handle.error is not None
    text = f"{handle.error.type}: {handle.error.message}"
    assert kind in text or "sys.exit" in text or "attributes cannot be read" in text


def test_in_the_harness_a_tests_own_outcome_comes_out() -> None:
    def run(ctx: Context) -> None:
        ctx.step("before", lambda: None)
        pytest.fail("the test's own")

    with Harness() as h, pytest.raises(pytest.fail.Exception, match="the test's own"):
        h.run(h.start(run))


@pytest.mark.parametrize("kind", ["GeneratorExit", "CancelledError", "HidingError"])
@pytest.mark.parametrize("of", [body, abody])
def test_in_the_harness_what_fails_in_a_worker_fails(of: Any, kind: str) -> None:
    with Harness() as h:
        assert h.finish(h.start(of, kind)).state == "failed"
