"""Compensation: which handlers run, in which order, with what, and what stops or delays it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import Break, Continue, CriticalError, RollbackError, current_step
from durable.testing import Harness, SimulatedCrash
from tests.core import undoing
from tests.core.driving import evicted_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed


async def charge(ctx: Any, name: str, **options: Any) -> Any:
    return await ctx.step(name, lambda given: given, name, rollback=undoing.undo, **options)


def failing_after(*names: str, error: BaseException | None = None) -> Any:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        for name in names:
            await charge(ctx, name)
        raise error or ValueError("late")

    return ship


@pytest.mark.parametrize("error", [ValueError("x"), CriticalError("x"), RollbackError("x"), ZeroDivisionError("x")])
def test_any_error_that_leaves_the_workflow_compensates(h: Harness, flavour: Flavour, error: Exception) -> None:
    run = h.start(flavour(failing_after("a", "b", "c", error=error)))
    check_failed(h.run(run), type(error).__name__)
    assert undoing.undone == ["c", "b", "a"]
    assert all(each.rollback_completed_at for each in run.history()[1:])


def test_a_failed_step_compensates_those_before_it(h: Harness, flavour: Flavour) -> None:
    def fail() -> None:
        raise ValueError

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "a")
        await ctx.step("no handler", int)
        await ctx.step("bad", fail, rollback=undoing.undo)

    h.finish(h.start(flavour(ship)))
    assert undoing.undone == ["a"], "what has not completed is not compensated"


def test_the_handler_knows_what_it_undoes(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", lambda *args: {"id": 7}, 1, ("two", {3}), rollback=undoing.undo)
        raise ValueError

    h.run(h.start(flavour(ship), id="run"))
    context = undoing.contexts[0]
    assert (context.run_id, context.location, context.args) == ("run", "a", (1, ("two", {3})))
    assert context.is_evicted() is False
    assert context.eviction_reason() == ""
    assert undoing.undone == [{"id": 7}]


async def seen_key(rollback: Any, output: Any) -> None:
    undoing.undone.append((current_step().idempotency_key, current_step().attempt, output))


def test_a_handler_may_be_async_and_has_a_key_of_its_own(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", lambda: current_step().idempotency_key, rollback=seen_key)
        raise ValueError

    h.run(h.start(flavour(ship)))
    ((own, attempt, of_step),) = undoing.undone
    assert own != of_step
    assert attempt == 1


def test_in_reverse_order_of_completion_across_scopes(h: Harness, flavour: Flavour) -> None:
    """Fault 3: those in joins, in races (losers' too), in completed and pruned loops and in blocks."""

    def branch(name: str, rest: float = 0) -> Any:
        async def body(ctx: Any) -> Any:
            await charge(ctx, f"{name} 1")
            if rest:
                await ctx.sleep("rest", rest)
            await charge(ctx, f"{name} 2")

        return body

    async def iteration(ctx: Any, n: int) -> Any:
        await charge(ctx, f"loop {n}")
        return Continue(n + 1) if n < 2 else Break()

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "first")
        await ctx.join("join", {"a": branch("a", 60), "b": branch("b", 30)})
        await ctx.race("race", {"slow": branch("slow", 600), "fast": branch("fast")})
        await ctx.loop("loop", iteration, state=0, history_prune_interval=1, history_size=0)
        await ctx.try_block("block", branch("block"))
        raise ValueError

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    expected = ["first", "a 1", "b 1", "b 2", "a 2", "slow 1", "fast 1", "fast 2"]
    expected += ["loop 0", "loop 1", "loop 2", "block 1", "block 2"]
    assert undoing.undone == expected[::-1]


def test_needs_a_checkpoint_before_it(h: Harness, flavour: Flavour) -> None:
    calls: list[int] = []

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", lambda: calls.append(1), rollback=undoing.undo)

    check_failed(h.run(h.start(flavour(ship))), "RollbackCheckpointError", "call ctx.rollback_checkpoint(name) first")
    assert calls == []


def test_a_missing_checkpoint_fails_the_run_without_compensation(h: Harness, flavour: Flavour) -> None:
    async def checked(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("inside")
        await charge(ctx, "a")

    async def ship(ctx: Any) -> Any:
        await ctx.try_block("block", checked)
        await charge(ctx, "b")

    assert h.run(h.start(flavour(ship))).state == "failed"
    assert undoing.undone == []


def test_a_checkpoint_holds_within(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        await charge(ctx, "a")
        return Break()

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.loop("loop", body)
        await ctx.join("join", {"x": body})
        await ctx.try_block("block", body)

    assert h.run(h.start(flavour(ship))).state == "completed"


@pytest.mark.parametrize("handler", [lambda rollback, output: None, "closure", [].append, 5])
def test_a_handler_that_cannot_be_imported_is_refused_at_once(h: Harness, flavour: Flavour, handler: Any) -> None:
    calls: list[int] = []

    def closure(rollback: Any, output: Any) -> None:
        calls.append(1)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", lambda: calls.append(2), rollback=closure if handler == "closure" else handler)

    check_failed(
        h.run(h.start(flavour(ship))), "TypeError", "a rollback handler must be a function at the top level of a module"
    )
    assert calls == []


def test_arguments_of_a_step_with_a_handler_have_to_encode(h: Harness, flavour: Flavour) -> None:
    calls: list[int] = []

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", lambda given: calls.append(1), object(), rollback=undoing.undo)

    check_failed(h.run(h.start(flavour(ship))), "PayloadError", 'the arguments of step "a"')
    assert calls == []


# -- handlers that fail


def test_a_failing_handler_is_retried_with_the_steps_policy(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [ValueError("second"), ValueError("first")]

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "a")
        await charge(ctx, "b", retry_backoff_base=10, backoff="linear", max_retries=2)
        raise ValueError("why")

    run = h.start(flavour(ship))
    parked = h.run(run)
    assert (parked.state, parked.wake_at) == ("rolling_back", h.now + timedelta(seconds=10))
    entry = run.history()[2]
    assert entry.rollback_error is not None
    assert entry.rollback_error.message == "first"
    h.advance(10)
    assert h.run(run).wake_at == h.now + timedelta(seconds=20)
    check_failed(h.finish(run), "ValueError")
    assert undoing.undone == ["b", "a"]
    assert run.history()[2].rollback_error is None


def test_a_handler_that_fails_for_good_stops_it_and_recover_goes_on(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [CriticalError("for good")]
    run = h.start(flavour(failing_after("a", "b", error=ValueError("why"))))
    ended = h.run(run)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error.type == "ValueError", "the original error"
    assert 'the rollback handler of "b" failed: CriticalError: for good; recover() goes on with it' in run.summary
    entry = run.history()[2]
    assert entry.rollback_error is not None
    assert entry.rollback_error.message == "for good"
    assert undoing.undone == []
    run.recover()
    assert run.state == "rolling_back"
    check_failed(h.finish(run), "ValueError")
    assert undoing.undone == ["b", "a"]


def test_it_gives_up_after_the_last_retry(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [ValueError("x")] * 99
    run = h.start(flavour(failing_after("a")))
    assert h.finish(run).state == "failed"
    assert len(undoing.fails_left) == 99 - 4


def test_wake_tries_a_handler_at_once(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [ValueError("x")]

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "a", retry_backoff_base=3600, retry_backoff_max=3600)
        raise ValueError

    run = h.start(flavour(ship))
    h.run(run)
    run.wake()
    assert h.run_due() == 1
    assert undoing.undone == ["a"]


# -- interrupted


def test_it_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    """Each handler's success is a commit of its own: after a crash the next one goes on."""
    h.crash_everywhere(flavour(failing_after("a", "b")))
    undoing.undone.clear()
    run = h.start(flavour(failing_after("a", "b", "c")))
    with h.crash_at(6, "after"), pytest.raises(SimulatedCrash):  # 3 steps, the beginning of the rollback, c and b
        h.run(run)
    assert undoing.undone == ["c", "b"]
    assert h.finish(run).state == "failed"
    assert undoing.undone == ["c", "b", "a"]


def test_an_eviction_in_the_middle_hands_it_over(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(failing_after("a", "b", "c")), id="run")
    outcome = evicted_pass(h, "run", when=lambda: undoing.undone == ["c", "b"])
    assert (outcome.state, outcome.due_now) == ("rolling_back", True)
    assert run.wake_at == h.now
    assert h.run_due() == 1
    assert run.state == "failed"
    assert undoing.undone == ["c", "b", "a"]


def test_it_can_be_paused_and_resumed(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [ValueError("x")]
    run = h.start(flavour(failing_after("a")))
    assert h.run(run).state == "rolling_back"
    run.pause()
    h.advance(60)
    assert h.run_due() == 0
    run.resume()
    assert run.state == "rolling_back"
    assert h.finish(run).state == "failed"
    assert undoing.undone == ["a"]


def test_it_needs_no_workflow_code(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [ValueError("x")]
    run = h.start(flavour(failing_after("a")))
    h.run(run)
    h._local.clear()
    assert h.finish(run).state == "failed"
    assert undoing.undone == ["a"]


def test_a_handler_that_kills_its_worker_again_and_again_stops_it(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [SimulatedCrash() for _ in range(99)]
    run = h.start(flavour(failing_after("a")))
    for _ in range(50):
        try:
            h.run(run)
        except SimulatedCrash:
            continue
        break
    assert run.state == "failed"
    assert "RunCrashedError" in run.summary
    assert h._store._runs[run.id].crashes == 5
    undoing.fails_left.clear()
    run.recover()
    assert h.finish(run).state == "failed"
    assert undoing.undone == ["a"]


# -- cancelling


def test_cancel_does_not_compensate_unless_asked(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "a")
        await ctx.sleep("rest", 60)

    one, two = h.start(flavour(ship)), h.start(flavour(ship))
    h.run_due()
    one.cancel("enough")
    assert one.state == "cancelled"
    assert undoing.undone == []
    two.cancel("enough", rollback=True)
    assert two.state == "rolling_back"
    ended = h.finish(two)
    assert (ended.state, ended.error) == ("cancelled", None)
    assert undoing.undone == ["a"]


def test_a_cancel_whose_compensation_failed_ends_cancelled_after_recover(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left[:] = [CriticalError("for good")]

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await charge(ctx, "a")
        await ctx.sleep("rest", 60)

    run = h.start(flavour(ship))
    h.run(run)
    run.cancel(rollback=True)
    assert h.finish(run).state == "failed"
    run.recover()
    ended = h.finish(run)
    assert (ended.state, ended.error) == ("cancelled", None)
    assert undoing.undone == ["a"]
