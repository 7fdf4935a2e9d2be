"""`ctx.event`: a wait for what is published under a name and a key."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from durable import Break, Continue, workflow
from durable.errors import EventConflictError, EventTimeoutError, PayloadError
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour


def waiting(**options: Any) -> Any:
    async def wait_for_payment(ctx: Any) -> Any:
        return await ctx.event("paid", "order.paid", **{"key": "7", **options})

    return wait_for_payment


def waits(h: Harness) -> list[Any]:
    return list(h._store._event_waits.values())


def test_a_run_gets_what_is_published_while_it_waits(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(waiting(timeout="2 days")))
    parked = h.run(run)
    assert (parked.state, parked.wake_at) == ("sleeping", h.now + timedelta(days=2))
    assert run.summary.startswith("waiting for event order.paid, key 7")
    h.publish("order.paid", {"id": 7}, key="7")
    assert waits(h) == []
    assert h.run_due() == 1
    assert run.output == {"id": 7}


def test_an_earlier_event_does_not_count_by_default(h: Harness, flavour: Flavour) -> None:
    h.publish("order.paid", 1, key="7")
    run = h.start(flavour(waiting()))
    assert h.run(run).state == "sleeping"
    h.publish("order.paid", 2, key="7")
    h.settle()
    assert run.output == 2


def test_within_counts_an_earlier_event_too(h: Harness, flavour: Flavour) -> None:
    h.publish("order.paid", 1, key="7")
    h.advance("59 minutes")
    h.publish("order.paid", 2, key="7")
    assert h.run(h.start(flavour(waiting(within="1 hour")))).output == 1
    h.advance("2 minutes")
    assert h.run(h.start(flavour(waiting(within="1 hour")))).output == 2
    h.advance("1 hour")
    assert h.run(h.start(flavour(waiting(within="1 hour")))).state == "sleeping"


@pytest.mark.parametrize("other", ["8", "77", "", "7 ", "tenant-7", "\uff17"])
def test_another_key_never_delivers(h: Harness, flavour: Flavour, other: str) -> None:
    run = h.start(flavour(waiting(within="1 hour", timeout="1 minute")))
    h.run(run)
    if other:
        h.publish("order.paid", "not yours", key=other)
    h.publish("order.paid.late", "not yours", key="7")
    assert h.run_due() == 0
    assert h.finish(run).error.type == "EventTimeoutError"  # type: ignore[union-attr]
    assert waits(h) == []


def test_a_timeout_is_an_error_of_its_own(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        try:
            await ctx.event("paid", "order.paid", key="7", timeout="2 days")
        except EventTimeoutError as error:
            return [error.wait, error.event, error.key]

    run = h.start(flavour(workflow))
    h.run(run)
    h.publish("order.paid", key="8")
    assert h.finish(run).output == ["paid", "order.paid", "7"]
    assert waits(h) == []
    h.publish("order.paid", "late", key="7")
    assert h.run_due() == 0


def test_none_is_a_body(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(waiting(timeout=10)))
    h.run(run)
    h.publish("order.paid", key="7")
    assert h.run(run).output is None
    assert h.peek(run).state == "completed"


def test_an_event_published_in_time_counts_however_late_the_worker(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(waiting(timeout=60)))
    h.run(run)
    h.advance(59)
    h.publish("order.paid", "in time", key="7")
    h.advance("1 day")
    assert h.run(run).output == "in time"


def test_an_event_published_after_the_deadline_does_not_count(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(waiting(timeout=60)))
    h.run(run)
    h.advance(61)
    h.publish("order.paid", "late", key="7")
    assert h.run(run).error.type == "EventTimeoutError"  # type: ignore[union-attr]


def test_all_waits_get_it_once(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        async def one(ctx: Any) -> Any:
            return await ctx.event("got", "news", key="all")

        return await ctx.join("both", {"a": one, "b": one})

    runs = [h.start(flavour(workflow)) for _ in range(3)]
    h.settle()
    assert len(waits(h)) == 6
    h.publish("news", 1, key="all")
    h.publish("news", 2, key="all")
    h.settle()
    assert [each.output for each in runs] == [{"a": 1, "b": 1}] * 3


def test_a_loop_gets_each_event_once(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        async def body(ctx: Any, got: list[int]) -> Any:
            got = [*got, await ctx.event("next", "price", key="x", within="1 hour")]
            return Break(got) if len(got) == 5 else Continue(got)

        return await ctx.loop("prices", body, state=[])

    for number in range(2):
        h.publish("price", number, key="x")
    run = h.start(flavour(workflow))
    h.settle()
    for number in range(2, 5):
        h.publish("price", number, key="x")  # while the run is between two waits, too
    h.settle()
    assert run.output == [0, 1, 2, 3, 4]


def test_the_loser_of_a_race_waits_no_more(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        async def paid(ctx: Any) -> Any:
            return await ctx.event("paid", "order.paid", key="7")

        async def late(ctx: Any) -> Any:
            await ctx.sleep("patience", 60)

        won = await ctx.race("first", {"paid": paid, "late": late})
        await ctx.sleep("after", 60)
        return won.winner

    run = h.start(flavour(workflow))
    h.run(run)
    assert len(waits(h)) == 1
    h.advance(60)
    assert h.run(run).state == "sleeping"
    assert waits(h) == []
    assert h.finish(run).output == "late"


@pytest.mark.parametrize("how", ["cancel", "fail", "end"])
def test_the_end_of_a_run_ends_its_waits(h: Harness, flavour: Flavour, how: str) -> None:
    async def workflow(ctx: Any) -> Any:
        async def paid(ctx: Any) -> Any:
            return await ctx.event("paid", "order.paid", key="7")

        async def other(ctx: Any) -> Any:
            await ctx.sleep("rest", 60)
            if how == "fail":
                raise OSError("broken")

        return (await ctx.race("first", {"paid": paid, "other": other})).winner

    run = h.start(flavour(workflow))
    h.run(run)
    assert len(waits(h)) == 1
    if how == "cancel":
        run.cancel()
        assert waits(h) == []
    elif how == "end":
        assert h.finish(run).output == "other"
        assert waits(h) == []
    else:
        h.advance(60)
        h.run(run)
        run.cancel()
        assert waits(h) == []
    h.publish("order.paid", key="7")
    h.settle()


@pytest.mark.parametrize("when", ["while it had failed", "after the recovery", "never"])
def test_a_run_that_failed_while_it_waited_goes_on_waiting(h: Harness, flavour: Flavour, when: str) -> None:
    """Its end has dropped the wait, and its recovery does not go back to before it."""
    definition = workflow(name=f"core.events.{flavour}.{when}")(flavour(waiting(timeout="2 days")))
    run = definition.using(deadline="1 hour").start()
    h.publish("order.paid", "too early", key="7")
    h.run(run)
    h.publish("else", key="7")
    h.advance("1 hour")
    assert h.run(run).state == "failed"
    assert waits(h) == []
    if when == "while it had failed":
        h.publish("order.paid", 1, key="7")
    run.recover()
    h.run(run)
    if when == "after the recovery":
        assert len(waits(h)) == 1
        h.publish("order.paid", 1, key="7")
    h.settle()
    if when == "never":
        assert h.peek(run).state == "sleeping"
    else:
        assert run.output == 1
        assert waits(h) == []


def test_a_new_run_that_replays_one_waits_for_itself(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        async def paid(ctx: Any) -> Any:
            return await ctx.event("paid", "order.paid", key="7")

        async def other(ctx: Any) -> Any:
            return await ctx.step("other", int)

        return await ctx.join("both", {"paid": paid, "other": other})

    run = h.start(flavour(workflow))
    h.run(run)
    again = run.replay("both/other/other")
    h.settle()
    assert len(waits(h)) == 2
    h.publish("order.paid", 1, key="7")
    h.settle()
    assert [run.output, again.output] == [{"paid": 1, "other": 0}] * 2


def test_a_replay_from_before_the_wait_gets_the_event_again_once(h: Harness, flavour: Flavour) -> None:
    async def workflow(ctx: Any) -> Any:
        await ctx.step("begin", int)
        first = await ctx.event("paid", "order.paid", key="7")
        second = await ctx.event("paid again", "order.paid", key="7", timeout=60)
        return [first, second]

    run = h.start(flavour(workflow))
    h.run(run)
    h.publish("order.paid", 1, key="7")
    h.run(run)
    run.replay("begin", in_place=True)
    h.settle()
    assert [each.location for each in waits(h)] == ["paid again"]
    h.publish("order.paid", 2, key="7")
    h.settle()
    assert run.output == [1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_crash_at_any_commit_loses_nothing(h: Harness, flavour: Flavour, number: int, when: Any) -> None:
    run = h.start(flavour(waiting(within="1 hour", timeout="1 day")))
    h._store.arm(number, when)
    with suppress(SimulatedCrash):
        h.run(run)
    h._store.disarm()
    h.publish("order.paid", 1, key="7")
    h.settle()
    assert run.output == 1
    assert waits(h) == []


def test_the_code_may_not_wait_for_another_key_in_a_later_pass(h: Harness, flavour: Flavour) -> None:
    keys = iter("78")

    with pytest.raises(Exception, match="key"):
        h.run(h.start(flavour.calling(lambda ctx: ctx.event("paid", "order.paid", key=next(keys)))))


# -- what is published


def test_an_id_publishes_once(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(waiting()))
    h.run(run)
    assert h.publish("order.paid", {"n": 1}, key="7", id="a") == "a"
    assert h.publish("order.paid", {"n": 1}, key="7", id="a") == "a"
    for key, body in [("8", {"n": 1}), ("7", {"n": 2})]:
        with pytest.raises(EventConflictError):
            h.publish("order.paid", body, key=key, id="a")
    h.publish("order.sent", {"n": 2}, key="7", id="a")
    h.settle()
    assert run.output == {"n": 1}
    assert len(h._store._events) == 2


@pytest.mark.parametrize("key", ["", "a\n", "x" * 201, "\ud800", "\x00"], ids=ascii)
def test_a_key_that_no_event_can_have_is_refused(h: Harness, flavour: Flavour, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        h.publish("order.paid", key=key)
    failed = h.run(h.start(flavour(waiting(key=key))))
    assert failed.error is None or failed.error.type == "ValueError"


def test_a_key_is_text_and_required(h: Harness) -> None:
    with pytest.raises(TypeError, match="key is text"):
        h.publish("order.paid", key=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        h.publish("order.paid", 7)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["🦊" * 200, "ü", "a/b~c%", "x" * 200], ids=ascii)
def test_any_printable_key_is_compared_whole(h: Harness, flavour: Flavour, key: str) -> None:
    run = h.start(flavour(waiting(key=key)))
    h.run(run)
    h.publish("order.paid", "no", key=key[:-1] or "x")
    assert h.run_due() == 0
    h.publish("order.paid", "yes", key=key)
    h.settle()
    assert run.output == "yes"


def test_a_huge_body_is_refused(h: Harness) -> None:
    with pytest.raises(PayloadError):
        h.publish("order.paid", "x" * (2 * 1024 * 1024), key="7")
    assert h._store._events == []
