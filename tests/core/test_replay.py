"""`replay()`: what goes and what stays, in a new run and in place, and what the steps that run again are given."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import pytest

from durable import Break, Continue, CriticalError, Handle, current_step
from durable.core.control_flow import LeaseLost
from durable.core.records import Batch, MessageState
from durable.errors import EntryNotFoundError, ReplayRefusedError, RunConflictError, StalePlanError
from durable.testing import Harness, SimulatedCrash
from tests.core import undoing
from tests.core.flavours import Flavour


@pytest.fixture(params=[False, True], ids=["new run", "in place"])
def in_place(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class World:
    """What steps do: each returns how often it was done, so that a result shows its number."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []

    def do(self, name: str) -> str:
        self.calls.append(name)
        self.keys.append(current_step().idempotency_key)
        return f"{name}{self.calls.count(name)}"

    async def step(self, ctx: Any, name: str, **options: Any) -> Any:
        return await ctx.step(name, self.do, name, **options)

    def branch(self, *names: str) -> Any:
        async def body(ctx: Any) -> Any:
            return [await self.step(ctx, name) for name in names]

        return body

    def again(self) -> list[str]:
        """What was done since the last look."""
        calls, self.calls = self.calls[:], []
        return calls


def test_the_history_before_the_boundary_stays(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        return [await world.step(ctx, name) for name in "abc"]

    run = h.start(flavour(ship), id="first")
    h.finish(run)
    plan = run.plan_replay("b")
    assert (plan.target, plan.boundary, plan.why) == ("b", "b", ())
    assert (plan.removed, plan.reruns, plan.kept) == (("b", "c"), ("b", "c"), ("a",))
    assert (plan.refusals, plan.in_place_refusals, plan.siblings) == ((), (), ())
    again = run.replay("b", in_place=in_place, plan_hash=plan.hash)
    assert (again.id == "first") is in_place
    assert (again.state, again.summary, again.wake_at) == ("pending", "replayed from b", h.now)
    assert [each.location for each in again.history()] == ["a"]
    assert h.finish(again).output == ["a1", "b2", "c2"]
    assert world.again() == ["a", "b", "c", "b", "c"]


def test_the_run_that_is_replayed_stays_as_it_was(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        return [await world.step(ctx, name) for name in "ab"]

    run = h.start(flavour(ship))
    h.finish(run)
    before = (run.state, run.output, run.history(), h._store.get(run.id))
    new = run.replay("b", id="second")
    h.finish(new)
    assert (run.state, run.output, run.history(), h._store.get(run.id)) == before
    row = h._store.get("second")
    assert row is not None
    assert (row.replay_of_id, row.input, row.queue) == (run.id, h._store.get(run.id).input, "default")  # type: ignore[union-attr]


def test_an_ended_run_that_is_replayed_in_place_has_not_ended(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        raise CriticalError("no")

    run = h.start(flavour(ship))
    h.finish(run)
    assert run.error is not None
    run.replay("a", in_place=True)
    row = h._store.get(run.id)
    assert row is not None
    assert (row.state, row.error, row.output, row.finished_at, row.origins) == ("pending", None, None, None, [])


@pytest.mark.parametrize("pruned", [False, True])
def test_steps_that_run_again_have_new_keys(h: Harness, flavour: Flavour, in_place: bool, pruned: bool) -> None:
    world = World()

    async def body(ctx: Any, number: int) -> Any:
        await world.step(ctx, "count")
        return Break(number) if number == 4 else Continue(number + 1)

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        await ctx.loop("l", body, state=0, history_prune_interval=1 if pruned else 20)
        await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    for location in ("l/~4/count", "a"):
        h.finish(run.replay(location, in_place=in_place))
    assert len(world.keys) == len(set(world.keys)) == 7 + 6 + 7


def test_what_stays_keeps_its_key(h: Harness, flavour: Flavour) -> None:
    """A step in backoff in a branch that stays is tried again with the key of its first attempt."""
    world = World()

    def fail_once(name: str) -> str:
        world.do(name)
        if world.calls.count(name) == 1:
            raise ValueError(name)
        return name

    async def failing(ctx: Any) -> Any:
        return await ctx.step("f", fail_once, "f", retry_backoff_base=60, retry_backoff_max=60)

    run = h.start(flavour.calling(lambda ctx: ctx.join("j", {"good": world.branch("g"), "bad": failing})))
    h.run(run)
    run.replay("j/good/g", in_place=True)
    assert h.finish(run).output == {"good": ["g2"], "bad": "f"}
    keys = dict(zip(world.calls, world.keys, strict=True))
    assert world.calls == ["g", "f", "g", "f"]
    assert world.keys[1] == keys["f"]


# -- scopes


def test_a_step_in_a_loop_restarts_the_loop(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def body(ctx: Any, number: int) -> Any:
        await world.step(ctx, "count")
        return Break(number) if number == 2 else Continue(number + 1)

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        return await ctx.loop("l", body, state=0)

    run = h.start(flavour(ship))
    h.finish(run)
    world.again()
    plan = run.plan_replay("l/~2/count")
    assert (plan.boundary, plan.kept) == ("l", ("a",))
    assert plan.why == ('"l/~2/count" is in the loop "l", which starts again: its iterations build on each other',)
    assert h.finish(run.replay("l/~2/count", in_place=in_place)).output == 2
    assert world.again() == ["count"] * 3


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("j/x/x2", ["x2", "z"]),
        ("j/x", ["x1", "x2", "z"]),
        ("j/y/y1", ["y1", "z"]),
        ("j", ["x1", "x2", "y1", "z"]),
        ("a", ["a", "x1", "x2", "y1", "z"]),
        ("z", ["z"]),
    ],
)
def test_other_branches_of_a_join_stay(
    h: Harness, flavour: Flavour, in_place: bool, target: str, expected: list[str]
) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        await ctx.join("j", {"x": world.branch("x1", "x2"), "y": world.branch("y1")})
        return await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    world.again()
    plan = run.plan_replay(target)
    assert [each.rpartition("/")[2] for each in plan.reruns] == expected
    assert plan.siblings == {"j/x/x2": ("j/y",), "j/x": ("j/y",), "j/y/y1": ("j/x",)}.get(target, ())
    assert h.finish(run.replay(target, in_place=in_place)).state == "completed"
    assert world.again() == expected


def test_a_join_in_a_join(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def outer(ctx: Any) -> Any:
        await world.step(ctx, "o1")
        await ctx.join("in", {"p": world.branch("p"), "q": world.branch("q")})
        await world.step(ctx, "o2")

    async def ship(ctx: Any) -> Any:
        await ctx.join("out", {"o": outer, "s": world.branch("s")})
        await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    world.again()
    plan = run.plan_replay("out/o/in/p/p")
    assert plan.siblings == ("out/s", "out/o/in/q")
    h.finish(run.replay(plan.target, in_place=in_place))
    assert world.again() == ["p", "o2", "z"]


def test_a_race_is_decided_again(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def slow(ctx: Any) -> Any:
        await ctx.sleep("rest", 60)
        return await world.step(ctx, "slow")

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        return (await ctx.race("r", {"slow": slow, "fast": world.branch("fast")})).winner

    run = h.start(flavour(ship))
    h.finish(run)
    plan = run.plan_replay("r/fast/fast")
    assert plan.boundary == "r"
    assert plan.why == ('"r/fast/fast" is in the race "r", which starts again: who wins it is decided again',)
    world.again()
    assert h.finish(run.replay("r/fast/fast", in_place=in_place)).output == "fast"
    assert world.again() == ["fast"]


def test_a_step_in_a_block(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await ctx.try_block("b", world.branch("b1", "b2"))
        await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    for target, expected in [("b/b2", ["b2", "z"]), ("b", ["b1", "b2", "z"])]:
        world.again()
        h.finish(run.replay(target, in_place=in_place))
        assert world.again() == expected


def test_a_branch_that_recorded_nothing_is_a_place(h: Harness, flavour: Flavour, in_place: bool) -> None:
    entered: list[str] = []

    def branch(name: str) -> Any:
        async def body(ctx: Any) -> Any:
            entered.append(name)

        return body

    run = h.start(flavour.calling(lambda ctx: ctx.join("j", {"a/b": branch("a/b"), "c": branch("c")})))
    h.finish(run)
    entered.clear()
    h.finish(run.replay("j/a%2Fb", in_place=in_place))
    assert entered == ["a/b"]


def test_an_iteration_that_was_pruned_is_a_place(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def body(ctx: Any, number: int) -> Any:
        await world.step(ctx, "count")
        return Break(number) if number == 3 else Continue(number + 1)

    run = h.start(flavour.calling(lambda ctx: ctx.loop("l", body, state=0, history_prune_interval=1)))
    h.finish(run)
    assert run.plan_replay("l/~0").boundary == "l"
    with pytest.raises(EntryNotFoundError):
        run.plan_replay("l/~4")


def test_a_place_that_is_not_there(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "charge card")

    run = h.start(flavour(ship), id="x")
    h.finish(run)
    for verb in (run.plan_replay, run.replay):
        with pytest.raises(EntryNotFoundError, match='"x" has recorded nothing at "charge"; is it charge card'):
            verb("charge")
    with pytest.raises(TypeError, match="a location is text"):
        run.plan_replay(5)  # type: ignore[arg-type]


def test_a_branch_that_failed_and_stays_is_reported(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def failing(ctx: Any) -> Any:
        raise CriticalError("no")

    run = h.start(flavour.calling(lambda ctx: ctx.join("j", {"good": world.branch("g"), "bad": failing})))
    assert h.finish(run).state == "failed"
    assert run.plan_replay("j/good").notes == (
        '"j/bad" has failed and stays so: replay from there to have it run again',
    )
    assert run.plan_replay("j/bad").notes == ()


# -- what the code has received before


def test_a_new_run_sees_the_time_and_the_dice_of_the_first(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        seen = [ctx.now(), ctx.uuid4()]
        await world.step(ctx, "a")
        return [*seen, ctx.random.random()]

    run = h.start(flavour(ship))
    first = h.finish(run).output
    h.advance(3600)
    second = run.replay("a")
    assert h.finish(second).output == first
    h.advance(3600)
    assert h.finish(second.replay("a")).output == first


def test_a_deadline_in_a_branch_that_stays(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def sleeping(ctx: Any) -> Any:
        await ctx.sleep("rest", 100)

    run = h.start(flavour.calling(lambda ctx: ctx.join("j", {"sleeping": sleeping, "x": world.branch("x")})))
    h.run(run)
    h.advance(40)
    begun = h.now
    again = run.replay("j/x/x", in_place=in_place)
    assert h.run(again).wake_at == begun + timedelta(seconds=60)


def test_sends_are_made_again_and_the_plan_says_so(h: Harness, flavour: Flavour, in_place: bool) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("mail", 1, to="other")
        await ctx.queue.send("mail", 2, to="other")

    h.start(flavour.calling(lambda ctx: ctx.queue.next("wait", ["never"])), id="other")
    run = h.start(flavour(ship))
    h.run(run)
    assert run.plan_replay("send~1").resends == ("send~1",)
    h.run(run.replay("send~1", in_place=in_place))
    assert [each.body for each in h._store.messages("other")] == ["1", "2", "2"]


# -- messages


def test_messages_return_in_their_order(h: Harness, flavour: Flavour, in_place: bool) -> None:
    async def ship(ctx: Any) -> Any:
        return [(await ctx.queue.next(f"wait {number}", ["mail"])).body for number in range(3)]

    run = h.start(flavour(ship))
    for number in range(5):
        h.send(run, "mail", number)
    assert h.finish(run).output == [0, 1, 2]
    plan = run.plan_replay("wait 1")
    assert [(each.queue, each.wait) for each in plan.messages] == [("mail", "wait 1"), ("mail", "wait 2")]
    again = run.replay("wait 1", in_place=in_place)
    states = [(each.body, each.state) for each in h._store.messages(again.id)]
    assert states == [("0", "received"), ("1", "pending"), ("2", "pending"), ("3", "pending"), ("4", "pending")]
    assert h.finish(again).output == [0, 1, 2]


def test_what_a_pruned_wait_received_returns_too(h: Harness, flavour: Flavour, in_place: bool) -> None:
    async def body(ctx: Any, got: list[int]) -> Any:
        got = [*got, (await ctx.queue.next("wait", ["mail"])).body]
        return Break(got) if len(got) == 4 else Continue(got)

    run = h.start(flavour.calling(lambda ctx: ctx.loop("l", body, state=[], history_prune_interval=1)))
    for number in range(4):
        h.send(run, "mail", number)
    assert h.finish(run).output == [0, 1, 2, 3]
    assert h.finish(run.replay("l", in_place=in_place)).output == [0, 1, 2, 3]


def test_an_open_message_of_the_part_that_stays_can_be_completed(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("wait", ["quote"], completable=True)
        await world.step(ctx, "a")
        await ctx.sleep("rest", 60)
        await message.complete("answer")
        return (await ctx.queue.next("next", ["quote"])).body

    run = h.start(flavour(ship))
    h.send(run, "quote", 1)
    h.run(run)
    again = run.replay("a", in_place=in_place)
    h.settle()
    h.advance(60)
    h.settle()
    [message] = h._store.messages(again.id)
    assert (message.state, message.response) == (MessageState.COMPLETED, '"answer"')
    h.send(again, "quote", 2)
    assert h.finish(again).output == 2


@pytest.mark.parametrize("boundary", ["a", "l/~0/b"])
def test_what_a_loop_completed_is_completed_by_its_new_id(
    h: Harness, flavour: Flavour, in_place: bool, boundary: str
) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("quote", completable=True)

        async def body(ctx: Any) -> Any:
            await world.step(ctx, "b")
            await message.complete("answer")
            return Break(message.is_completed)

        known = [message.is_completed, await ctx.loop("l", body), message.is_completed]
        await world.step(ctx, "a")
        try:
            await message.complete("again")
        except ValueError as error:
            return [*known, str(error)]

    run = h.start(flavour(ship))
    h.send(run, "quote", 1)
    h.run(run)
    again = run.replay(boundary, in_place=in_place)
    h.run(again)
    [message] = h._store.messages(again.id)
    assert (message.state, message.response) == (MessageState.COMPLETED, '"answer"')
    assert again.result()[:3] == [False, True, True]
    assert f"message {message.id} has been completed already" in again.result()[3]


def test_a_message_to_itself_is_not_there_twice(h: Harness, flavour: Flavour, in_place: bool) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.send("own", "first")
        await ctx.queue.send("own", "second")
        got = [each.body for each in await ctx.queue.next_batch("take", ["own"], count=9)]
        await ctx.queue.send("own", "third")
        return got + [each.body for each in await ctx.queue.next_batch("rest", ["own"], count=9, timeout=0)]

    run = h.start(flavour(ship))
    assert h.finish(run).output == ["first", "second", "third"]
    assert [each.wait for each in run.plan_replay("send~1").messages] == ["take"]
    assert h.finish(run.replay("send~1", in_place=in_place)).output == ["first", "second", "third"]


def test_a_send_that_is_repeated_by_its_id_is_not_received_twice(h: Harness, flavour: Flavour, in_place: bool) -> None:
    async def ship(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", ["mail"])).body

    run = h.start(flavour(ship))
    h.send(run, "mail", 1, id="once")
    h.finish(run)
    again = run.replay("wait", in_place=in_place)
    h.send(again, "mail", 1, id="once")
    h.finish(again)
    assert len(h._store.messages(again.id)) == 1


# -- compensation


def test_handlers_of_what_goes_are_not_run_and_the_plan_says_so(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.step(ctx, "charge", rollback=undoing.undo)
        await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    plan = run.plan_replay("charge")
    assert plan.not_compensated == ("charge",)
    assert plan.notes == (
        'the rollback handlers of "charge" are not run: what these steps and children did stays, and is done again',
    )
    h.finish(run.replay("charge", in_place=in_place))
    assert undoing.undone == []
    assert run.plan_replay("z").not_compensated == ()


def test_what_was_compensated_is_done_again(h: Harness, flavour: Flavour, in_place: bool) -> None:
    """Fault 6 in another coat: shipping without charging."""
    world = World()
    broken = [True]

    def check() -> None:
        if broken.pop():
            raise CriticalError("no")

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "first")
        await ctx.rollback_checkpoint("from here")
        await world.step(ctx, "charge", rollback=undoing.undo)
        await world.step(ctx, "between")
        await ctx.step("check", check)

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    assert undoing.undone
    plan = run.plan_replay("check")
    assert (plan.target, plan.boundary) == ("check", "charge")
    assert plan.why == ('"charge" was compensated: what was undone is done again, and all that came after it',)
    assert plan.kept == ("first", "from here")
    broken.append(False)
    world.again()
    assert h.finish(run.replay("check", in_place=in_place)).state == "completed"
    assert world.again() == ["charge", "between"]


def test_what_stays_is_compensated_when_the_replay_fails(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()
    fails: list[bool] = [False, True]

    def check() -> None:
        if fails.pop(0):
            raise CriticalError("no")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.step(ctx, "charge", rollback=undoing.undo)
        await ctx.step("check", check)

    run = h.start(flavour(ship))
    assert h.finish(run).state == "completed"
    assert h.finish(run.replay("check", in_place=in_place)).state == "failed"
    assert len(undoing.undone) == 1


def test_a_handler_that_stays_has_all_its_attempts_again(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.step(ctx, "charge", rollback=undoing.undo, max_retries=1, retry_backoff_base=0)
        await world.step(ctx, "b")
        raise CriticalError("no")

    run = h.start(flavour(ship))
    undoing.fails_left += [ConnectionError("down")] * 2
    assert h.finish(run).state == "failed"
    assert undoing.undone == []
    undoing.fails_left.append(ConnectionError("down once"))
    again = run.replay("b", in_place=in_place)
    assert h.finish(again).state == "failed"
    assert undoing.undone == ["charge1"]
    assert again.history()[1].rollback_error is None


# -- when it is refused


def test_a_run_that_a_worker_passes_is_not_replayed_in_place(lenient: Harness, flavour: Flavour) -> None:
    world = World()
    seen: list[Any] = []  # the step fills it, and the code decides by it: the run that replays shall not look

    def look(run_id: str) -> None:
        handle = Handle(run_id)
        seen.append(handle.plan_replay("a"))
        with pytest.raises(ReplayRefusedError, match="pause the run first"):
            handle.replay("a", in_place=True)
        seen.append(handle.replay("a"))

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        if not seen:
            await ctx.step("look", look, ctx.run_id)

    run = lenient.start(flavour(ship))
    lenient.run(run)
    plan, new = seen
    assert plan.refusals == ()
    assert plan.notes == ("this run is running: a new run goes on beside it, unless you cancel this one",)
    assert plan.in_place_refusals == (
        "a worker is executing the run now: pause the run first, or replay it as a new run",
    )
    assert lenient.finish(new).state == "completed"


def test_what_stays_must_not_be_under_way(h: Harness, flavour: Flavour) -> None:
    world = World()
    seen: list[Any] = []

    def look(run_id: str) -> None:
        if not seen:
            seen.append(Handle(run_id).plan_replay("j/a/a"))

    async def looking(ctx: Any) -> Any:
        await ctx.step("look", look, ctx.run_id)

    run = h.start(flavour.calling(lambda ctx: ctx.join("j", {"a": world.branch("a"), "b": looking})))
    h.run(run)
    assert seen[0].refusals == ('"j/b" would stay and is being run now: pause the run, or wait until that has ended',)
    assert run.plan_replay("j/a/a").refusals == ()


def test_a_run_that_is_being_compensated(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()
    undoing.fails_left.append(ConnectionError("later"))

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await world.step(ctx, "charge", rollback=undoing.undo, retry_backoff_base=60)
        raise CriticalError("no")

    run = h.start(flavour(ship))
    assert h.run(run).state == "rolling_back"
    with pytest.raises(ReplayRefusedError, match="is being compensated: replay it once that has ended"):
        run.replay("charge", in_place=in_place)
    run.pause()
    with pytest.raises(ReplayRefusedError, match="is being compensated"):
        run.replay("charge", in_place=in_place)


def test_a_stale_plan_is_refused(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        await ctx.sleep("rest", 60)
        await world.step(ctx, "b")

    run = h.start(flavour(ship), id="x")
    h.run(run)
    plan = run.plan_replay("a")
    assert run.plan_replay("a") == plan
    h.finish(run)
    with pytest.raises(
        StalePlanError, match='the history of run "x" has changed since the replay from "a" was planned'
    ):
        run.replay("a", in_place=in_place, plan_hash=plan.hash)
    assert run.state == "completed"
    assert list(h._store._runs) == ["x"]


def test_an_attempt_makes_a_plan_stale(h: Harness, flavour: Flavour) -> None:
    def fail() -> None:
        raise ValueError

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", str)
        await ctx.step("b", fail, retry_backoff_base=60, retry_backoff_max=60)

    run = h.start(flavour(ship))
    h.run(run)
    plan = run.plan_replay("a")
    h.advance(60)
    h.settle()
    assert run.plan_replay("a").hash != plan.hash


def test_a_worker_whose_lease_ran_out_writes_nothing_to_what_is_replayed(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour.calling(lambda ctx: ctx.sleep("rest", 60)))
    h.run(run)
    zombie = h._store.claim_run(run.id, now=h.now, lease_until=h.now, worker="zombie")
    assert zombie is not None
    run.replay("rest", in_place=True)
    with pytest.raises(LeaseLost):
        h._store.commit(Batch(run_id=run.id, fence=zombie.fence, now=h.now, run={"summary": "zombie"}))
    assert run.summary == "replayed from rest"


def test_a_plan_for_another_place_is_refused(h: Harness, flavour: Flavour, in_place: bool) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.branch("a", "b")(ctx)

    run = h.start(flavour(ship))
    h.run(run)
    with pytest.raises(StalePlanError):
        run.replay("b", in_place=in_place, plan_hash=run.plan_replay("a").hash)


def test_an_id_makes_it_idempotent(h: Harness, flavour: Flavour) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")

    run, other = (h.start(flavour(ship), id=each) for each in ("first", "other"))
    h.settle()
    assert run.replay("a", id="again") == run.replay("a", id="again") == Handle("again")
    assert run.restart(id="new") == run.restart(id="new") == Handle("new")
    for taken in ("again", "new", "first"):
        with pytest.raises(RunConflictError, match='does not come from run "other"'):
            other.replay("a", id=taken)
        with pytest.raises(RunConflictError, match='does not come from run "other"'):
            other.restart(id=taken)
    with pytest.raises(ValueError, match="makes no new run"):
        run.replay("a", in_place=True, id="x")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_worker_that_dies_in_the_replay(
    h: Harness, flavour: Flavour, in_place: bool, number: int, when: Literal["before", "after"]
) -> None:
    world = World()

    async def ship(ctx: Any) -> Any:
        await world.step(ctx, "a")
        await ctx.join("j", {"x": world.branch("x"), "y": world.branch("y")})
        return await world.step(ctx, "z")

    run = h.start(flavour(ship))
    h.finish(run)
    world.again()
    again = run.replay("j/x", in_place=in_place)
    with h.crash_at(number, when), suppress(SimulatedCrash):
        h.finish(again)
    assert h.finish(again).state == "completed"
    assert list(dict.fromkeys(world.again())) == ["x", "z"]
    assert {each.location for each in again.history()} == {each.location for each in run.history()}


@pytest.mark.slow
def test_a_long_history_is_planned_in_a_moment(h: Harness) -> None:
    """Two thousand entries, each of which goes: once they were looked for in all the others."""

    def ship(ctx: Any) -> None:
        for number in range(2_000):
            ctx.step(f"s{number}", str)

    run = h.start(ship)
    h.run(run)
    plan = run.plan_replay("s1")
    assert (plan.counts.removed, len(plan.removed), plan.kept) == (1_999, 50, ("s0",))
