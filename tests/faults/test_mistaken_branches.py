"""A mistake in one branch while others are at work, in threads or tasks of their own.

Their work is kept, and nothing is undone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from durable import AsyncContext, Context, workflow
from durable.models import Run
from tests.faults.passing import pass_once

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

LEDGER: list[str] = []
CODE = {"is wrong": True}
MISTAKEN = threading.Event()
AT_WORK = threading.Event()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    LEDGER.clear()
    CODE["is wrong"] = True
    MISTAKEN.clear()
    AT_WORK.clear()
    yield
    MISTAKEN.set()


def do(name: str) -> str:
    LEDGER.append(name)
    return name


def undo(_rollback: Any, name: str) -> None:
    LEDGER.append(f"undo {name}")


def work_on(name: str) -> str:
    """A step that is under way when another branch makes its mistake."""
    AT_WORK.set()
    assert MISTAKEN.wait(60)
    return do(name)


async def work_on_async(name: str) -> str:
    AT_WORK.set()
    await reached(MISTAKEN)
    return do(name)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 60)


def err() -> None:
    if CODE["is wrong"]:
        assert AT_WORK.wait(60)
        MISTAKEN.set()
        raise KeyError("a typo")
    MISTAKEN.set()


@workflow(name="tests.mistaken_branches")
def in_threads(ctx: Context) -> dict[str, Any]:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", do, "charge", rollback=undo)

    def wrong(c: Context) -> str:
        err()
        return str(c.step("after", do, "after"))

    def good(c: Context) -> str:
        c.step("work", work_on, "work", rollback=undo)
        return str(c.step("more", do, "more"))

    return ctx.join("j", {"good": good, "wrong": wrong})


@workflow(name="tests.mistaken_tasks")
async def in_tasks(ctx: AsyncContext) -> dict[str, Any]:
    await ctx.rollback_checkpoint("from here")
    await ctx.step("charge", do, "charge", rollback=undo)

    async def wrong(c: AsyncContext) -> str:
        await reached(AT_WORK)
        err()
        return str(await c.step("after", do, "after"))

    async def good(c: AsyncContext) -> str:
        await c.step("work", work_on_async, "work", rollback=undo)
        return str(await c.step("more", do, "more"))

    return await ctx.join("j", {"wrong": wrong, "good": good})


@pytest.mark.parametrize("flow", [in_threads, in_tasks])
def test_the_others_keep_what_they_did(flow: Any) -> None:
    run = flow.start()
    pass_once(run)
    row = Run.objects.get(pk=run.id)
    assert (row.state, row.error) == ("sleeping", None)
    assert row.summary.startswith("a mistake in the code, trying again until the grace period ends: KeyError")
    assert not [each for each in LEDGER if each.startswith("undo")]
    assert "more" not in LEDGER, "the others end at their next operation"
    CODE["is wrong"] = False
    run.wake()
    pass_once(run)
    assert run.output == {"good": "more", "wrong": "after"}
    assert sorted(LEDGER) == ["after", "charge", "more", "work"]
