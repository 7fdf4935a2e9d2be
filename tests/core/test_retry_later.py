"""`RetryLater` and `retry_jitter`: when the next attempt of a step or of a rollback handler is made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from durable import CriticalError, RetryLater, current_step
from durable.testing import Harness
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


class Asking:
    """A function that asks to be tried again, `times` times, then returns the numbers of its attempts."""

    def __init__(self, when: Any = "30 s", times: int = 1, **options: Any) -> None:
        self.when = when
        self.times = times
        self.options = options
        self.attempts: list[int] = []

    def __call__(self) -> Any:
        self.attempts.append(current_step().attempt)
        if len(self.attempts) <= self.times:
            raise RetryLater(self.when, **self.options)
        return self.attempts


def one_step(function: Callable[..., Any], **options: Any) -> Any:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("call", function, **options)

    return ship


# -- the moment


@pytest.mark.parametrize(
    ("when", "delay"),
    [
        ("30 s", 30),
        ("1 day 2 minutes", 86520),
        (7, 7),
        (2.5, 2.5),
        (timedelta(minutes=3), 180),
        (NOW + timedelta(hours=1), 3600),
        ("120", 120),
        (" 0 ", 0),
        ("Thu, 01 Jan 2026 00:10:00 GMT", 600),
        ("Thursday, 01-Jan-26 00:10:00 GMT", 600),
        ("Thu Jan  1 00:10:00 2026", 600),
        ("Thu, 01 Jan 2026 02:10:00 +0200", 600),
        ("-5 s", 0),
        (-5, 0),
        (NOW - timedelta(days=400), 0),
        ("Wed, 31 Dec 1999 23:59:59 GMT", 0),
        (None, 0.2),
    ],
)
def test_the_next_attempt_is_made_then(h: Harness, flavour: Flavour, when: Any, delay: float) -> None:
    asking = Asking(when)
    run = h.start(flavour(one_step(flavour.function(asking))))
    parked = h.run(run)
    assert parked.wake_at == NOW + timedelta(seconds=delay)
    assert run.history()[0].next_attempt_at == parked.wake_at
    if delay:
        h.advance(delay / 2)
        h.settle()
        assert asking.attempts == [1]
    assert h.finish(run).output == [1, 2]
    assert h.now == NOW + timedelta(seconds=delay)


@pytest.mark.parametrize(
    ("when", "kind", "text"),
    [
        ("soon", "ValueError", "the delay of RetryLater cannot be read: 'soon'"),
        ("", "ValueError", "cannot be read"),
        ("9" * 5000, "ValueError", "the delay of RetryLater"),
        ("٣", "ValueError", "cannot be read"),
        ("Thu, 99 Foo 2026 99:99:99 GMT", "ValueError", "cannot be read"),
        (float("nan"), "ValueError", "must be finite"),
        (True, "TypeError", "the delay of RetryLater is given in seconds"),
        ([1], "TypeError", "the delay of RetryLater is given in seconds"),
        (datetime(2026, 1, 1), "ValueError", "the moment of RetryLater must be an aware datetime"),  # noqa: DTZ001
    ],
)
def test_a_moment_that_cannot_be_read_is_a_failure_like_any_other(h: Harness, when: Any, kind: str, text: str) -> None:
    run = h.start(one_step(Asking(when)))
    assert h.run(run).wake_at == NOW + timedelta(seconds=0.2), "the step's backoff"
    error = run.history()[0].error
    assert error is not None
    assert (error.type, text in error.message) == (kind, True)


def test_a_moment_past_the_calendar_is_a_year_away(h: Harness) -> None:
    run = h.start(one_step(Asking(timedelta.max)))
    assert h.run(run).wake_at == NOW + timedelta(days=365)


def test_a_reason_or_the_cause_is_for_operators(h: Harness) -> None:
    def limited() -> None:
        try:
            raise ConnectionError("429 Too Many Requests")
        except ConnectionError as error:
            raise RetryLater("30 s") from error

    def told() -> None:
        raise RetryLater(datetime(2026, 1, 2, tzinfo=UTC), "the bank is closed")

    found = []
    for function in (limited, told):
        run = h.start(one_step(function))
        h.run(run)
        found.append(run.history()[0].error)
    assert [(each.type, each.message) for each in found if each is not None] == [
        ("RetryLater", "the step asked for its next attempt 30 s later: ConnectionError: 429 Too Many Requests"),
        ("RetryLater", "the step asked for its next attempt at 2026-01-02 00:00:00+00:00: the bank is closed"),
    ]


# -- what counts


def test_an_attempt_counts_by_default(h: Harness, flavour: Flavour) -> None:
    asking = Asking(times=9)
    failed = h.finish(h.start(flavour(one_step(flavour.function(asking), max_retries=2))))
    assert asking.attempts == [1, 2, 3]
    check_failed(failed, "StepExhaustedError")


def test_with_counts_false_it_does_not(h: Harness, flavour: Flavour) -> None:
    asking = Asking(times=5, counts=False)
    run = h.start(flavour(one_step(flavour.function(asking), max_retries=0)))
    assert h.finish(run).output == [1, 2, 3, 4, 5, 6]
    entry = run.history()[0]
    assert (entry.attempts, entry.data["uncounted"]) == (6, 5)


def test_the_backoff_begins_with_the_attempts_that_count(h: Harness) -> None:
    calls: list[int] = []

    def call() -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ConnectionError
        if len(calls) < 5:
            raise RetryLater("1 hour", counts=False)
        return len(calls)

    run = h.start(one_step(call, retry_backoff_base=10, max_retries=1))
    h.run(run)
    h.advance("1 hour")
    assert h.run(run).wake_at == h.now + timedelta(seconds=20), "the first one that counts"
    assert h.finish(run).output == 5


@pytest.mark.parametrize(("limit", "attempts"), [(3, 5), (0, 2)])
def test_after_the_limit_it_counts_and_says_so(h: Harness, limit: int, attempts: int) -> None:
    asking = Asking(times=99, counts=False)
    with override_settings(DURABLE={"MAX_UNCOUNTED_RETRIES": limit}):
        failed = h.finish(h.start(one_step(asking, max_retries=1)))
    assert len(asking.attempts) == attempts
    assert failed.error is not None
    assert f"this attempt counts: {limit} earlier ones of the step did not" in failed.error.message
    assert 'DURABLE["MAX_UNCOUNTED_RETRIES"]' in failed.error.message


def test_a_recovered_step_has_all_its_attempts_again(h: Harness) -> None:
    asking = Asking(times=4, counts=False)
    with override_settings(DURABLE={"MAX_UNCOUNTED_RETRIES": 2}):
        run = h.start(one_step(asking, max_retries=0))
        assert h.finish(run).state == "failed"
        run.recover()
        assert h.finish(run).output == [1, 2, 3, 1, 2]
    assert run.history()[0].data["uncounted"] == 1


def test_retry_if_is_not_asked(h: Harness) -> None:
    def never(_error: Exception) -> bool:
        return False

    assert h.finish(h.start(one_step(Asking(), retry_if=never))).output == [1, 2]


# -- where


def test_of_try_step_and_of_branches(h: Harness, flavour: Flavour) -> None:
    tried, left, right = Asking(), Asking("1 hour", counts=False), Asking("2 hours")

    def branch(asking: Asking, **options: Any) -> Any:
        async def body(ctx: Any) -> Any:
            return await ctx.step("call", flavour.function(asking), **options)

        return body

    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("tried", flavour.function(tried))
        await ctx.join("both", {"left": branch(left, max_retries=0), "right": branch(right)})
        return result.value

    assert h.finish(h.start(flavour(ship))).output == [1, 2]
    assert (left.attempts, right.attempts) == ([1, 2], [1, 2])
    assert h.now == NOW + timedelta(hours=2, seconds=30)


def test_of_a_rollback_handler(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: 7, rollback=undoing.undo, max_retries=0)
        raise CriticalError("late")

    undoing.fails_left.extend([RetryLater("1 hour", counts=False)] * 3)
    run = h.start(flavour(ship))
    assert h.run(run).wake_at == NOW + timedelta(hours=1)
    assert h.finish(run).state == "failed"
    assert h.now == NOW + timedelta(hours=3)
    assert undoing.undone == [7]


def test_a_rollback_handler_closes_a_limit(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: 7, rollback=undoing.undo, max_retries=1)
        raise CriticalError("late")

    async def other(ctx: Any) -> Any:
        return await ctx.step("call", lambda: 8, rate="refunds")

    undoing.fails_left.append(RetryLater("1 hour", "429", limit="refunds"))
    with override_settings(DURABLE={"LIMITS": {"refunds": {"rate": "100/s"}}}):
        run = h.start(flavour(ship))
        assert h.run(run).wake_at == NOW + timedelta(hours=1)
        [closing] = h._store.rate_keys("refunds", [""], h.now)
        assert closing.closing is not None
        assert closing.closing.until == NOW + timedelta(hours=1)
        assert closing.closing.reason.endswith("later: 429")
        assert h.run(h.start(flavour(other))).wake_at == NOW + timedelta(hours=1)
        assert h.finish(run).state == "failed"
        assert undoing.undone == [7]


@pytest.mark.parametrize("name", ["opneai", "gpu", "gpu/acme"])
def test_closing_what_is_no_rate_is_a_mistake(h: Harness, flavour: Flavour, name: str) -> None:
    asking = Asking("1 hour", limit=name)

    async def ship(ctx: Any) -> Any:
        return await ctx.try_step("call", flavour.function(asking), max_retries=None, catch=("critical", "exhausted"))

    limits = {"openai": {"rate": "1/s"}, "gpu": {"at_once": 4}, "mail": {"rate": "5/s"}}
    with override_settings(DURABLE={"LIMITS": limits}):
        run = h.start(flavour(ship))
        h.settle()
        assert asking.attempts == [1]
        info = run.info()
        assert (info.state, info.is_mistake) == ("failed", True)
        assert f'there is no limit "{name.partition("/")[0]}" with a rate: define it' in str(info.error)
        known = str(info.error).partition("; those defined are ")[2].split(", ")  # those of other modules too
        assert {"mail", "openai"} <= set(known)
        assert "gpu" not in known
        run.recover()
        assert h.finish(run).state == "completed"


def test_a_rollback_handler_that_closes_what_is_no_rate_stops_the_compensation(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: 7, rollback=undoing.undo, max_retries=None)
        raise CriticalError("late")

    undoing.fails_left.append(RetryLater("1 hour", "429", limit="refnuds"))
    run = h.start(flavour(ship))
    h.settle()
    assert run.state == "failed"
    assert 'there is no limit "refnuds" with a rate' in run.summary
    assert undoing.undone == []
    run.recover()
    assert h.finish(run).state == "failed"
    assert undoing.undone == [7]


def test_a_rollback_handler_past_the_limit_stops_the_run(h: Harness) -> None:
    def ship(ctx: Any) -> Any:
        ctx.rollback_checkpoint("from here")
        ctx.step("charge", lambda: 7, rollback=undoing.undo, max_retries=0)
        raise CriticalError("late")

    undoing.fails_left.extend([RetryLater("1 hour", counts=False)] * 3)
    with override_settings(DURABLE={"MAX_UNCOUNTED_RETRIES": 2}):
        run = h.start(ship)
        h.finish(run)
        error = run.history()[1].rollback_error
        assert error is not None
        assert "this attempt counts: 2 earlier ones" in error.message
        undoing.fails_left.extend([RetryLater("1 hour", counts=False)] * 2)
        run.recover()
        h.finish(run)
    assert undoing.undone == [7]


@pytest.mark.parametrize("where", ["workflow", "block", "branch", "iteration"])
def test_outside_a_step_it_stops_the_run_and_says_what_to_do(h: Harness, flavour: Flavour, where: str) -> None:
    async def body(ctx: Any, *state: Any) -> Any:
        raise RetryLater("30 s")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: 7, rollback=undoing.undo)
        if where == "block":
            await ctx.try_block("block", body)
        elif where == "branch":
            await ctx.join("join", {"one": body})
        elif where == "iteration":
            await ctx.loop("loop", body)
        raise RetryLater("30 s")

    run = h.start(flavour(ship))
    check_failed(h.run(run), "OutsideStepError", "raise it in a step's function, whose attempt it ends")
    assert undoing.undone == []


# -- crashes


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    def call() -> str:
        # Attempts are counted, rather than calls: a crash repeats a call.
        if current_step().attempt <= 2:
            raise RetryLater("30 s", counts=False)
        return "done"

    assert h.crash_everywhere(flavour(one_step(call, max_retries=1))) >= 6


# -- jitter


def _delays(h: Harness, run_id: str, **options: Any) -> list[float]:
    def fail() -> None:
        raise ConnectionError

    run = h.start(one_step(fail, max_retries=3, retry_backoff_base=10, retry_backoff_max=100, **options), id=run_id)
    found = []
    while (parked := h.run(run)).state == "sleeping":
        assert parked.wake_at is not None
        found.append((parked.wake_at - h.now).total_seconds())
        h.advance(parked.wake_at - h.now)
    return found


def test_without_jitter_delays_are_those_of_the_backoff(h: Harness) -> None:
    assert _delays(h, "plain") == [20, 40, 80]
    assert _delays(h, "zero", retry_jitter=0) == [20, 40, 80]


def test_jitter_is_drawn_from_the_runs_own_random(h: Harness) -> None:
    runs = {f"run-{n}": _delays(h, f"run-{n}", retry_jitter=0.2) for n in range(50)}
    assert len({tuple(each) for each in runs.values()}) == 50, "runs do not come back together"
    for delays in runs.values():
        for found, plain in zip(delays, (20, 40, 80), strict=True):
            assert plain * 0.8 <= found <= min(plain * 1.2, 100)
    with Harness(now=NOW + timedelta(days=9)) as other:
        assert _delays(other, "run-7", retry_jitter=0.2) == runs["run-7"], "seeded by run, location and attempt"


def test_jitter_spreads_below_the_maximum_too(h: Harness) -> None:
    last = [_delays(h, f"run-{n}", retry_jitter=0.5)[-1] for n in range(50)]
    assert all(40 <= each <= 100 for each in last)
    assert sum(each == 100 for each in last) == 0


def test_a_replay_keeps_the_recorded_moment(h: Harness) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        return len(calls)

    run = h.start(one_step(call, retry_backoff_base=10, retry_jitter=1), id="kept")
    first = h.run(run).wake_at
    assert h.run(run).wake_at == first, "a pass before its time changes nothing"
    assert len(calls) == 1
    assert h.finish(run).output == 2


@pytest.mark.parametrize("jitter", [-0.1, 1.1, "0.2", True, None, float("nan")])
def test_jitter_is_checked(h: Harness, jitter: Any) -> None:
    ended = h.run(h.start(one_step(int, retry_jitter=jitter)))
    assert "retry_jitter must be a number from 0 to 1" in error_of(ended).message


def test_a_rollback_handler_has_the_jitter_of_its_step() -> None:
    def wake_at(run_id: str, **options: Any) -> Any:
        def ship(ctx: Any) -> Any:
            ctx.rollback_checkpoint("from here")
            ctx.step("charge", lambda: 7, rollback=undoing.fail, retry_backoff_base=10, **options)
            raise CriticalError("late")

        with Harness(now=NOW) as h:
            return h.run(h.start(ship, id=run_id)).wake_at

    assert wake_at("one") == wake_at("two") == NOW + timedelta(seconds=20)
    drawn = [wake_at(name, retry_jitter=0.5) for name in ("one", "two", "one")]
    assert drawn[0] == drawn[2] != drawn[1]
    assert all(NOW + timedelta(seconds=10) <= each <= NOW + timedelta(seconds=30) for each in drawn)
