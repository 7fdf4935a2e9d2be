"""Ticks on the virtual clock of a harness and with workers' stores; which moments become ticks, and which are not."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, Schedule, cron, every, get_run, workflow
from durable.errors import RunNotFoundError
from durable.models import Run, Tick
from durable.operations.schedules import tick
from durable.operations.schedules.rows import rows
from durable.operations.schedules.tick import tick_due
from durable.schedules import CatchUp, read_rules
from durable.schedules.missed import MOST_CAUGHT_UP, MOST_LISTED, Due, due_at
from durable.schedules.rules import jitter_of
from durable.testing import Harness

pytestmark = pytest.mark.django_db


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@workflow(name="tests.schedules.report")
def report(ctx: Context, team: int = 0) -> list[Any]:
    moment = ctx.scheduled_for
    return [team, None if moment is None else moment.isoformat()]


@workflow(name="tests.schedules.areport")
async def areport(ctx: AsyncContext) -> str | None:
    return None if ctx.scheduled_for is None else ctx.scheduled_for.isoformat()


@workflow(name="tests.schedules.slow")
def slow(ctx: Context) -> None:
    ctx.sleep("work", "90 minutes")


UNSTABLE: set[str] = set()


def fail_if_unstable(run_id: str) -> None:
    if run_id in UNSTABLE:
        raise CriticalError("as it has to")


@workflow(name="tests.schedules.unstable")
def unstable(ctx: Context) -> None:
    """Sleep for half of the time to the next tick; one that was recovered sleeps beyond it."""
    ctx.step("work", fail_if_unstable, ctx.run_id)
    ctx.sleep("work on", "90 minutes" if ctx.run_id == "s@2026-01-01T13:00:00Z" else "30 minutes")


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(NOON) as harness:
        yield harness


def hourly(workflow: str = "tests.schedules.slow", **options: Any) -> Schedule:
    return Schedule.objects.create(name="s", workflow=workflow, rule="0 * * * *", **options)


def outcomes(name: str = "s") -> list[tuple[int, str]]:
    """Hours after noon, and what became of the moment."""
    found = Tick.objects.filter(schedule__name=name).order_by("number")
    return [(int((each.moment - NOON) / timedelta(hours=1)), each.outcome) for each in found]


def pass_hours(h: Harness, hours: int) -> None:
    for _ in range(hours):
        h.advance("1 hour")
        h.settle()


class TestRows:
    def test_the_next_moment_is_on_the_clock_in_force(self, h: Harness) -> None:
        made = Schedule.objects.create(
            name="report-7", workflow="tests.schedules.report", args=[7], rule=every("6 hours"), jitter="10 min"
        )
        made.refresh_from_db()
        assert made.next_at == NOON + timedelta(hours=6)
        assert made.due_at is not None
        assert timedelta(0) <= made.due_at - made.next_at < timedelta(minutes=10)
        assert (made.rule, made.jitter, made.origin, made.paused) == (
            "every 6 hours",
            timedelta(minutes=10),
            "admin",
            False,
        )

    def test_the_options_of_a_rule_are_those_of_the_row(self, h: Harness) -> None:
        rule = cron("0 9 * * *", zone="Asia/Tokyo", overlap="queue", catch_up="all", window="2 days", args=[3])
        made = Schedule.objects.create(name="x", workflow="tests.schedules.report", rule=rule)
        assert (made.zone, made.overlap, made.catch_up, made.window) == (
            "Asia/Tokyo",
            "queue",
            "all",
            timedelta(days=2),
        )
        assert made.next_at == datetime(2026, 1, 2, 0, 0, tzinfo=UTC)

    @pytest.mark.parametrize(
        "columns",
        [
            {"name": "a/b"},
            {"name": ""},
            {"rule": "every now and then"},
            {"zone": "Mars/Olympus"},
            {"overlap": "drop"},
            {"catch_up": "some"},
            {"jitter": "-1 s"},
            {"queue": "a\nb"},
            {"args": "abc"},
        ],
    )
    def test_what_cannot_be_a_schedule_is_refused(self, h: Harness, columns: Any) -> None:
        with pytest.raises((ValueError, TypeError)):
            Schedule.objects.create(**{"name": "x", "workflow": "w", "rule": "every 6 hours"} | columns)
        assert not Schedule.objects.exists()

    def test_a_saved_rule_has_its_next_moment(self, h: Harness) -> None:
        made = hourly()
        made.rule = "every 6 hours"
        made.save()
        assert Schedule.objects.get().next_at == NOON + timedelta(hours=6)


class TestTicks:
    def test_a_run_is_started_at_its_moment_with_its_arguments(self, h: Harness) -> None:
        Schedule.objects.create(name="report-7", workflow="tests.schedules.report", args=[7], rule=every("6 hours"))
        h.advance("5 hours")
        h.settle()
        assert not Tick.objects.exists()
        h.advance("1 hour")
        h.settle()
        assert h.peek("report-7@2026-01-01T18:00:00Z").output == [7, "2026-01-01T18:00:00+00:00"]
        tick = Tick.objects.get()
        assert (tick.outcome, tick.run_id) == ("started", "report-7@2026-01-01T18:00:00Z")
        assert Schedule.objects.get().next_at == NOON + timedelta(hours=12)

    def test_an_async_workflow_knows_its_moment_too(self, h: Harness) -> None:
        hourly("tests.schedules.areport")
        pass_hours(h, 1)
        assert h.peek("s@2026-01-01T13:00:00Z").output == "2026-01-01T13:00:00+00:00"

    def test_a_run_that_no_schedule_started_has_no_moment(self, h: Harness) -> None:
        assert h.finish(h.start(report, 7)).output == [7, None]

    def test_a_restart_is_about_the_same_moment(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        pass_hours(h, 1)
        again = get_run("s@2026-01-01T13:00:00Z").restart()
        assert h.finish(again).output == [0, "2026-01-01T13:00:00+00:00"]

    def test_the_next_moment_follows_from_the_moment_and_not_from_the_clock(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        h.advance("60 minutes 50 seconds")
        h.settle()
        assert Schedule.objects.get().next_at == NOON + timedelta(hours=2)

    def test_jitter_puts_the_run_off_and_not_its_moment(self, h: Harness) -> None:
        made = hourly("tests.schedules.report", jitter="30 min")
        assert made.due_at is not None
        h.advance("1 hour")
        h.settle()
        assert not Tick.objects.exists()
        h.advance(made.due_at - h.now)
        h.settle()
        assert h.peek("s@2026-01-01T13:00:00Z").state == "completed"

    def test_a_queue_of_the_schedule_is_used(self, h: Harness) -> None:
        hourly("tests.schedules.report", queue="high")
        h.advance("1 hour")
        assert tick_due(h.now, only=["s"]) == 1
        assert get_run("s@2026-01-01T13:00:00Z").info().queue == "high"

    def test_two_hundred_ticks_are_kept(self, h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        assert tick.KEPT == 200
        monkeypatch.setattr(tick, "KEPT", 20)
        Schedule.objects.create(name="s", workflow="tests.schedules.report", rule="every 10 minutes")
        for _ in range(25):
            h.advance("10 minutes")
            tick_due(h.now, only=["s"])
            h.settle()
        numbers = list(Tick.objects.order_by("number").values_list("number", flat=True))
        assert numbers == list(range(6, 26))

    def test_a_paused_schedule_does_not_tick(self, h: Harness) -> None:
        hourly("tests.schedules.report", paused=True)
        pass_hours(h, 3)
        assert not Tick.objects.exists()


class TestOverlap:
    def test_skip_is_the_default(self, h: Harness) -> None:
        hourly()
        pass_hours(h, 3)
        assert outcomes() == [(1, "started"), (2, "skipped"), (3, "started")]
        assert 'the run "s@2026-01-01T13:00:00Z" of an earlier tick has not ended: it is sleeping' in (
            Tick.objects.get(outcome="skipped").why
        )

    def test_a_recovered_run_of_an_earlier_tick_is_open_again(self, h: Harness) -> None:
        hourly("tests.schedules.unstable")
        UNSTABLE.add("s@2026-01-01T13:00:00Z")
        pass_hours(h, 2)
        assert [outcome for _, outcome in outcomes()] == ["started", "started"]
        UNSTABLE.clear()
        get_run("s@2026-01-01T13:00:00Z").recover()
        h.settle()
        pass_hours(h, 1)
        assert outcomes()[-1] == (3, "skipped")
        pass_hours(h, 1)
        assert outcomes()[-1] == (4, "started")

    def test_whoever_asks_for_the_run_of_a_tick_that_started_none_is_told_why(self, h: Harness) -> None:
        hourly()
        pass_hours(h, 3)
        text = 'has started none for that moment: skipped: the run "s@2026-01-01T13:00:00Z" of an earlier tick has not'
        with pytest.raises(RunNotFoundError, match=re.escape(text)):
            h.finish("s@2026-01-01T14:00:00Z")
        for other in ("s@2026-01-01T14:30:00Z", "s@yesterday", "s@2026-01-01", "t@2026-01-01T14:00:00Z", "@"):
            with pytest.raises(RunNotFoundError, match="check the id"):
                get_run(other).info()

    def test_queue_lets_one_wait_and_merges_a_second(self, h: Harness) -> None:
        Schedule.objects.create(name="s", workflow="tests.schedules.slow", rule="every 30 minutes", overlap="queue")
        for _ in range(3):
            h.advance("30 minutes")
            h.settle()
        assert [outcome for _, outcome in outcomes()] == ["started", "waiting", "merged"]
        h.advance("30 minutes")
        h.settle()
        ticks = list(Tick.objects.order_by("number"))
        assert [each.outcome for each in ticks] == ["started", "started", "merged", "waiting"]
        assert ticks[1].run_id == "s@2026-01-01T13:00:00Z"
        assert h.peek("s@2026-01-01T13:00:00Z").state == "sleeping"

    def test_a_waiting_tick_begins_when_the_earlier_run_ends_and_not_at_the_next_moment(self, h: Harness) -> None:
        hourly(overlap="queue")
        pass_hours(h, 2)
        h.advance("30 minutes")
        h.settle()
        assert outcomes() == [(1, "started"), (2, "started")]

    def test_a_waiting_tick_begins_after_a_cancel_too(self, h: Harness) -> None:
        hourly(overlap="queue")
        pass_hours(h, 2)
        get_run("s@2026-01-01T13:00:00Z").cancel()
        h.settle()
        assert outcomes() == [(1, "started"), (2, "started")]

    def test_allow_runs_them_at_once(self, h: Harness) -> None:
        hourly(overlap="allow")
        pass_hours(h, 2)
        assert outcomes() == [(1, "started"), (2, "started")]
        assert h.peek("s@2026-01-01T13:00:00Z").state == h.peek("s@2026-01-01T14:00:00Z").state == "sleeping"

    def test_replace_cancels_the_one_that_runs(self, h: Harness) -> None:
        hourly(overlap="replace")
        pass_hours(h, 2)
        assert outcomes() == [(1, "started"), (2, "started")]
        assert h.peek("s@2026-01-01T13:00:00Z").state == "cancelled"
        assert h.peek("s@2026-01-01T14:00:00Z").state == "sleeping"
        [action] = [each for each in h.actions if each.action == "cancel"]
        assert (action.actor_label, action.reason) == (
            "schedule s",
            'replaced by the tick of 2026-01-01T14:00:00Z (overlap is "replace")',
        )


class TestCatchingUp:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [(1, "missed"), (2, "missed"), (3, "started")]),
            ({"catch_up": "none"}, [(1, "missed"), (2, "missed"), (3, "missed")]),
            ({"window": "10 min"}, [(1, "missed"), (2, "missed"), (3, "missed")]),
            ({"catch_up": "all"}, [(1, "started"), (2, "started"), (3, "started")]),
            ({"catch_up": "all", "window": "2 hours"}, [(1, "missed"), (2, "started"), (3, "started")]),
        ],
    )
    def test_after_downtime(self, h: Harness, options: Any, expected: Any) -> None:
        hourly("tests.schedules.report", **options)
        h.advance("3 hours 30 min")
        h.settle()
        assert outcomes() == expected
        assert Schedule.objects.get().next_at == NOON + timedelta(hours=4)
        assert all(each.why for each in Tick.objects.exclude(outcome="started"))

    def test_all_is_one_after_the_other(self, h: Harness) -> None:
        hourly(catch_up="all")
        h.advance("2 hours 30 min")
        h.settle()
        assert outcomes() == [(1, "started")]
        h.advance("90 min")
        h.settle()
        assert outcomes() == [(1, "started"), (2, "started")]
        assert h.peek("s@2026-01-01T13:00:00Z").state == "completed"

    def test_all_with_allow_is_at_once(self, h: Harness) -> None:
        hourly(catch_up="all", overlap="allow")
        h.advance("2 hours 30 min")
        h.settle()
        assert h.peek("s@2026-01-01T13:00:00Z").state == h.peek("s@2026-01-01T14:00:00Z").state == "sleeping"

    def test_a_clock_that_is_set_back_repeats_nothing(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        pass_hours(h, 3)
        h._now -= timedelta(hours=2)
        h.settle()
        assert outcomes() == [(1, "started"), (2, "started"), (3, "started")]
        pass_hours(h, 3)
        assert outcomes() == [(each, "started") for each in (1, 2, 3, 4)]


class TestRefusals:
    def refused(self) -> str:
        tick = Tick.objects.get(outcome="refused")
        assert tick.run_id == ""
        return tick.why

    def test_a_workflow_that_is_gone(self, h: Harness) -> None:
        hourly("tests.schedules.gone")
        pass_hours(h, 1)
        assert "there is no workflow 'tests.schedules.gone'" in self.refused()
        assert Schedule.objects.get().next_at == NOON + timedelta(hours=2)

    def test_arguments_that_do_not_fit(self, h: Harness) -> None:
        hourly("tests.schedules.slow", args=[1, 2])
        pass_hours(h, 1)
        assert "does not take the arguments of the schedule" in self.refused()

    def test_an_input_that_cannot_be_read(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        rows().update(input="{broken")
        pass_hours(h, 1)
        assert self.refused()

    def test_an_id_that_is_taken(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        h.start(slow.using(id="s@2026-01-01T13:00:00Z"))
        pass_hours(h, 1)
        assert self.refused() == 'the id "s@2026-01-01T13:00:00Z" is taken, by a run of "tests.schedules.slow"'

    def test_a_rule_that_cannot_be_read_stops_no_other(self, h: Harness) -> None:
        hourly("tests.schedules.report")
        Schedule.objects.create(name="t", workflow="tests.schedules.report", rule="0 * * * *")
        rows().filter(name="s").update(rule="nonsense")
        pass_hours(h, 1)
        assert outcomes("t") == [(1, "started")]
        assert "cannot be read" in Tick.objects.get(schedule__name="s", outcome="refused").why


def test_without_a_harness_runs_are_rows() -> None:
    made = Schedule.objects.create(name="🌙 s", workflow="tests.schedules.report", args=[1], rule="every 1 hour")
    assert made.next_at is not None
    assert tick_due(made.next_at) == 1
    assert tick_due(made.next_at) == 0
    run = Run.objects.get()
    assert (run.id, run.state) == (Tick.objects.get().run_id, "pending")
    assert run.id.startswith("🌙 s@")


# -- which of the moments that are due become ticks, and which were missed


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
