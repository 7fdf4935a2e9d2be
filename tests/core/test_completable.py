"""`message.complete`: which messages may be answered, where, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Break, Continue
from durable.testing import Harness, SimulatedCrash
from tests.core.answers import responses, sends
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of

# -- several open ones


def test_an_open_message_blocks_no_other_one(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        question = await ctx.queue.next("question", completable=True)
        await ctx.step("search", lambda: 1)
        permission = await ctx.queue.next("permission")
        await ctx.sleep("rest", 60)
        other = await ctx.queue.next_batch("other", completable=True)
        await other[0].complete("first")
        await question.complete(permission.body)

    run = h.start(flavour(ship), id="run")
    for queue in ("question", "permission", "other"):
        h.settle()
        h.send(run, queue, queue)
    h.advance(60)
    h.settle()
    assert run.state == "completed"
    assert responses(h, "run") == ["permission", ..., "first"]


def test_several_open_messages_whatever_crashes(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        one = await ctx.queue.next("one", ["q"], completable=True)
        two, three = [await ctx.queue.next(name, ["q"], completable=True) for name in ("two", "three")]
        batch = await ctx.queue.next_batch("rest", ["q"], count=9, completable=True)
        await ctx.step("a", lambda: 1)
        for number, message in enumerate((three, *batch, one, two)):
            await message.complete((number, message.body))
            await ctx.sleep(f"rest {number}", 1)
        return [each.body for each in (one, two, three, *batch)]

    def drive(harness: Harness, run: Any) -> None:
        sends(*"qqqqq")(harness, run)
        assert run.output == [0, 1, 2, 3, 4]
        assert responses(harness, run.id) == [(3, 0), (4, 1), (0, 2), (1, 3), (2, 4)]

    assert h.crash_everywhere(flavour(ship), drive=drive) >= 30


def test_ask_is_answered_while_others_wait(h: Harness, flavour: Flavour) -> None:
    async def answers(ctx: Any) -> Any:
        first = await ctx.queue.next("first", ["quote"], completable=True)
        second = await ctx.queue.next("second", ["quote"], completable=True)
        await second.complete(f"{first.body} before {second.body}")
        await ctx.sleep("think", 60)
        await first.complete("at last")

    run = h.start(flavour(answers), id="run")
    h.send(run, "quote", 1)
    assert run.ask("quote", 2) == "1 before 2"
    h.finish(run)
    assert responses(h, "run") == ["at last", "1 before 2"]


# -- in an inner scope


async def in_a_loop(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any, n: int) -> Any:
        await ctx.step("work", lambda: n)
        if n == 1:
            await act(ctx)
        await ctx.sleep("rest", 1)
        return Continue(n + 1) if n < 3 else Break()

    await ctx.loop("loop", body, state=0, history_prune_interval=2)


async def in_nested_loops(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await in_a_loop(ctx, act)
        return Break()

    await ctx.loop("outer", body)


async def in_a_block(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await ctx.sleep("before", 1)
        await act(ctx)
        await ctx.sleep("after", 1)

    await ctx.try_block("block", body)


async def in_a_branch(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await ctx.sleep("before", 1)
        await act(ctx)
        await ctx.sleep("after", 1)

    async def other(ctx: Any) -> Any:
        await ctx.sleep("long", 9)

    await ctx.join("join", {"a": body, "b": other})


async def in_a_winner(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await ctx.sleep("before", 1)
        await act(ctx)
        await ctx.sleep("after", 1)

    async def other(ctx: Any) -> Any:
        await ctx.sleep("long", 9)

    await ctx.race("race", {"a": body, "b": other})


async def in_a_loser(ctx: Any, act: Any) -> Any:
    async def body(ctx: Any) -> Any:
        await act(ctx)
        await ctx.sleep("long", 9)

    async def other(ctx: Any) -> Any:
        await ctx.sleep("short", 1)

    await ctx.race("race", {"a": body, "b": other})


async def here(ctx: Any, act: Any) -> Any:
    await act(ctx)


SCOPES = [here, in_a_loop, in_nested_loops, in_a_block, in_a_branch, in_a_winner, in_a_loser]
#: What a scope does is of the engine: of each kind, one is driven asynchronously too.
FLAVOURS = [*(("sync", each) for each in SCOPES), *(("async", each) for each in (in_a_loop, in_a_branch, in_a_loser))]


@pytest.mark.parametrize(
    ("flavour", "scope"),
    [("async", in_a_loop), *(("sync", each) for each in (here, in_a_block, in_a_branch, in_a_loser))],
    indirect=["flavour"],
)
def test_it_is_completed_in_an_inner_scope_whatever_crashes(h: Harness, flavour: Flavour, scope: Any) -> None:
    """The completion is committed with what comes after the scope's act: in the next test that is always a step."""

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("quote", completable=True)

        async def act(ctx: Any) -> Any:
            await message.complete({"price": 3})

        await scope(ctx, act)
        await ctx.sleep("rest", 60)
        return "done"

    def drive(harness: Harness, run: Any) -> None:
        sends("quote")(harness, run)
        assert run.output == "done"
        assert responses(harness, run.id) == [{"price": 3}]

    h.crash_everywhere(flavour(ship), drive=drive)


@pytest.mark.parametrize(("flavour", "scope"), FLAVOURS, indirect=["flavour"])
def test_whether_it_is_completed_is_the_same_in_each_pass(h: Harness, flavour: Flavour, scope: Any) -> None:
    """Before, within and after the scope that completes it, where a second answer is refused."""

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("quote", completable=True)
        seen: list[Any] = [("at first", message.is_completed)]
        await ctx.sleep("one", 1)
        seen.append(("still", message.is_completed))

        async def act(ctx: Any) -> Any:
            within = [message.is_completed]
            await message.complete(1)
            within.append(message.is_completed)
            try:
                await message.complete(2)
            except ValueError as error:
                within.append("completed already" in str(error))
            await ctx.step("within", lambda: within)

        await scope(ctx, act)
        seen.append(("then", message.is_completed))
        try:
            await message.complete(3)
        except ValueError as error:
            seen.append("completed already" in str(error))
        await ctx.step("seen", lambda: list(seen))
        await ctx.sleep("two", 1)
        return seen

    def drive(harness: Harness, run: Any) -> None:
        sends("quote")(harness, run)
        assert run.output == [("at first", False), ("still", False), ("then", True), True]
        steps = {each.location.rpartition("/")[2]: each.data["output"] for each in run.history() if each.kind == "step"}
        assert steps["seen"] == run.output
        if "within" in steps:  # the records of losers and of old iterations are gone
            assert steps["within"] == [False, True, True]
        assert responses(harness, run.id) == [1]

    h.crash_everywhere(flavour(ship), drive=drive)


def test_an_iteration_knows_what_those_before_it_completed(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        messages = await ctx.queue.next_batch("quotes", count=3, completable=True)

        async def body(ctx: Any, known: list[Any]) -> Any:
            left = [each for each in messages if not each.is_completed]
            await ctx.sleep("rest", 1)
            if not left:
                return Break(known)
            await left[0].complete(len(left))
            return Continue([*known, [each.body for each in left]])

        return await ctx.loop("loop", body, state=[], history_prune_interval=1)

    def drive(harness: Harness, run: Any) -> None:
        if run.state == "pending":
            for number in range(3):
                harness.send(run, "quotes", number, id=str(number))
        harness.finish(run)
        assert run.output == [[0, 1, 2], [1, 2], [2]]
        assert responses(harness, run.id) == [3, 2, 1]

    h.crash_everywhere(flavour(ship), drive=drive)


def test_of_two_branches_the_first_answers_and_the_other_is_refused(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("quote", completable=True)

        def branch(number: int) -> Any:
            async def body(ctx: Any) -> Any:
                await ctx.sleep("rest", number)
                knew = message.is_completed
                try:
                    await message.complete(number)
                except ValueError as error:
                    return knew, "completed already" in str(error)
                await ctx.sleep("rest again", 5)
                return knew, number

            return body

        found = await ctx.join("join", {"a": branch(2), "b": branch(1)})
        return found, message.is_completed

    def drive(harness: Harness, run: Any) -> None:
        sends("quote")(harness, run)
        assert run.output == ({"a": (False, True), "b": (False, 1)}, True)
        assert responses(harness, run.id) == [1]

    h.crash_everywhere(flavour(ship), drive=drive)


def test_branches_complete_messages_of_one_batch(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        messages = await ctx.queue.next_batch("quotes", count=4, completable=True)

        def branch(message: Any) -> Any:
            async def body(ctx: Any) -> Any:
                await message.complete(message.body * 10)

            return body

        await ctx.join("join", {str(each.body): branch(each) for each in messages})

    run = h.start(flavour(ship), id="run")
    for number in range(4):
        h.send(run, "quotes", number)
    assert h.finish(run).state == "completed"
    assert responses(h, "run") == [0, 10, 20, 30]


@pytest.mark.parametrize("answers_first", [False, True])
def test_a_loser_that_answered_with_what_it_received_has_done_something(
    h: Harness, flavour: Flavour, answers_first: bool
) -> None:
    """What a loser received last returns to the inbox, unless it has completed a message since."""

    async def ship(ctx: Any) -> Any:
        question = await ctx.queue.next("question", completable=True)

        async def relay(ctx: Any) -> Any:
            if answers_first:
                await question.complete("soon")
            facts = await ctx.queue.next("facts")
            if not answers_first:
                await question.complete(facts.body)

        async def wins(ctx: Any) -> Any:
            await ctx.sleep("short", 1)

        await ctx.race("race", {"wins": wins, "relay": relay})
        return [each.name for each in await ctx.queue.next_batch("left", names=[], count=9, timeout=0)]

    run = h.start(flavour(ship), id="run")
    h.send(run, "question")
    h.send(run, "facts", "it is so")
    with h.crash_at(4, "after"), pytest.raises(SimulatedCrash):
        h.run(run)
    h.advance(60)  # so that the other branch comes first
    assert h.finish(run).output == (["facts"] if answers_first else [])
    assert responses(h, "run")[0] == ("soon" if answers_first else "it is so")


# -- left open


async def nothing(ctx: Any) -> Any:
    return None


def receiving(scope: str) -> Any:
    """A workflow whose scope receives a message and leaves it open."""

    async def receive(ctx: Any) -> Any:
        await ctx.queue.next("first", completable=True)
        await ctx.sleep("rest", 60)

    async def in_an_iteration(ctx: Any) -> Any:
        async def body(ctx: Any) -> Any:
            await receive(ctx)
            return Continue()

        await ctx.loop("loop", body)

    async def in_a_block(ctx: Any) -> Any:
        await ctx.try_block("block", receive, catch=("step", "join", "race", "rollback"))

    async def in_a_branch(ctx: Any) -> Any:
        await ctx.join("join", {"a": receive, "b": nothing})

    async def in_a_race(ctx: Any) -> Any:
        await ctx.race("race", {"a": receive})

    return {
        "root": receive,
        "iteration": in_an_iteration,
        "block": in_a_block,
        "branch": in_a_branch,
        "race": in_a_race,
    }[scope]


@pytest.mark.parametrize(
    ("scope", "location"),
    [
        ("root", "first"),
        ("iteration", "loop/~0/first"),
        ("block", "block/first"),
        ("branch", "join/a/first"),
        ("race", "race/a/first"),
    ],
)
def test_one_left_open_at_the_end_of_its_scope_stops_the_run(
    h: Harness, flavour: Flavour, scope: str, location: str
) -> None:
    handled = []

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here on")
        await ctx.step("pay", lambda: 1, rollback=undo)
        try:
            await receiving(scope)(ctx)
        except Exception:
            handled.append("caught")
        if scope != "root":
            await ctx.step("after", lambda: handled.append("gone on"))

    run = h.start(flavour(ship))
    first = h.send(run, "first")
    check_failed(
        h.finish(run),
        "MessageNotCompletedError",
        f'wait "{location}" received message {first} with completable=True',
        "call message.complete(...)",
    )
    assert "gone on" not in handled
    assert undone == []


undone: list[Any] = []


def undo(_rollback: Any, output: Any) -> None:
    undone.append(output)


def test_once_the_code_completes_it_the_run_is_recovered(h: Harness, flavour: Flavour) -> None:
    forgets = [True]

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any) -> Any:
            message = await ctx.queue.next("next", completable=True)
            if not forgets:
                await message.complete("sorry")
            return Break(message.body)

        return await ctx.loop("loop", body)

    run = h.start(flavour(ship), id="run")
    h.send(run, "next", 5)
    assert h.finish(run).state == "failed"
    forgets.clear()
    run.recover()
    assert h.finish(run).output == 5
    assert responses(h, "run") == ["sorry"]


def test_a_failure_is_reported_before_a_message_left_open(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.queue.next("next", completable=True)
        raise ValueError("out of stock")

    run = h.start(flavour(ship))
    h.send(run, "next")
    error = h.finish(run).error
    assert error is not None
    assert error.message == "out of stock"


def test_after_a_block_that_failed_the_scope_around_it_answers(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        received = []

        async def body(ctx: Any) -> Any:
            received.append(await ctx.queue.next("order", completable=True))
            await ctx.step("reserve", flavour.function(fail), max_retries=0)

        result = await ctx.try_block("block", body)
        await received[0].complete({"ok": result.ok})
        await ctx.sleep("rest", 1)

    def fail() -> None:
        raise ValueError("out of stock")

    def drive(harness: Harness, run: Any) -> None:
        sends("order")(harness, run)
        assert run.state == "completed"
        assert responses(harness, run.id) == [{"ok": False}]

    h.crash_everywhere(flavour(ship), drive=drive)


def test_after_a_loop_that_failed_the_scope_around_it_answers(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        received = []

        async def body(ctx: Any) -> Any:
            received.append(await ctx.queue.next("order", completable=True))
            await ctx.sleep("rest", 1)
            raise KeyError("sku")

        try:
            await ctx.loop("loop", body)
        except KeyError:
            await received[0].complete("no such thing")

    run = h.start(flavour(ship), id="run")
    h.send(run, "order")
    assert h.finish(run).error is None
    assert responses(h, "run") == ["no such thing"]


# -- once


def test_a_message_is_completed_once(h: Harness, flavour: Flavour) -> None:
    problems = []

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("a", completable=True)
        await message.complete(1)
        try:
            await message.complete(2)
        except ValueError as error:
            problems.append(str(error))
        await ctx.sleep("rest", 60)

    run = h.start(flavour(ship), id="run")
    h.send(run, "a")
    assert h.finish(run).state == "completed"
    assert len(problems) == 2
    assert "has been completed already" in problems[0]
    assert responses(h, "run") == [1]


def test_a_message_that_is_not_completable_cannot_be_completed(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("a")
        assert not message.is_completed
        await message.complete(1)

    run = h.start(flavour(ship))
    h.send(run, "a")
    assert "was not received with completable=True" in error_of(h.run(run)).message


def test_a_message_is_not_completed_in_a_steps_function(h: Harness) -> None:
    def ship(ctx: Any) -> Any:
        message = ctx.queue.next("a", completable=True)
        ctx.step("answer", lambda: message.complete(1), max_retries=0)

    run = h.start(ship)
    h.send(run, "a")
    check_failed(h.run(run), "EntryInProgressError")


def test_the_branch_beside_cannot_complete_it(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        received = []

        async def receives(ctx: Any) -> Any:
            received.append(await ctx.queue.next("a", completable=True))
            await ctx.sleep("rest", 5)
            await received[0].complete("own")

        async def meddles(ctx: Any) -> Any:
            await ctx.sleep("rest", 1)
            try:
                await received[0].complete("other")
            except ValueError as error:
                return str(error)

        return (await ctx.join("join", {"a": receives, "b": meddles}))["b"]

    run = h.start(flavour(ship), id="run")
    h.send(run, "a")
    assert "was received in a scope that has ended, or in another branch" in h.finish(run).output
    assert responses(h, "run") == ["own"]


def test_a_message_out_of_an_iteration_that_has_ended(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        received = []

        async def body(ctx: Any, n: int) -> Any:
            if n == 0:
                received.append(await ctx.queue.next("a", completable=True))
                await received[0].complete(1)
                return Continue(1)
            try:
                await received[0].complete(2)
            except ValueError as error:
                return Break((str(error), received[0].is_completed))

        return await ctx.loop("loop", body, state=0)

    run = h.start(flavour(ship), id="run")
    h.send(run, "a")
    text, is_completed = h.finish(run).output
    assert "was received in a scope that has ended" in text
    assert is_completed


def test_a_response_that_the_codec_refuses_may_be_followed_by_another(lenient: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("q", completable=True)
        try:
            await message.complete(object())
        except Exception as error:
            await message.complete(type(error).__name__)

    run = lenient.start(flavour(ship))  # a replay has the response, so that nothing is refused
    assert run.ask("q") == "PayloadError"


# -- histories of earlier releases


def recorded_before(h: Harness, run: Any) -> None:
    """Make the history what durable recorded when only the scope that had received a message could complete it."""
    for entry in h._store.history(run.id):
        if "received" not in entry.data:
            continue
        for record in entry.data["received"]:
            record.pop("completed_in", None)
            record.pop("completed_order", None)


def test_a_completion_that_an_earlier_release_recorded_is_one(h: Harness, flavour: Flavour) -> None:
    refused = []

    async def ship(ctx: Any) -> Any:
        message = await ctx.queue.next("a", completable=True)
        await message.complete(1)
        try:
            await message.complete(2)
        except ValueError as error:
            refused.append(str(error))
        await ctx.sleep("rest", 60)
        return message.is_completed

    run = h.start(flavour(ship), id="run")
    h.send(run, "a")
    h.run(run)
    recorded_before(h, run)
    assert h.finish(run).output is True
    assert len(refused) == 2
    assert responses(h, "run") == [1]
