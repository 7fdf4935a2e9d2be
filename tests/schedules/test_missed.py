"""Which of the moments that are due become ticks, and which were missed."""

from datetime import UTC, datetime, timedelta

import pytest

from durable.schedules import CatchUp, read_rules
from durable.schedules.missed import MOST_CAUGHT_UP, MOST_LISTED, Due, due_at
from durable.schedules.rules import jitter_of

START = datetime(2026, 1, 1, tzinfo=UTC)
HOURLY = read_rules("0 * * * *").rules


def look(
    hours: float, catch_up: CatchUp = "last", window: timedelta | None = None, jitter: timedelta = timedelta(0)
) -> Due | None:
    return due_at(
        HOURLY,
        "UTC",
        START,
        START + timedelta(hours=hours),
        catch_up=catch_up,
        window=window,
        delay=lambda each: jitter_of("x", each, jitter),
    )


def at(hours: int) -> datetime:
    return START + timedelta(hours=hours)


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
def test_a_tick_on_time_is_a_tick(catch_up: CatchUp) -> None:
    due = look(0.001, catch_up, window=timedelta(0))
    assert due == Due(tick=START, missed=(), next_at=at(1), is_catching_up=False, is_incomplete=False)


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
def test_of_several_moments_none_of_which_is_late_each_is_a_tick(catch_up: CatchUp) -> None:
    rules = read_rules("every 10 seconds").rules
    second = START + timedelta(seconds=10)
    due = due_at(
        rules, "UTC", START, START + timedelta(seconds=25), catch_up=catch_up, window=None, delay=lambda _: timedelta(0)
    )
    assert due == Due(tick=START, missed=(), next_at=second, is_catching_up=False, is_incomplete=False)


def test_before_its_moment_nothing_is_due() -> None:
    assert look(-0.001) is None


def test_jitter_puts_a_tick_off() -> None:
    jitter = timedelta(minutes=30)
    delay = jitter_of("x", START, jitter)
    assert delay
    assert look((delay - timedelta(seconds=1)) / timedelta(hours=1), jitter=jitter) is None
    assert look(delay / timedelta(hours=1), jitter=jitter) is not None


def test_last_takes_the_newest_and_misses_the_others() -> None:
    due = look(3.5)
    assert due is not None
    assert (due.tick, due.next_at, due.is_catching_up) == (at(3), at(4), True)
    assert [each.moment for each in due.missed] == [at(0), at(1), at(2)]
    assert all("newer moment" in each.why for each in due.missed)


def test_last_outside_the_window_misses_all() -> None:
    due = look(3.5, window=timedelta(minutes=29))
    assert due is not None
    assert (due.tick, due.next_at) == (None, at(4))
    assert "window of 0:29:00" in due.missed[-1].why


def test_none_misses_what_is_late_and_takes_what_is_not() -> None:
    late, exact = look(3.5, "none"), look(3, "none")
    assert late is not None
    assert exact is not None
    assert (late.tick, len(late.missed)) == (None, 4)
    assert (exact.tick, len(exact.missed)) == (at(3), 3)


def test_all_takes_the_oldest_and_goes_on_with_the_next() -> None:
    due = look(3.5, "all")
    assert due is not None
    assert (due.tick, due.next_at, due.missed, due.is_catching_up) == (at(0), at(1), [], True)


def test_all_takes_those_within_the_window() -> None:
    due = look(3.5, "all", window=timedelta(hours=2))
    assert due is not None
    assert (due.tick, due.next_at) == (at(2), at(3))
    assert [each.moment for each in due.missed] == [at(0), at(1)]


def test_all_takes_the_newest_hundred() -> None:
    due = look(150.5, "all")
    assert due is not None
    assert due.tick == at(151 - MOST_CAUGHT_UP)
    assert [each.moment for each in due.missed] == [at(each) for each in range(151 - MOST_CAUGHT_UP)]


def test_a_year_of_missed_minutes_is_decided_at_once() -> None:
    rules = read_rules("* * * * *").rules
    due = due_at(
        rules,
        "Europe/Berlin",
        START,
        at(24 * 365),
        catch_up="last",
        window=None,
        delay=lambda _: timedelta(0),
    )
    assert due is not None
    assert due.tick == at(24 * 365)
    assert len(due.missed) == MOST_LISTED
    assert due.is_incomplete
