"""`ctx.sleep`, `ctx.sleep_until`, moments at the ends of the calendar, and the deterministic clock, draws, logger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from durable import Break, Continue, RetryLater, workflow
from durable.core.clock import LATEST
from durable.testing import Harness
from tests.core.conftest import NOW
from tests.core.flavours import Flavour

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "act",
    [
        lambda ctx: ctx.sleep("wait", 3600),
        lambda ctx: ctx.sleep("wait", "1 hour"),
        lambda ctx: ctx.sleep("wait", timedelta(hours=1)),
        lambda ctx: ctx.sleep_until("wait", START + timedelta(hours=1)),
        lambda ctx: ctx.sleep_until("wait", datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_parks_until_its_deadline(h: Harness, flavour: Flavour, act: Any) -> None:
    async def ship(ctx: Any) -> Any:
        await act(ctx)
        return "done"

    run = h.start(flavour(ship))
    parked = h.run(run)
    assert (parked.state, parked.wake_at, parked.waiting_for) == ("sleeping", START + timedelta(hours=1), None)
    assert run.history()[0].data["state"] == "pending"
    h.advance("59 minutes")
    assert h.run(run).wake_at == START + timedelta(hours=1)
    h.advance("1 minute")
    assert h.run(run).output == "done"
    assert run.history()[0].data["state"] == "completed"


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.sleep("short", 0.05)
        await ctx.sleep("long", 60)
        await ctx.sleep_until("past", START)
        return (await ctx.step("a", lambda: 1)) + 1

    h.crash_everywhere(flavour(ship))


def test_below_the_setting_it_waits_in_memory(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.sleep("short", 0.09)
        return "done"

    assert h.run(h.start(flavour(ship))).output == "done"
    assert h.now == START + timedelta(seconds=0.09)


def test_short_sleep_of_zero_makes_every_sleep_yield(flavour: Flavour) -> None:
    with Harness(now=START, short_sleep=0) as h:
        assert h.run(h.start(flavour.calling(lambda ctx: ctx.sleep("short", 0.001)))).state == "sleeping"


@pytest.mark.parametrize(
    "act",
    [
        lambda ctx: ctx.sleep("a", 0),
        lambda ctx: ctx.sleep("a", -1),
        lambda ctx: ctx.sleep("a", "-1 second"),
        lambda ctx: ctx.sleep("a", "-1 day 2 hours"),
        lambda ctx: ctx.sleep("a", timedelta(days=-42)),
        lambda ctx: ctx.sleep_until("a", START - timedelta(1)),
    ],
)
def test_a_deadline_that_is_past_does_not_park(h: Harness, flavour: Flavour, act: Any) -> None:
    async def ship(ctx: Any) -> Any:
        await act(ctx)
        return "done"

    assert h.run(h.start(flavour(ship))).output == "done"


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda ctx: ctx.sleep("a", "1 - second"), "cannot be read"),
        (lambda ctx: ctx.sleep("a", "-"), "cannot be read"),
        (lambda ctx: ctx.step("a", len, "", timeout="-5 s"), "must not be negative: '-5 s'"),
        (lambda ctx: ctx.sleep("a", "3 parsecs"), "cannot be read: '3 parsecs'; write numbers with units"),
        (lambda ctx: ctx.sleep("a", ""), "cannot be read"),
        (lambda ctx: ctx.sleep("a", "3"), "cannot be read"),
        (lambda ctx: ctx.sleep("a", float("inf")), "must be finite"),
        (lambda ctx: ctx.sleep("a", 10**400), "is too long"),
        (lambda ctx: ctx.sleep("a", float("nan")), "must be finite"),
        (lambda ctx: ctx.sleep("a", 1e300), "too long"),
        (lambda ctx: ctx.sleep("a", "99999999 days"), "ends after the year 9999"),
        (lambda ctx: ctx.sleep("a", None), "not None"),
        (lambda ctx: ctx.sleep("a", True), "not True"),
        (lambda ctx: ctx.sleep_until("a", datetime(2027, 1, 1)), "has no time zone"),  # noqa: DTZ001
        (lambda ctx: ctx.sleep_until("a", 5), "is an aware datetime, not 5"),
        (lambda ctx: ctx.sleep_until("a", START.date()), "is an aware datetime"),
    ],
)
def test_refuses_what_is_no_duration_or_moment(h: Harness, flavour: Flavour, act: Any, text: str) -> None:
    async def ship(ctx: Any) -> Any:
        await act(ctx)

    error = h.run(h.start(flavour(ship))).error
    assert error is not None
    assert error.type in {"TypeError", "ValueError"}
    assert text in error.message


def test_durations_as_text(h: Harness) -> None:
    def ship(ctx: Any, text: str) -> None:
        ctx.sleep("a", text)

    for text, seconds in {
        "1 day 2 minutes": 86520,
        "1.5 s": 1.5,
        "2 weeks": 1209600,
        "1 hour, 30 minutes and 5 seconds": 5405,
        "3HOURS": 10800,
        "250 ms": 0.25,
    }.items():
        run = h.start(ship, text)
        wake_at = h.run(run).wake_at
        assert wake_at is not None
        assert (wake_at - h.now).total_seconds() == seconds


def test_a_woken_sleep_keeps_its_time_unless_it_is_ended(h: Harness, flavour: Flavour) -> None:
    moments = []

    async def ship(ctx: Any) -> Any:
        await ctx.sleep("a", 3600)
        moments.append(ctx.now())
        return "done"

    run = h.start(flavour(ship))
    parked = h.run(run)
    h.advance(60)
    run.wake()
    h.settle()
    assert run.wake_at == parked.wake_at
    run.wake(end_sleeps=True)
    h.settle()
    assert run.output == "done"
    assert run.history()[0].data["state"] == "interrupted"
    assert moments == [START + timedelta(seconds=60)]


# -- the deterministic clock and draws


def test_time_is_that_of_the_newest_record_seen(h: Harness, flavour: Flavour) -> None:
    seen: list[list[datetime]] = []

    def fail_late() -> None:
        h.advance(10)
        raise ValueError

    async def ship(ctx: Any) -> Any:
        mine = [ctx.now()]
        await ctx.step("a", lambda: h.advance(5))
        mine.append(ctx.now())
        await ctx.sleep("b", 60)
        mine.append(ctx.now())
        await ctx.try_step("c", fail_late, max_retries=0)
        mine.append(ctx.now())

        async def branch(ctx: Any) -> Any:
            await ctx.step("a", lambda: h.advance(7))
            return ctx.now()

        inside = (await ctx.join("d", {"x": branch}))["x"]
        mine.append(ctx.now())
        mine.append(inside)
        seen.append(mine)
        await ctx.sleep("e", 60)

    h.finish(h.start(flavour(ship)))
    first, second = seen
    assert first == second
    assert first == sorted(first)
    assert first[:3] == [START, START + timedelta(seconds=5), START + timedelta(seconds=65)]


def test_time_in_a_loop_is_the_same_in_the_pass_that_resumes_it(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, n: int) -> Any:
            seen.append((n, ctx.now()))
            await ctx.step("a", lambda: h.advance(5))
            await ctx.sleep("b", 60)
            return Continue(n + 1) if n < 3 else Break(n)

        await ctx.loop("loop", body, state=0)

    h.finish(h.start(flavour(ship)))
    assert len(set(seen)) == 4
    assert [n for n, _ in seen] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_draws_are_the_same_in_each_pass_and_differ_by_run_and_scope(h: Harness, flavour: Flavour) -> None:
    seen: list[Any] = []

    async def draw(ctx: Any) -> Any:
        return [ctx.random.random(), str(ctx.uuid4())]

    async def ship(ctx: Any) -> Any:
        mine = [await draw(ctx), await draw(ctx), *(await ctx.join("j", {"a": draw, "b": draw})).values()]
        seen.append(mine)
        await ctx.sleep("a", 60)

    h.finish(h.start(flavour(ship), id="one"))
    h.finish(h.start(flavour(ship), id="two"))
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    numbers = [number for mine in (seen[0], seen[2]) for number, _ in mine]
    assert len(set(numbers)) == len(numbers)


def test_the_logger_is_silent_while_code_repeats_what_it_has_done(
    h: Harness, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    async def ship(ctx: Any) -> Any:
        ctx.logger.info("begun")
        await ctx.step("a", lambda: 1)
        ctx.logger.info("charged")
        await ctx.sleep("b", 60)
        ctx.logger.info("rested")

    with caplog.at_level(logging.INFO, "durable.workflow"):
        h.finish(h.start(flavour(ship), id="run"))
    messages = [record.getMessage() for record in caplog.records if record.name == "durable.workflow"]
    assert messages == ["begun", "charged", "rested"]
    record: Any = caplog.records[0]
    assert (record.run_id, record.location) == ("run", "")


# -- moments at the ends of the calendar: refused where they are given, bounded where they come from outside


WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=9))
LAST, FIRST = datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST)


@workflow(name="moments.nothing")
def nothing(ctx: Any) -> None: ...


@pytest.mark.parametrize("moment", [LAST, FIRST], ids=["last", "first"])
@pytest.mark.parametrize(
    "act",
    [
        lambda ctx, moment: ctx.sleep_until("rest", moment),
        lambda ctx, moment: ctx.queue.next("wait", until=moment),
        lambda ctx, moment: ctx.child("child", nothing.using(deadline=moment)),
    ],
    ids=["sleep", "wait", "child"],
)
def test_a_moment_without_a_date_in_utc_is_refused_where_it_is_given(
    h: Harness, flavour: Flavour, act: Callable[..., Any], moment: datetime
) -> None:
    async def ship(ctx: Any) -> str:
        try:
            await act(ctx, moment)
        except ValueError as error:
            return str(error)
        return "accepted"

    done = h.run(h.start(flavour(ship)))
    assert "In UTC this is before the year 1 or after the year 9999" in str(done.output)


@pytest.mark.parametrize("moment", [LAST, FIRST], ids=["last", "first"])
def test_a_deadline_without_a_date_in_utc_is_refused(h: Harness, moment: datetime) -> None:
    with pytest.raises(ValueError, match="before the year 1 or after the year 9999"):
        nothing.using(deadline=moment)
    with pytest.raises(ValueError, match="before the year 1 or after the year 9999"):
        RetryLater(moment)


@pytest.mark.parametrize("given", ["500000 weeks", timedelta.max])
def test_a_length_that_ends_after_the_calendar_is_refused(h: Harness, given: Any) -> None:
    with pytest.raises(ValueError, match="ends after the year 9999"):
        nothing.using(deadline=given).start()


def test_an_upstream_that_names_a_moment_beyond_the_calendar_is_waited_for_as_long_as_possible(
    h: Harness, flavour: Flavour
) -> None:
    def call() -> None:
        raise RetryLater("Fri, 31 Dec 9999 23:59:59 -0500")

    assert h.run(h.start(flavour.calling(lambda ctx: ctx.step("call", flavour.function(call))))).wake_at == LATEST


def test_never_may_be_written_as_the_last_moment(h: Harness, flavour: Flavour) -> None:
    parked = h.run(h.start(flavour.calling(lambda ctx: ctx.sleep_until("rest", datetime.max.replace(tzinfo=UTC)))))
    assert parked.state == "sleeping"
    assert parked.wake_at is not None
    assert parked.wake_at > NOW + timedelta(days=2_900_000)
