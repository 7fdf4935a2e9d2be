"""Rates of steps and workflows: who begins when, what is recorded and counted, what a crash loses; in both flavours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from durable import AsyncContext, Context, Limit, RetryLater, get_run, workflow
from durable.core.limits.rates import BUCKETS, RATE, SECONDS, LimitClosing, Rate, counted, counts_of, rate_wanted
from durable.core.limits.slot_records import wanted
from durable.testing import Harness

NOW = datetime(2026, 3, 4, 14, 0, tzinfo=UTC)
CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


def work(name: str) -> str:
    CALLS.append(name)
    return f"done {name}"


@workflow(name="rates.hundred", limit=Limit("rates-other", rate="1000000/s"))
def hundred(ctx: Context, name: str) -> str:
    return ctx.step("call", work, name, rate="rates-hundred")


@workflow(name="rates.steps")
def steps(ctx: Context, name: str, units: int = 1) -> str:
    ctx.step("before", work, f"{name} before")
    return ctx.step("call", work, name, rate="rates-api/acme", units=units)


@workflow(name="rates.asteps")
async def asteps(ctx: AsyncContext, name: str, units: int = 1) -> str:
    await ctx.step("before", work, f"{name} before")
    return await ctx.step("call", work, name, rate="rates-api/acme", units=units)


@workflow(name="rates.passes", limit=Limit("rates-passes", rate="1/min", key=lambda tenant: tenant))
def passes(ctx: Context, tenant: str) -> str:
    CALLS.append((tenant, ctx.step("now", lambda: 1)))
    return tenant


@workflow(name="rates.both", limit=Limit("rates-both", rate="1/s", at_once=1))
def both(ctx: Context, name: str) -> str:
    return ctx.step("call", work, name, rate="rates-api", limit="rates-both/step")


@workflow(name="rates.calls")
def calls(ctx: Context, name: str) -> str:
    return ctx.step("call", limited, name, rate="rates-api", max_retries=5)


@workflow(name="rates.child", limit=Limit("rates-child", at_once=2))
def child(ctx: Context, name: str) -> str:
    return ctx.step("call", work, name, rate="rates-api", limit="rates-child/step")


@workflow(name="rates.family")
def family(ctx: Context, names: list[str]) -> list[str]:
    first = ctx.child("first", child, "first")
    return [first, *ctx.map("rest", child, [(name,) for name in names]).outputs]


@workflow(name="rates.race")
def race(ctx: Context) -> None:
    """Lose a branch that waits for its moment, then go on for long."""
    branches = {
        "limited": lambda b: b.step("call", work, "limited", rate="rates-api"),
        "message": lambda b: b.queue.next("mail"),
    }
    ctx.race("first", branches)
    ctx.sleep("night", "8 hours")


@workflow(name="rates.undone")
def undone(ctx: Context) -> None:
    """Wait for a moment; compensate meanwhile, and fail in that."""
    ctx.rollback_checkpoint("from here")
    ctx.step("before", work, "before", rollback=undo)
    ctx.step("call", work, "late", rate="rates-api")


def undo(_context: object, _output: object) -> None:
    raise ValueError("cannot be undone now")


def limited(name: str) -> str:
    CALLS.append(name)
    if len(CALLS) == 1:
        raise RetryLater("30 s", "429", limit="rates-api")
    return name


two_flavours = pytest.mark.parametrize("job", [steps, asteps], ids=["sync", "async"])


@pytest.fixture
def h(settings: Any) -> Any:
    settings.DURABLE = {
        **settings.DURABLE,
        "LIMITS": {"rates-hundred": {"rate": "100/s"}, "rates-api": {"rate": "1/s"}, "rates-burst": {"rate": "1/s"}},
    }
    with Harness(NOW) as harness:
        yield harness


def begun(run_id: str, location: str = "call") -> datetime:
    moment = recorded(run_id, location).last_attempt_at
    assert isinstance(moment, datetime)
    return moment


def recorded(run_id: str, location: str = "call") -> Any:
    [entry] = [each for each in get_run(run_id).history() if each.location == location]
    return entry


@pytest.mark.slow
@pytest.mark.parametrize("short_sleep", [0, 0.1])
def test_hundreds_of_runs_begin_in_order_at_the_rate(settings: Any, short_sleep: float) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"rates-hundred": {"rate": "100/s"}}}
    with Harness(NOW, short_sleep=short_sleep) as h:
        ids = [f"run-{number:03}" for number in range(300)]
        for each in ids:
            h.start(hundred, each, id=each)
        h.finish(ids[-1])
        assert ids == CALLS
        moments = [(begun(each) - NOW).total_seconds() for each in ids]
        assert moments == sorted(moments)
        assert all(later - earlier >= 0.01 - 1e-9 for earlier, later in pairwise(moments))
        assert 2.99 <= moments[-1] <= 3.2


@two_flavours
def test_a_step_waits_for_its_moment(h: Harness, job: Any) -> None:
    for name in ("a", "b", "c"):
        h.start(job, name, id=name)
    h.settle()
    assert CALLS == ["a before", "a", "b before", "c before"]
    assert get_run("c").info().summary == "rate rates-api/acme, 2 before it; goes on at 2026-03-04 14:00:02 UTC"
    assert recorded("c").data[RATE] == {
        "limit": "rates-api/acme",
        "units": 1,
        "at": (NOW + timedelta(seconds=2)).isoformat(),
    }
    assert h.peek(get_run("c")).wake_at == NOW + timedelta(seconds=2)
    h.advance(1)
    h.settle()
    assert CALLS[4:] == ["b"]
    h.advance(1)
    h.settle()
    assert CALLS[5:] == ["c"]
    assert [begun(each) - NOW for each in "abc"] == [timedelta(seconds=each) for each in range(3)]


@two_flavours
def test_a_crash_at_each_commit(h: Harness, job: Any) -> None:
    assert h.crash_everywhere(job, "acme", check=lambda: sorted(set(CALLS))) >= 4


def test_the_moment_of_a_losing_branch_is_given_to_the_next(h: Harness) -> None:
    h.start(calls, "a", id="a")
    h.settle()  # it has closed the limit for 30 seconds
    lost = h.start(race)
    h.settle()
    before = recorded(lost.id, "first/limited/call").data[RATE]["at"]
    lost.send("mail", "hello")
    h.settle()
    assert h.peek(lost).state == "sleeping"
    h.start(child, "c", id="c")
    h.settle()
    assert recorded("c").data[RATE]["at"] == before


def test_the_moment_of_a_step_that_will_not_continue_is_given_to_the_next(h: Harness) -> None:
    h.start(calls, "a", id="a")
    h.settle()
    gone = h.start(undone)
    h.settle()
    before = recorded(gone.id).data[RATE]["at"]
    gone.cancel(rollback=True)
    h.run(gone.id)
    assert h.peek(gone).state == "rolling_back"
    h.start(child, "c", id="c")
    h.settle()
    assert recorded("c").data[RATE]["at"] == before


def test_a_crash_of_everything_that_limits_have(h: Harness) -> None:
    assert h.crash_everywhere(both, "acme", check=lambda: sorted(set(CALLS))) >= 4
    CALLS.clear()
    assert h.crash_everywhere(passes, "acme", check=lambda: sorted(set(CALLS))) >= 3


def test_the_moment_of_a_cancelled_last_waiter_is_given_again(h: Harness) -> None:
    for name in ("a", "b"):
        h.start(steps, name, id=name)
    h.settle()
    get_run("b").cancel()
    h.start(steps, "c", id="c")
    h.settle()
    assert h.peek(get_run("c")).wake_at == NOW + timedelta(seconds=1)


def test_attempts_count_and_a_closing_is_for_everybody(h: Harness) -> None:
    for name in ("a", "b", "c"):
        h.start(calls, name, id=name)
    h.settle()
    assert CALLS == ["a"]
    h.advance(2)
    h.settle()
    assert CALLS == ["a"], "their moments were checked again"
    h.advance(27.9)
    h.settle()
    assert CALLS == ["a"]
    for _ in range(40):
        h.advance(0.1)
        h.settle()
    assert sorted(CALLS) == ["a", "a", "b", "c"]
    moments = sorted(begun(each) - NOW for each in "abc")
    assert moments == [timedelta(seconds=30), timedelta(seconds=31), timedelta(seconds=32)]


def test_a_rate_of_a_workflow_limits_the_starts_of_its_passes(h: Harness) -> None:
    for number in (1, 2, 3):
        h.start(passes, "acme", id=f"acme-{number}")
    h.start(passes, "other", id="other")
    h.settle()
    assert CALLS == [("acme", 1), ("other", 1)]
    assert "rate rates-passes/acme, 1 before it" in str(get_run("acme-2").info().summary)
    h.advance(60)
    h.settle()
    assert len(CALLS) == 3
    h.advance(60)
    h.settle()
    assert len(CALLS) == 4


def test_the_rate_comes_first_and_then_the_slot(h: Harness) -> None:
    for name in ("a", "b"):
        h.start(both, name, id=name)
    h.settle()
    assert CALLS == ["a"]
    assert h._store.slots(["a", "b"]) == [], "nothing is held while it waits for the rate"
    for _ in range(3):
        h.advance(1)
        h.settle()
    assert CALLS == ["a", "b"]
    assert h._store.slots(["a", "b"]) == []


@pytest.mark.parametrize("hours", [0, -1, 1])
def test_children_keep_the_rates_and_slots_of_their_steps(h: Harness, hours: int) -> None:
    """Also if the clock is set back or forward while they wait."""
    names = [f"n{number}" for number in range(6)]
    handle = h.start(family, names, id="family")
    for _ in range(3):
        h.advance(1)
        h.settle()
    assert 0 < len(CALLS) < len(names), "some wait"
    h._now += timedelta(hours=hours)
    assert h.finish(handle).state == "completed"
    assert get_run("family").output == [f"done {name}" for name in ("first", *names)]
    assert sorted(CALLS) == sorted([*names, "first"])
    children = ["family:first", *(f"family:rest:{number}" for number in range(len(names)))]
    moments = sorted(begun(each) for each in children)
    assert len(moments) == len(names) + 1
    assert all(later - earlier >= timedelta(seconds=1) for earlier, later in pairwise(moments))


def test_more_units_take_more_time(h: Harness) -> None:
    h.start(steps, "large", 60, id="large")
    h.start(steps, "small", id="small")
    h.settle()
    assert h.peek(get_run("large")).wake_at == NOW + timedelta(seconds=59)
    assert h.peek(get_run("small")).wake_at == NOW + timedelta(seconds=60)
    assert h.finish("large").output == "done large"
    assert h.finish("small").output == "done small"


def test_a_rate_that_nobody_has_defined_is_a_mistake(h: Harness) -> None:
    @workflow(name="rates.unknown")
    def unknown(ctx: Context) -> str:
        return ctx.step("call", work, "x", rate="rates-none")

    h.start(unknown, id="unknown")
    h.settle()
    info = get_run("unknown").info()
    assert info.state == "failed"
    assert 'there is no limit "rates-none" with a rate' in str(info.error)
    assert CALLS == []


def test_units_that_can_never_fit_are_a_mistake(h: Harness) -> None:
    h.start(steps, "x", 100_000_000, id="x")
    h.settle()
    assert "take more than a year" in str(get_run("x").info().error)


def test_a_run_that_is_woken_early_waits_on(h: Harness) -> None:
    for name in ("a", "b", "c"):
        h.start(steps, name, id=name)
    h.settle()
    get_run("c").wake()
    h.settle()
    assert "c" not in CALLS
    assert h.peek(get_run("c")).wake_at == NOW + timedelta(seconds=2)


def test_a_closed_key_holds_a_run_that_comes(h: Harness) -> None:
    h._store.declare_rate("rates-api", Rate.of("1/s"))
    h._store.close_rate("rates-api", "acme", LimitClosing(until=NOW + timedelta(minutes=5), by="ada"))
    h.start(steps, "a", id="a")
    h.settle()
    assert h.peek(get_run("a")).wake_at == NOW + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "a/"}, "names an empty key"),
        ({"rate": ""}, "a limit's name"),
        ({"units": 5}, "units= is of a rate"),
        ({"rate": "a", "units": 0}, "units must be a whole number from 1 to 1,000,000,000, not "),
        ({"rate": "a", "units": 1.5}, "units must be a whole number from 1 to 1,000,000,000, not "),
    ],
)
def test_options_that_cannot_be(h: Harness, options: dict[str, Any], message: str) -> None:
    from durable.core.options import options_of

    with pytest.raises(ValueError, match=message):
        options_of(options)


@pytest.mark.parametrize(
    ("rate", "burst", "spacing"),
    [
        ("500/min", 1, 120_000_000),
        ("100/s", 50, 10_000_000),
        ("1/30 s", 1, 30_000_000_000),
        ("2,000,000/min", 1, 30_000),
        ("3 / hour", 2, 1_200_000_000_000),
    ],
)
def test_rates_as_text(rate: str, burst: int, spacing: int) -> None:
    assert (Rate.of(rate, burst).spacing, Rate.of(rate, burst).burst) == (spacing, burst)


@pytest.mark.parametrize(
    "rate", ["", "5", "5/", "/min", "0/min", "5/0 s", "5/fortnight", "-1/s", "1/400 days", "1.5/s", "x"]
)
def test_texts_that_are_no_rate(rate: str) -> None:
    with pytest.raises(ValueError, match=r"rate|time"):
        Rate.of(rate)


def test_limits_of_workflows_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="burst= is of a rate"):
        Limit("a", burst=2)
    with pytest.raises(ValueError, match="one limit with a rate"):
        workflow(name="rates.two", limit=[Limit("a", rate="1/s"), Limit("b", rate="1/s")])(lambda ctx: None)


@pytest.mark.parametrize("name", ["crm/", "/", "/acme", ""])
@pytest.mark.parametrize("named", [wanted, rate_wanted])
def test_an_empty_key_or_limit_is_refused(named: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match=r"empty key|limit's name"):
        named(name)


@pytest.mark.parametrize("key", ["a/b", "/", "🎉"])
def test_a_key_is_all_behind_the_first_slash(key: str) -> None:
    assert (wanted(f"crm/{key}").key, rate_wanted(f"crm/{key}").key) == (key, key)


# -- the units of the last minute, in fives of seconds


START = 1_000 * SECONDS * 1_000_000_000


def at(seconds: float) -> int:
    return START + round(seconds * 1_000_000_000)


def test_nothing_has_begun() -> None:
    assert counts_of("", at(0)) == [0] * BUCKETS


def test_units_are_counted_where_they_begin() -> None:
    recent = ""
    for seconds, units in ((0, 1), (4.999, 2), (5, 10), (54, 100)):
        recent = counted(recent, at(seconds), units)
    assert counts_of(recent, at(55)) == [3, 10, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0]
    assert counts_of(recent, at(60)) == [10, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0]
    assert counts_of(recent, at(114)) == [0] * BUCKETS


def test_a_long_pause_empties_it() -> None:
    recent = counted(counted("", at(0), 7), at(86_400), 1)
    assert counts_of(recent, at(86_400)) == [0] * (BUCKETS - 1) + [1]


def test_a_clock_that_is_set_back_counts_where_the_newest_are() -> None:
    recent = counted(counted("", at(60), 1), at(0), 1)
    assert counts_of(recent, at(60))[-1] == 2
    assert counts_of(recent, at(0))[-1] == 2


def test_the_text_is_short() -> None:
    recent = ""
    for number in range(100):
        recent = counted(recent, at(SECONDS * number), 1_000_000_000)
    assert len(recent) < 200
