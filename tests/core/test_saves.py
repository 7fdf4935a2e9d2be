"""`current_step().save(...)`, `.saved` and `heartbeat=`: what the next attempt gets, and what no sign leads to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from durable import CriticalError, RetryLater, current_step
from durable.testing import Harness, SimulatedCrash
from tests.core import undoing
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


class Importing:
    """An import of ten rows that fails, or asks for a hand-over, after some of them; `seen` is what it began with."""

    def __init__(self, *fails_at: int, error: BaseException | None = None) -> None:
        self.fails_at = list(fails_at)
        self.error = error or ConnectionError("cut")
        self.seen: list[Any] = []
        self.rows: list[int] = []

    def __call__(self) -> int:
        saved = current_step().saved
        self.seen.append(saved)
        for row in range(saved["row"] if saved else 0, 10):
            if self.fails_at and row == self.fails_at[0]:
                self.fails_at.pop(0)
                raise self.error
            self.rows.append(row)
            current_step().save({"row": row + 1})
        return len(self.rows)


def one_step(function: Any, **options: Any) -> Any:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("import", function, **options)

    return ship


# -- what the next attempt gets


def test_an_attempt_goes_on_where_the_one_before_was(h: Harness, flavour: Flavour) -> None:
    importing = Importing(3, 7)
    run = h.start(flavour(one_step(flavour.function(importing))))
    assert h.finish(run).output == 10
    assert importing.rows == list(range(10)), "each row once"
    assert importing.seen == [None, {"row": 3}, {"row": 7}]


def test_the_newest_counts_and_stays_if_an_attempt_saves_nothing(h: Harness) -> None:
    seen = []

    def work() -> None:
        step = current_step()
        seen.append(step.saved)
        if step.attempt == 1:
            for value in ("first", "second", "last"):
                step.save(value)
        if step.attempt < 4:
            raise ConnectionError

    h.finish(h.start(one_step(work)))
    assert seen == [None, "last", "last", "last"]


def test_it_is_gone_when_the_step_has_completed(h: Harness) -> None:
    run = h.start(one_step(Importing(3)), id="run")
    h.run(run)
    assert list(h._store.load("run").saved) == ["import"]
    h.finish(run)
    assert h._store.load("run").saved == {}


def test_with_retry_later_it_is_a_hand_over(h: Harness, flavour: Flavour) -> None:
    importing = Importing(5, error=RetryLater(0, counts=False))
    run = h.start(flavour(one_step(flavour.function(importing), max_retries=0)))
    assert h.finish(run).output == 10
    assert importing.rows == list(range(10))


def test_of_branches_and_try_step(h: Harness, flavour: Flavour) -> None:
    left, right, tried = Importing(3), Importing(8, 9), Importing(1)

    def branch(importing: Importing) -> Any:
        async def body(ctx: Any) -> Any:
            return await ctx.step("import", flavour.function(importing))

        return body

    async def ship(ctx: Any) -> Any:
        await ctx.join("both", {"left": branch(left), "right": branch(right)})
        return (await ctx.try_step("tried", flavour.function(tried))).value

    assert h.finish(h.start(flavour(ship))).output == 10
    assert [each.rows for each in (left, right, tried)] == [list(range(10))] * 3


def test_a_crash_loses_no_save(h: Harness, flavour: Flavour) -> None:
    importing = Importing()
    run = h.start(flavour(one_step(flavour.function(importing))))
    with h.crash_at(1, "before"), pytest.raises(SimulatedCrash):
        h.run(run)
    assert h.finish(run).output == 10
    assert importing.seen == [None, {"row": 10}]


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    def work() -> Any:
        step = current_step()
        if (step.saved or 0) < 2:
            step.save((step.saved or 0) + 1)
            raise RetryLater(0, counts=False)
        return "done"

    assert h.crash_everywhere(flavour(one_step(work, max_retries=0))) >= 6


def test_a_recovered_step_goes_on_and_a_replayed_one_begins_anew(h: Harness) -> None:
    importing = Importing(4, 6)
    run = h.start(one_step(importing, max_retries=0))
    assert h.finish(run).state == "failed"
    run.recover()
    assert h.finish(run).state == "failed"
    run.replay("import", in_place=True)
    h.finish(run)
    assert importing.seen == [None, {"row": 4}, None]


def test_a_compensated_step_begins_anew(h: Harness) -> None:
    seen = []
    fails = [True]

    def work() -> int:
        seen.append(current_step().saved)
        current_step().save("half")
        if len(seen) == 1:
            raise ConnectionError
        return 7

    async def ship(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("work", work, rollback=undoing.undo)
        if fails:
            raise CriticalError("late")

    run = h.start(ship)
    h.finish(run)
    fails.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert seen == [None, "half", None]


# -- what is refused


def test_more_than_4_kib_is_refused(h: Harness, flavour: Flavour) -> None:
    def work() -> None:
        current_step().save("x" * 4094)
        current_step().save("x" * 4095)

    error = h.run(h.start(flavour(one_step(flavour.function(work))))).error
    assert error is not None
    assert error.type == "PayloadError"
    assert "4,097 bytes as text, and 4,096 are allowed; save where the step is" in error.message


def test_a_value_that_cannot_be_recorded_is_refused(h: Harness) -> None:
    check_failed(h.run(h.start(one_step(lambda: current_step().save(object())))), "PayloadError")


def test_an_atomic_step_has_no_heartbeat(h: Harness) -> None:
    ended = h.run(h.start(one_step(int, atomic=True, heartbeat=1)))
    assert "an atomic step has no heartbeat" in error_of(ended).message


def test_a_rollback_handler_cannot_save(h: Harness) -> None:
    async def ship(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", int, rollback=saving_handler, max_retries=0)
        raise CriticalError("late")

    run = h.start(ship)
    h.finish(run)
    error = run.history()[1].rollback_error
    assert error is not None
    assert "it is a rollback handler" in error.message


def saving_handler(rollback: Any, output: Any) -> None:
    current_step().save(1)


@pytest.mark.parametrize("heartbeat", [-1, "soon", float("inf"), [1], True])
def test_a_heartbeat_is_checked(h: Harness, heartbeat: Any) -> None:
    assert "heartbeat" in error_of(h.run(h.start(one_step(int, heartbeat=heartbeat)))).message


@pytest.mark.parametrize("value", [None, 0, "", {"a": [1, (2, 3)]}, "\x00\ud800\U0001f600"])
def test_any_value_comes_back_as_it_was(h: Harness, value: Any) -> None:
    seen = []

    def work() -> None:
        step = current_step()
        if step.attempt == 1:
            step.save(value)
            raise ConnectionError
        seen.append(step.saved)

    h.finish(h.start(one_step(work)))
    assert seen == [value]


# -- no sign


def silent() -> str:
    """Give no sign in the first attempt."""
    if current_step().attempt == 1:
        for _ in range(12_000):
            time.sleep(0.01)
    return "done"


async def asilent() -> str:
    if current_step().attempt == 1:
        await asyncio.sleep(120)
    return "done"


@pytest.mark.parametrize("function", [silent, asilent])
@pytest.mark.parametrize("timeout", [0, 100])
def test_without_a_sign_the_attempt_fails_and_is_retried(
    h: Harness, flavour: Flavour, function: Any, timeout: float
) -> None:
    run = h.start(flavour(one_step(function, heartbeat=0.2, timeout=timeout)))
    assert h.run(run).state == "sleeping", "it is retried without retry_on_timeout"
    error = run.history()[0].error
    assert error is not None
    assert error.type == "HeartbeatTimeoutError"
    assert "gave no sign for its heartbeat of 0.2 s; call current_step().save(...) more often" in error.message
    assert h.finish(run).output == "done"


def test_used_up_it_is_a_timeout(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("silent", silent, heartbeat=0.2, max_retries=0)
        return (result.failure.kind, result.failure.error.type)

    assert h.finish(h.start(flavour(ship))).output == ("timeout", "HeartbeatTimeoutError")


def test_in_the_thread_of_a_branch(h: Harness) -> None:
    def ship(ctx: Any) -> Any:
        return ctx.join("both", {"one": lambda c: c.step("silent", silent, heartbeat=0.2)})

    run = h.start(ship)
    threaded_pass(h, run.id)
    error = next(each.error for each in run.history() if each.location == "both/one/silent")
    assert error is not None
    assert error.type == "HeartbeatTimeoutError"


def lively() -> str:
    """Give signs for longer than the heartbeat."""
    began = time.monotonic()
    while time.monotonic() < began + 6:
        current_step().save(None)
        time.sleep(0.01)
    return "done"


async def alively() -> str:
    began = time.monotonic()
    while time.monotonic() < began + 6:
        current_step().save(None)
        await asyncio.sleep(0.01)
    return "done"


@pytest.mark.slow
def test_signs_let_it_go_on(h: Harness, flavour: Flavour) -> None:
    function = alively if flavour.is_async else lively
    run = h.start(flavour(one_step(function, heartbeat=5, max_retries=0)))
    assert h.run(run).output == "done"


def test_signs_do_not_extend_the_timeout(h: Harness) -> None:
    def work() -> None:
        while True:
            current_step().save(None)
            time.sleep(0.01)

    check_failed(
        h.run(h.start(one_step(work, heartbeat=60, timeout=0.3))),
        "CriticalError",
        "ran longer than its timeout of 0.3 s",
    )
