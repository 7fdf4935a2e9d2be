"""`recover()`: what is tried again, what stays, and what a compensation means for it."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Break, Continue, current_step
from durable.errors import InvalidTransitionError, JoinError, StepExhaustedError
from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour


class World:
    """What steps do, and which of them fail at the moment."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.calls: list[str] = []
        self.keys: list[str] = []

    def do(self, name: str) -> Any:
        self.calls.append(name)
        self.keys.append(current_step().idempotency_key)
        if name in self.broken:
            raise ValueError(name)
        return name

    async def step(self, ctx: Any, name: str, **options: Any) -> Any:
        return await ctx.step(name, self.do, name, max_retries=0, **options)

    async def charge(self, ctx: Any, name: str) -> Any:
        return await self.step(ctx, name, rollback=undoing.undo)

    def mend(self) -> None:
        self.broken.clear()
        self.calls.clear()


def test_only_what_failed_is_tried_again(h: Harness, flavour: Flavour) -> None:
    world = World("b")

    async def ship(ctx: Any) -> Any:
        return [await world.step(ctx, name) for name in "abc"]

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert (run.state, run.wake_at, run.error) == ("pending", h.now, None)
    assert h.finish(run).output == ["a", "b", "c"]
    assert world.calls == ["b", "c"]
    assert run.history()[1].attempts == 1


def test_it_gets_all_its_attempts_again(h: Harness, flavour: Flavour) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(current_step().attempt)
        raise ValueError

    run = h.start(flavour.calling(lambda ctx: ctx.step("a", fail, max_retries=1)))
    h.finish(run)
    run.recover()
    assert h.finish(run).state == "failed"
    assert calls == [1, 2, 1, 2]


def test_an_error_of_the_workflows_own_code_goes_on_once_the_code_is_mended(h: Harness, flavour: Flavour) -> None:
    state = {"broken": True}
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        if state["broken"]:
            raise ValueError("bug")
        return "done"

    run = h.start(flavour(ship))
    h.run(run)
    run.recover()
    assert h.run(run).state == "failed"
    state["broken"] = False
    run.recover()
    assert h.run(run).output == "done"
    assert world.calls == ["a"]


@pytest.mark.parametrize("state", ["pending", "sleeping", "paused", "completed", "cancelled"])
def test_only_a_failed_run_can_be_recovered(h: Harness, flavour: Flavour, state: str) -> None:
    run = h.start(flavour.calling(lambda ctx: ctx.sleep("rest", 60)))
    if state != "pending":
        h.run(run)
    if state == "paused":
        run.pause()
    if state == "completed":
        h.finish(run)
    if state == "cancelled":
        run.cancel()
    assert run.state == state
    with pytest.raises(
        InvalidTransitionError, match=f"cannot recover a run that is {state}; allowed when it is failed"
    ):
        run.recover()


# -- joins and races


@pytest.mark.parametrize("kind", ["join", "race"])
def test_a_failed_branch_runs_again(h: Harness, flavour: Flavour, kind: str) -> None:
    """Fault 4: the failed branch does not stay failed."""
    world = World("bad", "good" if kind == "race" else "")

    def branch(name: str) -> Any:
        async def body(ctx: Any) -> Any:
            await world.step(ctx, "before")
            return await world.step(ctx, name)

        return body

    async def ship(ctx: Any) -> Any:
        await getattr(ctx, kind)("fork", {"bad": branch("bad"), "good": branch("good")})
        return "done"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == "done"
    assert world.calls == ["bad"], "and what was done is not done again"


def test_a_branch_that_failed_deep_inside(h: Harness, flavour: Flavour) -> None:
    world = World("bad")

    async def innermost(ctx: Any, n: int) -> Any:
        if n == 2:
            await world.step(ctx, "bad")
            return Break("value")
        await world.step(ctx, f"iteration {n}")
        return Continue(n + 1)

    async def inner(ctx: Any) -> Any:
        return await ctx.loop("loop", innermost, state=0)

    async def block(ctx: Any) -> Any:
        return await ctx.join("inner", {"x": inner})

    async def outer(ctx: Any) -> Any:
        return (await ctx.try_block("block", block, catch=[])).value

    run = h.start(flavour.calling(lambda ctx: ctx.join("outer", {"y": outer})))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == {"y": {"x": "value"}}
    assert world.calls == ["bad"]


def test_a_branch_whose_own_code_failed(h: Harness, flavour: Flavour) -> None:
    state = {"broken": True}

    async def body(ctx: Any) -> Any:
        if state["broken"]:
            raise KeyError("bug")
        return "done"

    run = h.start(flavour.calling(lambda ctx: ctx.join("join", {"a": body})))
    h.run(run)
    state["broken"] = False
    run.recover()
    assert h.finish(run).output == {"a": "done"}


def test_a_failure_that_was_raised_from_another(h: Harness, flavour: Flavour) -> None:
    world = World("a")

    async def body(ctx: Any) -> Any:
        await world.step(ctx, "a")

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.join("join", {"x": body})
        except JoinError as error:
            raise RuntimeError("could not ship") from error
        return "done"

    run = h.start(flavour(ship))
    h.run(run)
    world.mend()
    run.recover()
    assert h.finish(run).output == "done"


# -- failures that were handled


def test_failures_that_the_workflow_handled_stay(h: Harness, flavour: Flavour) -> None:
    """Fault 5: history does not change under it."""
    world = World("tried", "blocked", "joined", "fatal")

    async def blocked(ctx: Any) -> Any:
        await world.step(ctx, "blocked")

    async def joined(ctx: Any) -> Any:
        await world.step(ctx, "joined")

    async def ship(ctx: Any) -> Any:
        tried = (await ctx.try_step("tried", world.do, "tried", max_retries=0)).ok
        block = (await ctx.try_block("block", blocked)).ok
        try:
            await ctx.join("join", {"x": joined})
            join = True
        except JoinError:
            join = False
        return tried, block, join, await world.step(ctx, "fatal")

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == (False, False, False, "fatal")
    assert world.calls == ["fatal"]


# -- after a compensation


def test_compensated_steps_run_again_with_another_key(h: Harness, flavour: Flavour) -> None:
    """Fault 6: it does not ship without charging."""
    world = World("ship")

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "before")
        await ctx.rollback_checkpoint("from here")
        await world.charge(ctx, "charge")
        await world.step(ctx, "mark")
        return await world.step(ctx, "ship")

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    assert undoing.undone == ["charge"]
    first = world.keys[:]
    world.mend()
    world.keys.clear()
    run.recover()
    assert h.finish(run).output == "ship"
    assert world.calls == ["charge", "mark", "ship"]
    assert world.keys[0] != first[1]
    assert world.keys[1:] == first[2:]
    assert undoing.undone == ["charge"]


def test_a_second_compensation_undoes_the_second_charge(h: Harness, flavour: Flavour) -> None:
    world = World("ship")
    keys = []

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.charge(ctx, "charge")
        await world.step(ctx, "ship")

    run = h.start(flavour(ship))
    for _ in range(3):
        assert h.finish(run).state == "failed"
        keys.append(world.keys[-2])
        run.recover()
    assert undoing.undone == ["charge"] * 3
    assert len(set(keys)) == 3


def test_messages_received_since_return_to_the_queue(h: Harness, flavour: Flavour) -> None:
    world = World("ship")

    async def ship(ctx: Any) -> Any:
        early = await ctx.queue.next("early", names=[])
        await ctx.rollback_checkpoint("from here")
        await world.charge(ctx, "charge")
        late = await ctx.queue.next("late", names=[])
        await world.step(ctx, "ship")
        return early.body, late.body

    run = h.start(flavour(ship), id="run")
    h.send(run, "q", 1)
    h.send(run, "q", 2)
    assert h.finish(run).state == "failed"
    world.mend()
    run.recover()
    assert [each.state for each in h._store.messages("run")] == ["received", "pending"]
    assert h.finish(run).output == (1, 2)


def scoped(kind: str, world: World) -> Any:
    async def body(ctx: Any, n: int = 0) -> Any:
        await world.charge(ctx, f"charge {n}")
        if kind == "loop":
            return Continue(n + 1) if n < 2 else Break("done")
        return "done"

    async def other(ctx: Any) -> Any:
        return await world.step(ctx, "other")

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "before")
        await ctx.rollback_checkpoint("from here")
        if kind == "loop":
            await ctx.loop("loop", body, state=0, history_prune_interval=1, history_size=0)
        elif kind == "block":
            await ctx.try_block("block", body)
        elif kind == "join":
            await ctx.join("join", {"other": other, "body": body})
        else:
            await ctx.race("race", {"body": body})
        return await world.step(ctx, "ship")

    return ship


@pytest.mark.parametrize(
    ("kind", "undone", "again"),
    [
        ("loop", ["charge 2", "charge 1", "charge 0"], ["charge 0", "charge 1", "charge 2", "ship"]),
        ("block", ["charge 0"], ["charge 0", "ship"]),
        ("join", ["charge 0"], ["charge 0", "ship"]),
        ("race", ["charge 0"], ["charge 0", "ship"]),
    ],
)
def test_compensated_steps_in_scopes_run_again(
    h: Harness, flavour: Flavour, kind: str, undone: list[str], again: list[str]
) -> None:
    world = World("ship")
    run = h.start(flavour(scoped(kind, world)))
    assert h.finish(run).state == "failed"
    assert undoing.undone == undone
    world.mend()
    run.recover()
    assert h.finish(run).output == "ship"
    assert world.calls == again
    assert len({each.location for each in run.history()}) == len(run.history())


def test_a_losers_compensated_step_does_not_undo_the_race(h: Harness, flavour: Flavour) -> None:
    world = World("ship")

    async def slow(ctx: Any) -> Any:
        await world.charge(ctx, "charge")
        await ctx.sleep("rest", 600)

    async def fast(ctx: Any) -> Any:
        return await world.step(ctx, "fast")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        winner = (await ctx.race("race", {"slow": slow, "fast": fast})).winner
        await world.step(ctx, "ship")
        return winner

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    assert undoing.undone == ["charge"]
    world.mend()
    run.recover()
    assert h.finish(run).output == "fast"
    assert world.calls == ["ship"]


@pytest.mark.parametrize("interval", [3, 100])
def test_messages_that_pruned_iterations_received_are_received_again(
    h: Harness, flavour: Flavour, interval: int
) -> None:
    world = World("late")

    async def each(ctx: Any, seen: list[int]) -> Any:
        message = await ctx.queue.next("mail", names=[])
        await world.charge(ctx, f"charge {message.body}")
        return Break([*seen, message.body]) if len(seen) == 9 else Continue([*seen, message.body])

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        seen = await ctx.loop("all", each, state=[], history_prune_interval=interval)
        await world.step(ctx, "late")
        return seen

    run = h.start(flavour(ship))
    for number in range(10):
        run.send("mail", number)
    assert h.finish(run).state == "failed"
    assert len(undoing.undone) == 10
    world.mend()
    run.recover()
    assert h.finish(run).output == list(range(10))


def test_what_a_run_sent_to_itself_after_the_compensated_step_is_sent_once(h: Harness, flavour: Flavour) -> None:
    world = World("late")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.charge(ctx, "charge")
        await ctx.queue.send("mail", "received")
        await ctx.queue.send("mail", "pending")
        first = await ctx.queue.next("first", names=[])
        await world.step(ctx, "late")
        others = await ctx.queue.next_batch("others", names=[], count=9, timeout=0)
        return [each.body for each in (first, *others)]

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == ["received", "pending"]


def test_recovery_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    fails: list[int] = []

    def ship_it() -> str:
        if not fails:
            raise ValueError
        return "shipped"

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: 1, rollback=undoing.undo)
        return await ctx.step("ship", ship_it, max_retries=0)

    def drive(harness: Harness, handle: Any) -> None:
        if not fails:
            assert harness.finish(handle).state == "failed"
            fails.append(1)
        if handle.state == "failed":
            handle.recover()
        assert harness.finish(handle).output == "shipped"

    def check() -> None:
        fails.clear()

    h.crash_everywhere(flavour(ship), drive=drive, check=check)


# -- what the code makes of a failure


async def in_a_group(world: World, ctx: Any) -> None:
    errors: list[Exception] = []
    for name in "ab":
        try:
            await world.step(ctx, name)
        except StepExhaustedError as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("some failed", [ExceptionGroup("inner", errors)])


async def of_a_star(world: World, ctx: Any) -> None:
    try:
        await world.step(ctx, "a")
    except* StepExhaustedError as caught:
        raise ValueError("not shipped") from caught


async def while_handling(world: World, ctx: Any) -> None:
    try:
        await world.step(ctx, "a")
    except StepExhaustedError:
        raise ValueError("not shipped")  # noqa: B904  # as code does that forgets `from`


@pytest.mark.parametrize("body", [in_a_group, of_a_star, while_handling], ids=lambda each: each.__name__)
@pytest.mark.parametrize("is_branch", [False, True], ids=["root", "branch"])
def test_what_failed_is_found_in_the_error_that_the_code_makes_of_it(
    h: Harness, flavour: Flavour, body: Any, is_branch: bool
) -> None:
    world = World("a", "b")

    async def ship(ctx: Any) -> str:
        if is_branch:
            await ctx.join("ship", {"one": lambda c: body(world, c)})
        else:
            await body(world, ctx)
        return "shipped"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == "shipped"
    assert world.calls == (["a", "b"] if body is in_a_group else ["a"])


def test_a_failure_that_was_handled_before_is_none_of_the_error(h: Harness, flavour: Flavour) -> None:
    world = World("a", "b")

    async def ship(ctx: Any) -> str:
        try:
            await world.step(ctx, "a")
        except StepExhaustedError:
            await world.step(ctx, "b")
        return "shipped"

    run = h.start(flavour(ship))
    assert h.run(run).state == "failed"
    world.mend()
    run.recover()
    assert h.finish(run).output == "shipped"
    assert world.calls == ["b"]
