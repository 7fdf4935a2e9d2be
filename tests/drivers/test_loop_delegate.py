"""The thread that waits for an event loop: what goes there, and what branches share on the way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from durable import signals
from durable.core.effects import Save
from durable.drivers import threads as owner_thread
from durable.execution.passes import PassHost
from durable.testing import Harness
from tests.core.driving import threaded_pass


class Gathered:
    """Two branches whose saves wait behind the function of a third one: together, in this order."""

    def __init__(self) -> None:
        self.both_wait = threading.Event()

    async def first(self) -> str:
        return "first"

    async def second(self) -> str:
        asyncio.get_running_loop().call_soon(self.both_wait.set)  # after this branch has come to its save
        return "second"

    async def ship(self, ctx: Any) -> Any:
        return await ctx.join(
            "join",
            {
                "holding": lambda c: c.step("hold", self.both_wait.wait, 10),
                "first": lambda c: c.step("a", self.first, max_retries=0),
                "second": lambda c: c.step("b", self.second, max_retries=0),
            },
        )


def counted_saves(monkeypatch: pytest.MonkeyPatch, fails: int = -1) -> list[Save]:
    """The saves of passes; the one of that number fails before it has written anything."""
    saves: list[Save] = []
    save = PassHost.save

    def noting(host: PassHost, effect: Save) -> None:
        saves.append(effect)
        if len(saves) - 1 == fails:
            raise ValueError("not this one")
        save(host, effect)

    monkeypatch.setattr(PassHost, "save", noting)
    return saves


def test_branches_that_come_to_a_save_together_share_it(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = counted_saves(monkeypatch)
    run = h.start(Gathered().ship, id="run")
    threaded_pass(h, "run")
    assert run.output == {"holding": True, "first": "first", "second": "second"}
    # of both, of the one that held them up unless it has come in time to share theirs, of the join, of the run
    assert len(saves) in (3, 4)
    assert {each.status for each in run.history()} == {"completed"}


def test_a_save_that_fails_is_the_failure_of_one_branch(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_saves(monkeypatch, fails=0)
    run = h.start(Gathered().ship, id="run")
    threaded_pass(h, "run")
    statuses = {each.location: each.status for each in run.history()}
    assert statuses["join/first/a"] == "exhausted"
    assert statuses["join/second/b"] == "completed"


def test_receivers_are_called_where_they_may_use_the_orm(h: Harness) -> None:
    received: list[tuple[str, int]] = []
    names = {signal: name for name, signal in signals.BY_NAME.items()}

    def note(signal: Any, **_: Any) -> None:
        received.append((names[signal], threading.get_ident()))

    def broken() -> None:
        raise ValueError("broken")

    async def branch(ctx: Any) -> None:
        await ctx.try_step("a", broken, max_retries=0)

    async def ship(ctx: Any) -> None:
        await ctx.join("join", {"one": branch})
        await ctx.step("b", broken, max_retries=0)

    for each in signals.BY_NAME.values():
        each.connect(note)
    try:
        run = h.start(ship, id="run")
        threaded_pass(h, "run")
    finally:
        for each in signals.BY_NAME.values():
            each.disconnect(note)
    assert run.state == "failed"
    assert [name for name, _ in received].count("step_failed") == 2
    assert "run_failed" in [name for name, _ in received]
    assert {thread for _, thread in received} == {threading.get_ident()}


@pytest.mark.parametrize("is_kept", [True, False])
def test_everything_goes_to_the_thread_that_waits(h: Harness, monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    """Also should asgiref keep its executor in another place."""
    if not is_kept:
        monkeypatch.setattr(owner_thread, "_executor", lambda: None)
    threads: list[int] = []
    save = PassHost.save

    def noting(host: PassHost, effect: Save) -> None:
        threads.append(threading.get_ident())
        save(host, effect)

    async def ship(ctx: Any) -> int:
        found: int = await ctx.step("a", threading.get_ident)
        await ctx.queue.send("news", 1)
        await ctx.queue.next("wait", names=["news"])
        return found

    monkeypatch.setattr(PassHost, "save", noting)
    run = h.start(ship, id="run")
    h.finish(run)
    assert run.output == threading.get_ident()
    assert len(threads) >= 4
    assert set(threads) == {threading.get_ident()}
