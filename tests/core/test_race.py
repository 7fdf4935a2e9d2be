"""`ctx.race`: one wins, the others are cancelled and forgotten."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from durable.core.branches import _Fork
from durable.testing import Harness
from tests.core import undoing
from tests.core.branches import failing, sleeping, stepping, waiting
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


def raced(branches: dict[str, Any]) -> Any:
    async def ship(ctx: Any) -> Any:
        found = await ctx.race("race", branches)
        await ctx.sleep("rest", 1)
        return found.winner, found.value

    return ship


def locations(run: Any) -> list[str]:
    return [each.location for each in run.history()]


def test_the_first_declared_that_can_finish_wins(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []
    run = h.start(flavour(raced({"slow": sleeping(60), "fast": stepping("done", calls), "late": stepping(1, calls)})))
    assert h.finish(run).output == ("fast", "done")
    assert calls == ["done"]
    assert locations(run) == ["race", "race/fast/a", "rest"]
    statuses = {name: each["status"] for name, each in run.history()[0].data["branches"].items()}
    assert statuses == {"slow": "cancelled", "fast": "completed", "late": "cancelled"}
    assert run.history()[0].data["winner"] == "fast"


def test_a_timer_against_a_message(h: Harness, flavour: Flavour) -> None:
    branches = {"answer": waiting("answer"), "timeout": sleeping(60, "too late")}
    late, early = h.start(flavour(raced(branches))), h.start(flavour(raced(branches)))
    parked = h.run(late)
    assert (parked.waiting_for, parked.wake_at) == (["answer"], h.now + timedelta(seconds=60))
    h.run(early)
    h.advance(59)
    h.send(early, "answer", 42)
    h.settle()
    assert h.finish(early).output == ("answer", 42)
    assert h.finish(late).output == ("timeout", "too late")


def test_one_that_fails_does_not_win(h: Harness, flavour: Flavour) -> None:
    assert h.finish(h.start(flavour(raced({"bad": failing, "good": stepping(1)})))).output == ("good", 1)
    assert h.finish(h.start(flavour(raced({"bad": failing, "slow": sleeping(60, 2)})))).output == ("slow", 2)


def test_all_failed(h: Harness, flavour: Flavour) -> None:
    check_failed(h.finish(h.start(flavour(raced({"one": failing, "two": failing})))), "RaceError")


def test_needs_a_branch(h: Harness, flavour: Flavour) -> None:
    assert 'race "race" needs at least one branch' in error_of(h.run(h.start(flavour(raced({}))))).message


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def inner(ctx: Any) -> Any:
        found = await ctx.race("inner", {"a": sleeping(90), "b": sleeping(30, "b")})
        return found.value

    async def two(ctx: Any) -> Any:
        await ctx.step("a", lambda: 1)
        await ctx.sleep("rest", 45)
        return await ctx.step("b", lambda: 2)

    async def ship(ctx: Any) -> Any:
        found = await ctx.race("race", {"inner": inner, "two": two, "bad": failing})
        return found.winner, found.value, await ctx.step("after", lambda: 3)

    h.crash_everywhere(flavour(ship))


def test_a_losers_completed_steps_with_a_handler_stay(h: Harness, flavour: Flavour) -> None:
    async def charging(ctx: Any) -> Any:
        await ctx.step("charge", lambda: "charged", rollback=undoing.undo)
        await ctx.step("other", lambda: 1)
        await ctx.sleep("rest", 60)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.race("race", {"slow": charging, "fast": stepping(1)})
        await ctx.sleep("rest", 1)
        await ctx.step("charge", lambda: "second", rollback=undoing.undo)
        raise ValueError("late")

    run = h.start(flavour(ship))
    check_failed(h.finish(run), "ValueError")
    assert undoing.undone == ["second", "charged"]
    assert locations(run) == ["from here", "race", "race/slow/charge", "race/fast/a", "rest", "charge"]


def test_an_async_loser_is_cancelled_at_once(h: Harness) -> None:
    ended = []

    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    async def hanging(ctx: Any) -> Any:
        await ctx.step("hang", hang, timeout=0)

    async def ship(ctx: Any) -> Any:
        return (await ctx.race("race", {"slow": hanging, "fast": stepping(1)})).winner

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == "fast"
    assert ended == ["cancelled"]
    assert locations(run) == ["race", "race/fast/a"]


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_loser_in_a_thread_is_cancelled_at_its_next_operation(
    h: Harness, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    fast_has_won = threading.Event()
    calls = []
    completed = _Fork._completed

    def noting(fork: _Fork, *args: Any) -> None:
        completed(fork, *args)
        fast_has_won.set()

    def slow(ctx: Any) -> Any:
        ctx.step("wait for it", lambda: fast_has_won.wait(60))
        try:
            ctx.step("never", lambda: calls.append(1))
        finally:
            if stubborn:
                return "swallowed"  # noqa: B012

    def fast(ctx: Any) -> Any:
        return "fast"

    def ship(ctx: Any) -> Any:
        return ctx.race("race", {"slow": slow, "fast": fast}).winner

    monkeypatch.setattr(_Fork, "_completed", noting)
    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == "fast"
    assert calls == []
    assert locations(run) == ["race"]


def test_a_losers_inner_branches_are_cancelled_with_it(h: Harness) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    async def hanging(ctx: Any) -> Any:
        await ctx.step("hang", hang, timeout=0)

    async def outer(ctx: Any) -> Any:
        await ctx.join("inner", {"a": hanging, "b": hanging})

    async def ship(ctx: Any) -> Any:
        return (await ctx.race("race", {"slow": outer, "fast": stepping(1)})).winner

    run = h.start(ship, id="run")
    threaded_pass(h, "run")
    assert run.output == "fast"
    assert locations(run) == ["race", "race/fast/a"]


def test_a_winner_found_in_a_later_pass(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(raced({"a": sleeping(60, 1), "b": sleeping(30, 2)})))
    assert h.finish(run).output == ("b", 2)
    assert locations(run) == ["race", "race/b/rest", "race/b/after", "rest"]


# -- messages that a losing branch has received


def left_over(branches: dict[str, Any]) -> Any:
    """Race, then take what lies in the inbox."""

    async def ship(ctx: Any) -> Any:
        found = await ctx.race("race", branches)
        left = await ctx.queue.next_batch("left", names=[], count=9, timeout=0)
        return found.winner, [message.body for message in left]

    return ship


@pytest.mark.parametrize("sent_first", [True, False])
def test_a_message_that_a_loser_received_and_did_nothing_with_returns(
    h: Harness, flavour: Flavour, sent_first: bool
) -> None:
    """Also where branches of the loser stand beside the wait: they are not what its code went on with."""

    async def both(ctx: Any) -> Any:
        return await ctx.join("both", {"x": waiting("x"), "y": waiting("y")})

    run = h.start(flavour(left_over({"both": both, "timeout": sleeping(60)})))
    if not sent_first:
        h.run(run)
    h.send(run, "x", "kept")
    h.run(run)
    assert [each.state for each in h._store.messages(run.id)] == ["received"]
    h.send(run, "z", "later")
    assert h.finish(run).output == ("timeout", ["kept", "later"])
    assert {each.received_by for each in h._store.messages(run.id)} == {"left"}


def test_a_message_that_a_loser_went_on_with_stays_received(h: Harness, flavour: Flavour) -> None:
    async def working(ctx: Any) -> Any:
        body = (await ctx.queue.next("job", ["jobs"])).body
        await ctx.try_block("work", stepping(body))
        return await ctx.queue.next("never", ["never"])

    run = h.start(flavour(left_over({"work": working, "timeout": sleeping(60)})))
    h.send(run, "jobs", "done")
    assert h.finish(run).output == ("timeout", [])


def test_a_message_that_a_loser_answered_stays_completed(h: Harness, flavour: Flavour) -> None:
    async def answering(ctx: Any) -> Any:
        async def answer(ctx: Any) -> Any:
            message = await ctx.queue.next("ask", ["asked"], completable=True)
            await message.complete("yes")

        return await ctx.join("all", {"answer": answer, "never": waiting("never")})

    run = h.start(flavour(left_over({"answer": answering, "timeout": sleeping(60)})))
    h.run(run)
    h.send(run, "asked", "?")
    h.run(run)
    assert h.finish(run).output == ("timeout", [])
    [message] = h._store.messages(run.id)
    assert (message.state, message.response) == ("completed", '"yes"')


def test_a_message_that_a_loser_failed_on_stays_received(h: Harness, flavour: Flavour) -> None:
    async def refusing(ctx: Any) -> Any:
        raise ValueError((await ctx.queue.next("wait", ["x"])).body)

    run = h.start(flavour(left_over({"refuse": refusing, "timeout": sleeping(60)})))
    h.send(run, "x", "bad")
    assert h.finish(run).output == ("timeout", [])


def test_of_waits_that_all_receive_at_once_the_losers_lose_no_message(h: Harness, flavour: Flavour) -> None:
    """In threads and tasks: each message is the winner's, or still there."""
    names = "abcdefgh"
    for number in range(10):
        run = h.start(flavour(left_over({name: waiting(name) for name in names})), id=f"run {number}")
        for name in names:
            h.send(run, name, name)
        threaded_pass(h, run.id)
        winner, left = run.result()
        assert sorted([winner, *left]) == list(names)


def test_returning_messages_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("x", "kept")
        await ctx.queue.send("z", "go")

        async def both(ctx: Any) -> Any:
            return await ctx.join("both", {"x": waiting("x"), "y": waiting("y")})

        found = await ctx.race("race", {"both": both, "go": waiting("z")})
        return found.winner, (await ctx.queue.next("again", ["x"])).body

    assert h.crash_everywhere(flavour(ship)) > 5
