"""`using(deadline=..., work_limit=...)`: when the run fails, and what does not."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable import Workflow
from durable.core.time_limits import RunLimits
from durable.testing import Harness
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.support.errors import check_failed


def limited(h: Harness, flavour: Flavour, body: Any, **how: Any) -> Any:
    """A run of `body` with options of `using`."""
    return h.start(h._definition(flavour(body)).using(**how))


async def waits(ctx: Any) -> Any:
    await ctx.rollback_checkpoint("from here")
    await ctx.step("charge", lambda: 7, rollback=undoing.undo)
    return (await ctx.queue.next("approved")).body


# -- a deadline


@pytest.mark.parametrize("deadline", ["30 days", timedelta(days=30), 30 * 86400, NOW + timedelta(days=30)])
def test_a_run_past_its_deadline_fails_and_is_compensated(h: Harness, flavour: Flavour, deadline: Any) -> None:
    run = limited(h, flavour, waits, deadline=deadline)
    parked = h.run(run)
    assert parked.wake_at == NOW + timedelta(days=30)
    assert parked.waiting_for == ["approved"]
    h.advance(timedelta(days=30) - timedelta(seconds=1))
    h.settle()
    assert run.state == "sleeping"
    h.advance(1)
    h.settle()
    assert (run.state, run.error.type) == ("failed", "RunDeadlineError")
    assert "deadline of 2026-01-31 00:00:00+00:00" in run.error.message
    assert "recover it" in run.error.message
    assert undoing.undone == [7]


def test_a_run_that_ends_in_time_is_not_touched(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, waits, deadline="1 day")
    h.settle()
    h.send(run, "approved", "yes")
    h.advance("2 days")  # sent in time, received late: the pass begins past the deadline
    h.settle()
    assert run.state == "failed"
    other = limited(h, flavour, waits, deadline="1 day")
    h.settle()
    h.send(other, "approved", "yes")
    h.settle()
    assert (other.state, other.output) == ("completed", "yes")
    h.advance("2 days")
    h.settle()
    assert other.state == "completed"


def test_the_earlier_of_the_wait_and_the_deadline_counts(h: Harness, flavour: Flavour) -> None:
    async def sleeps(ctx: Any) -> Any:
        await ctx.sleep("short", "1 hour")
        await ctx.sleep("long", "9 days")

    run = limited(h, flavour, sleeps, deadline="1 day")
    assert h.run(run).wake_at == NOW + timedelta(hours=1)
    h.advance("1 hour")
    assert h.run(run).wake_at == NOW + timedelta(days=1)
    assert h.finish(run).state == "failed"
    assert h.now == NOW + timedelta(days=1)


def test_a_running_run_notices_at_its_next_operation(h: Harness, flavour: Flavour) -> None:
    called: list[str] = []

    def slow() -> None:
        called.append("slow")
        h.advance("2 hours")

    async def works(ctx: Any) -> Any:
        await ctx.step("slow", flavour.function(slow))
        await ctx.step("next", lambda: called.append("next"))

    run = limited(h, flavour, works, deadline="1 hour")
    check_failed(h.run(run), "RunDeadlineError")
    assert called == ["slow"]
    assert [each.status for each in run.history()] == ["completed"], "what was done is recorded"


def test_code_that_swallows_everything_does_not_go_on(h: Harness) -> None:
    called: list[str] = []

    def works(ctx: Any) -> None:
        ctx.step("slow", lambda: h.advance("2 hours"))
        for number in range(3):
            with suppress(BaseException):
                ctx.step(f"next {number}", lambda: called.append("next"))

    run = h.start(h._definition(works).using(deadline="1 hour"))
    assert h.run(run).state == "failed"
    assert called == []


def test_in_branches(h: Harness, flavour: Flavour) -> None:
    async def branch(c: Any) -> Any:
        await c.sleep("rest", "1 day")

    async def works(ctx: Any) -> Any:
        await ctx.join("both", {"one": branch, "two": branch})

    run = limited(h, flavour, works, deadline="1 hour")
    assert h.run(run).wake_at == NOW + timedelta(hours=1)
    assert h.finish(run).error.type == "RunDeadlineError"  # type: ignore[union-attr]


def test_a_paused_run_fails_when_it_is_resumed(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, waits, deadline="1 day")
    h.settle()
    run.pause()
    h.advance("3 days")
    h.settle()
    assert run.state == "paused"
    run.resume()
    h.settle()
    assert (run.state, run.error.type) == ("failed", "RunDeadlineError")


def test_a_deadline_does_not_stop_a_compensation(h: Harness, flavour: Flavour) -> None:
    async def fails(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step(
            "charge", lambda: 7, rollback=undoing.undo, retry_backoff_base="2 days", retry_backoff_max="9 days"
        )
        raise ValueError("late")

    undoing.fails_left.append(ConnectionError())
    run = limited(h, flavour, fails, deadline="1 hour")
    parked = h.run(run)
    assert parked.wake_at == NOW + timedelta(days=4), "the handler's backoff, past the deadline"
    check_failed(h.finish(run), "ValueError")
    assert undoing.undone == [7]


def test_a_cancel_that_came_first_is_carried_out(h: Harness, flavour: Flavour) -> None:
    async def works(ctx: Any) -> Any:
        def slow() -> None:
            run.cancel()
            h.advance("2 hours")

        await ctx.step("slow", slow)
        await ctx.step("next", lambda: 1)

    run = limited(h, flavour, works, deadline="1 hour")
    assert h.run(run).state == "cancelled"


def test_a_recovery_gives_the_same_time_anew(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, waits, deadline="1 day")
    h.settle()
    h.advance("5 days")
    h.settle()
    assert run.state == "failed"
    run.recover()
    parked = h.run(run)
    assert (parked.state, parked.wake_at) == ("sleeping", h.now + timedelta(days=1))
    assert undoing.undone == [7]
    h.send(run, "approved", "yes")
    h.settle()
    assert run.output == "yes"


def test_a_restart_and_a_replay_keep_the_length(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, waits, deadline="1 day", id="run")
    h.settle()
    h.advance("2 hours")
    for again in (run.restart(), run.replay("charge")):
        assert h.run(again).wake_at == h.now + timedelta(days=1)
    h.advance("5 days")
    h.settle()
    assert run.state == "failed"
    run.replay("charge", in_place=True)
    assert h.run(run).wake_at == h.now + timedelta(days=1)


def test_a_start_after_its_deadline_fails_in_its_first_pass(h: Harness, flavour: Flavour) -> None:
    for deadline in (NOW - timedelta(days=1), -5, 0):
        run = limited(h, flavour, waits, deadline=deadline)
        h.settle()
        assert run.error.type == "RunDeadlineError"
        assert run.history() == []
    late = limited(h, flavour, waits, deadline="1 hour", delay="1 day")
    assert late.wake_at == NOW + timedelta(hours=1)


def test_of_start_many(h: Harness, flavour: Flavour) -> None:
    runs = h._definition(flavour(waits)).using(deadline="1 hour").start_many([()] * 3)
    h.settle()
    assert [each.wake_at for each in runs] == [NOW + timedelta(hours=1)] * 3


def test_without_code_it_fails_all_the_same(h: Harness) -> None:
    run: Any = h.start(Workflow(lambda ctx: None, "nobody.knows").using(deadline="1 hour"))
    h.advance("1 hour")
    h.settle()
    check_failed(run, "RunDeadlineError")


def test_a_deadline_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    definition = h._definition(flavour(waits)).using(deadline="1 day")

    def drive(trial: Harness, run: Any) -> None:
        trial._local[definition.name] = definition
        trial.settle()
        trial.advance("1 day")
        trial.settle()
        assert (run.state, run.error.type) == ("failed", "RunDeadlineError")

    assert h.crash_everywhere(definition, drive=drive, check=lambda: undoing.undone[-1:]) >= 6


# -- a limit of work


def working(h: Harness, minutes: int, *, rests: bool = True) -> Any:
    async def works(ctx: Any) -> Any:
        for number in range(5):
            await ctx.step(f"work {number}", lambda: h.advance(f"{minutes} min"))
            if rests:
                await ctx.sleep(f"rest {number}", "1 day")
        return "done"

    return works


def test_the_time_of_passes_adds_up(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, working(h, 20), work_limit="1 hour")
    check_failed(h.finish(run), "RunDeadlineError", "work limit of 1:00:00")
    done = [each.location for each in run.history() if each.kind == "step"]
    assert done == ["work 0", "work 1", "work 2"]


def test_waiting_does_not_count(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, working(h, 11), work_limit="1 hour")
    assert h.finish(run).output == "done"


def test_within_one_pass_it_is_noticed_at_the_next_operation(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, working(h, 40, rests=False), work_limit="1 hour")
    assert h.run(run).state == "failed"
    assert len(run.history()) == 2


def test_a_recovery_gives_the_same_work_anew(h: Harness, flavour: Flavour) -> None:
    run = limited(h, flavour, working(h, 20), work_limit="1 hour")
    assert h.finish(run).state == "failed"
    run.recover()
    assert h.finish(run).output == "done"


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ({"deadline": "soon"}, ValueError, "a deadline cannot be read"),
        ({"deadline": datetime(2026, 1, 1)}, ValueError, "a deadline must be an aware datetime"),  # noqa: DTZ001
        ({"deadline": [1]}, TypeError, "a deadline is given in seconds"),
        ({"work_limit": 0}, ValueError, "a work limit must be longer than zero"),
        ({"work_limit": -1}, ValueError, "a work limit must not be negative"),
        ({"work_limit": datetime(2026, 1, 1, tzinfo=UTC)}, TypeError, "a work limit is given in seconds"),
    ],
)
def test_limits_are_checked(h: Harness, how: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        h._definition(lambda ctx: None).using(**how)


def test_without_limits_there_are_none() -> None:
    assert RunLimits.of(NOW, None, None) is None
