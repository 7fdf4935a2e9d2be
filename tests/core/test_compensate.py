"""`ctx.compensate`: what stands is undone, newest first, and the workflow goes on."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Break, Continue, CriticalError
from durable.errors import InvalidTransitionError, StepExhaustedError
from durable.testing import Harness, SimulatedCrash
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.support.errors import check_failed

REASON = "rejected by the shopkeeper"


async def do(ctx: Any, *names: str, **options: Any) -> None:
    for name in names:
        await ctx.step(name, str, name, rollback=undoing.undo, **{"max_retries": 1, **options})


def rejected(*names: str, **options: Any) -> Any:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, *names, **options)
        await ctx.compensate(REASON)
        return "rejected"

    return ship


def kinds(run: Any) -> list[str]:
    return [each.location for each in run.history() if each.kind == "compensate"]


def test_what_stands_is_undone_newest_first_and_the_run_completes(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(rejected("a", "b", "c")))
    end = h.run(run)
    assert (end.state, end.output) == ("completed", "rejected")
    assert undoing.undone == ["c", "b", "a"]
    [entry] = [each for each in run.history() if each.kind == "compensate"]
    assert (entry.location, entry.status) == ("compensate~0", "completed")
    assert entry.data == {"reason": REASON, "handlers": 3}
    assert all(each.rollback_completed_at for each in run.history() if each.kind == "step")


def test_it_returns_at_once_on_replay(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await rejected("a", "b")(ctx)
        await ctx.sleep("z", 60)
        await do(ctx, "c")
        await ctx.sleep("y", 60)
        await ctx.compensate("the second")
        await ctx.sleep("x", 60)
        return "done"

    run = h.start(flavour(ship))
    assert h.finish(run).output == "done"
    assert undoing.undone == ["b", "a", "c"]
    assert kinds(run) == ["compensate~0", "compensate~1"]


def test_a_later_failure_compensates_what_stands_since(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await rejected("a", "b")(ctx)
        await do(ctx, "c", "d")
        raise CriticalError("no")

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    assert undoing.undone == ["b", "a", "d", "c"]


def test_recover_leaves_undone_what_the_code_undid(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []
    left = [CriticalError("no")]

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", calls.append, "a", rollback=undoing.undo)
        await ctx.compensate(REASON)
        await ctx.step("b", calls.append, "b", rollback=undoing.undo)
        if left:
            raise left.pop()
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    run.recover()
    assert h.run(run).output == "done"
    assert calls == ["a", "b", "b"]
    assert len(undoing.undone) == 2


def test_recover_does_again_what_the_code_undid_behind_the_failure_that_is_tried_again(
    h: Harness, flavour: Flavour
) -> None:
    calls: list[str] = []
    left = [ConnectionError("no")]

    def book() -> None:
        if left:
            raise left.pop()
        calls.append("book")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", calls.append, "charge", rollback=undoing.undo)
        try:
            await ctx.step("book", book, max_retries=0)
        except StepExhaustedError:
            await ctx.compensate(REASON)
            raise
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    run.recover()
    assert h.run(run).output == "done"
    assert calls == ["charge", "charge", "book"]
    assert len(undoing.undone) == 1


def test_a_replay_from_before_it_does_again_what_it_undid(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("a", calls.append, "a", rollback=undoing.undo)
        await ctx.step("b", calls.append, "b")
        await ctx.compensate(REASON)
        await ctx.step("c", calls.append, "c")
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).output == "done"
    plan = run.plan_replay("c")
    assert plan.boundary == "c"
    assert plan.reruns == ("c",)
    plan = run.plan_replay("b")
    assert plan.boundary == "a"
    assert plan.reruns == ("a", "b", "c")
    assert "was compensated" in " ".join(plan.why)
    assert run.plan_replay("compensate~0").boundary == "a"
    again = run.replay("b")
    assert h.run(again).output == "done"
    assert calls == ["a", "b", "c", "a", "b", "c"]
    assert len(undoing.undone) == 2
    later = run.replay("c", in_place=True)
    assert h.run(later).output == "done"
    assert calls[-1] == "c"
    assert len(undoing.undone) == 2


def test_recover_does_again_what_a_loop_undid_that_starts_again(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []
    left = [CriticalError("no")]

    async def body(ctx: Any) -> Any:
        await ctx.compensate(REASON)
        await ctx.step("in", calls.append, "in", rollback=undoing.undo)
        if left:
            raise left.pop()
        return Break()

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("first", calls.append, "first", rollback=undoing.undo)
        await ctx.loop("l", body)
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    run.recover()
    assert h.run(run).output == "done"
    assert calls == ["first", "in", "first", "in"]
    assert len(undoing.undone) == 3


def test_without_steps_to_undo_it_returns(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(rejected()))
    assert h.run(run).output == "rejected"
    assert kinds(run) == ["compensate~0"]


def test_without_a_checkpoint_it_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.compensate(REASON)

    check_failed(h.run(h.start(flavour(ship))), "RollbackCheckpointError", "call ctx.rollback_checkpoint(name) first")


def test_a_checkpoint_of_an_inner_scope_will_do(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "a")

    async def ship(ctx: Any) -> Any:
        await ctx.try_block("t", body)
        await ctx.compensate(REASON)
        return "rejected"

    assert h.run(h.start(flavour(ship))).output == "rejected"
    assert undoing.undone == ["a"]


@pytest.mark.parametrize("fork", ["join", "race"])
def test_a_branch_may_not_undo_the_whole_run(h: Harness, flavour: Flavour, fork: str) -> None:
    async def branch(ctx: Any) -> Any:
        await ctx.compensate(REASON)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "a")
        await getattr(ctx, fork)("f", {"b": branch})

    run = h.start(flavour(ship))
    check_failed(h.run(run), "ValueError", "no place in a branch")
    assert undoing.undone == []


def test_the_reason_is_text(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.compensate(None)

    run = h.start(flavour(ship))
    check_failed(h.run(run), "TypeError")
    assert kinds(run) == []


def test_what_branches_and_losers_did_is_undone_too(h: Harness, flavour: Flavour) -> None:
    async def one(ctx: Any) -> Any:
        await do(ctx, "one")

    async def slow(ctx: Any) -> Any:
        await do(ctx, "slow")
        await ctx.sleep("z", 60)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.join("j", {"one": one})
        await ctx.race("r", {"slow": slow, "one": one})
        await ctx.compensate(REASON)
        await ctx.sleep("z", 60)
        return "rejected"

    run = h.start(flavour(ship))
    assert h.finish(run).output == "rejected"
    assert undoing.undone == ["one", "slow", "one"]


def test_in_a_loop_each_iteration_may_compensate_and_the_history_stays_small(h: Harness, flavour: Flavour) -> None:
    async def body(ctx: Any, number: int) -> Any:
        await do(ctx, "a", "b")
        await ctx.compensate(f"round {number}")
        return Break(number) if number == 9 else Continue(number + 1)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "first")
        value = await ctx.loop("l", body, state=0, history_prune_interval=2)
        await ctx.compensate("at the end")
        return value

    run = h.start(flavour(ship))
    assert h.finish(run).output == 9
    assert undoing.undone == ["b", "a", "first", *["b", "a"] * 9]
    assert len(run.history()) < 12


def test_a_recovery_leaves_what_a_pruned_iteration_undid(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []
    left = [CriticalError("no")]

    async def body(ctx: Any, number: int) -> Any:
        if number == 0:
            await ctx.compensate("at first")
        await ctx.step("a", calls.append, number)
        return Break(number) if number == 5 else Continue(number + 1)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("first", calls.append, "first", rollback=undoing.undo)
        await ctx.loop("l", body, state=0, history_prune_interval=1)
        await ctx.step("last", calls.append, "last", rollback=undoing.undo)
        if left:
            raise left.pop()

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    run.recover()
    assert h.run(run).state == "completed"
    assert calls == ["first", 0, 1, 2, 3, 4, 5, "last", "last"]


def test_a_handler_is_retried_with_the_steps_policy(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left.append(ConnectionError("away"))
    run = h.start(flavour(rejected("a", "b", retry_backoff_base=60, retry_backoff_max=600)))
    parked = h.run(run)
    assert parked.state == "sleeping"
    assert parked.wake_at is not None
    assert parked.wake_at > h.now
    assert run.summary.startswith(f"compensating ({REASON}), a rollback handler waits for its next try")
    assert undoing.undone == []
    run.wake()
    assert h.run(run).output == "rejected"
    assert undoing.undone == ["b", "a"]


def test_a_handler_that_fails_for_good_stops_the_run_and_recover_goes_on(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left.extend(ConnectionError("away") for _ in range(3))
    swallowed: list[str] = []

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "a", "b")
        try:
            await ctx.compensate(REASON)
        except Exception as error:
            swallowed.append(type(error).__name__)
            raise
        return "rejected"

    run = h.start(flavour(ship))
    check_failed(h.finish(run), "ConnectionError")
    assert 'the rollback handler of "b" failed' in run.summary
    assert "recover() goes on with it" in run.summary
    run.recover()
    assert h.finish(run).output == "rejected"
    assert undoing.undone == ["b", "a"]


def test_code_cannot_swallow_a_handler_that_failed_for_good(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left.extend(ConnectionError("away") for _ in range(2))

    async def body(ctx: Any) -> Any:
        await ctx.compensate(REASON)

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "a")
        try:
            await ctx.try_block("t", body, catch=("step", "join", "race", "rollback"))
        except Exception:
            return "swallowed"
        return "rejected"

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    run.recover()
    assert h.finish(run).output == "rejected"


def test_it_survives_a_crash_anywhere(flavour: Flavour) -> None:
    async def body(ctx: Any) -> Any:
        await do(ctx, "c")
        await ctx.compensate("in a block")
        await do(ctx, "d")

    async def ship(ctx: Any) -> Any:
        await rejected("a", "b")(ctx)
        await ctx.try_block("t", body)
        await ctx.sleep("z", 60)
        await ctx.compensate("at the end")
        return "done"

    def check() -> list[str]:
        found = list(dict.fromkeys(undoing.undone))
        undoing.undone.clear()
        return found

    with Harness(now=NOW) as h:
        assert h.crash_everywhere(flavour(ship), check=check) > 20


def test_a_crash_in_the_middle_goes_on_with_the_next_handler(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(rejected("a", "b", "c")))
    with h.crash_at(5, "after"), pytest.raises(SimulatedCrash):  # 3 steps, c and b
        h.run(run)
    assert undoing.undone == ["c", "b"]
    assert h.run(run).output == "rejected"
    assert undoing.undone == ["c", "b", "a"]


def test_a_pause_in_the_middle_is_obeyed_and_a_cancel_waits(h: Harness, flavour: Flavour) -> None:
    undoing.fails_left.append(ConnectionError("away"))
    run = h.start(flavour(rejected("a", "b", retry_backoff_base=60, retry_backoff_max=600)))
    h.run(run)
    run.pause()
    assert h.run(run).state == "paused"
    run.resume()
    run.cancel(rollback=True)
    assert h.finish(run).state == "cancelled"
    assert undoing.undone == ["b", "a"]
    with pytest.raises(InvalidTransitionError):
        run.recover()


def test_code_that_no_longer_makes_it_says_so(h: Harness, flavour: Flavour) -> None:
    code = {"with": True, "removed": False}

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await do(ctx, "a")
        if code["with"]:
            await ctx.compensate(REASON)
        elif code["removed"]:
            await ctx.removed("rejection", "compensate")
        await ctx.sleep("z", 60)
        return "done"

    run = h.start(flavour(ship))
    h.run(run)
    code["with"] = False
    check_failed(h.finish(run), "HistoryDivergedError", "compensate~0")
    code["removed"] = True
    run.recover()
    assert h.finish(run).output == "done"
    assert undoing.undone == ["a"]
