"""`message.refuse`: what the asker gets, where it may be called, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Break, MessageRefusedError
from durable.testing import Harness
from tests.core.answers import responses, sends
from tests.core.flavours import Flavour


async def shop(ctx: Any) -> Any:
    message = await ctx.queue.next("order", completable=True)
    if message.body > 3:
        await message.refuse("out of stock")
    else:
        await message.complete("on its way")
    return message.is_completed


def test_ask_raises_the_reason(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(shop), id="run")
    with pytest.raises(MessageRefusedError) as refused:
        run.ask("order", 4)
    assert refused.value.reason == "out of stock"
    assert refused.value.run_id == "run"
    assert str(refused.value) == 'run "run" refused the message: out of stock'
    assert h.peek(run).output is True


async def test_aask_raises_the_reason() -> None:
    with Harness() as h:
        run = await h.astart(shop)
        with pytest.raises(MessageRefusedError, match="out of stock"):
            await run.aask("order", 4)


def test_a_message_that_is_completed_is_not_refused(h: Harness, flavour: Flavour) -> None:
    assert h.start(flavour(shop)).ask("order", 3) == "on its way"


def test_an_ask_with_the_same_id_is_refused_again(h: Harness) -> None:
    run = h.start(Flavour("sync")(shop))
    for _ in range(2):
        with pytest.raises(MessageRefusedError, match="out of stock"):
            run.ask("order", 4, id="order-7")
    assert run.state == "completed"


def test_is_recorded_and_replayed(h: Harness, flavour: Flavour) -> None:
    async def slow(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse("out of stock")
        await ctx.sleep("rest", 60)
        return message.is_completed

    run = h.start(flavour(slow), id="run")
    h.send(run, "order", 1)
    assert h.finish(run).output is True
    assert [each.state for each in h._store.messages("run")] == ["refused"]
    (received,) = run.history()[0].data["received"]
    assert (received["body"], received["refused"], received["completed"]) == (1, "out of stock", True)


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def picky(ctx: Any) -> Any:
        batch = [await ctx.queue.next(f"order {n}", ["order"], completable=True) for n in range(4)]
        for message in reversed(batch):
            if message.body % 2:
                await message.refuse(f"odd: {message.body}")
            else:
                await message.complete(message.body)
            await ctx.sleep(f"rest {message.body}", 1)

    def drive(harness: Harness, run: Any) -> None:
        sends("order", "order", "order", "order")(harness, run)
        assert responses(harness, run.id) == [0, "odd: 1", 2, "odd: 3"]
        states = [str(each.state) for each in harness._store.messages(run.id)]
        assert states == ["completed", "refused", "completed", "refused"]

    assert h.crash_everywhere(flavour(picky), drive=drive) >= 20


# -- one answer each


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [("refuse", "complete", "refused"), ("complete", "refuse", "completed"), ("refuse", "refuse", "refused")],
)
def test_a_message_has_one_answer(h: Harness, flavour: Flavour, first: str, second: str, found: str) -> None:
    async def twice(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await getattr(message, first)("once")
        await ctx.sleep("rest", 60)
        try:
            await getattr(message, second)("twice")
        except ValueError as error:
            return str(error)

    run = h.start(flavour(twice))
    h.send(run, "order")
    output = h.finish(run).output
    assert f"has been {found} already; complete or refuse each message once" in output
    assert responses(h, run.id) == ["once"]


def test_code_that_now_completes_what_was_refused_has_diverged(h: Harness, flavour: Flavour) -> None:
    refuses = True

    async def changed(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await (message.refuse("no") if refuses else message.complete("yes"))
        await ctx.sleep("rest", 60)

    run = h.start(flavour(changed))
    h.send(run, "order")
    h.settle()
    refuses = False
    error = h.finish(run).error
    assert error is not None
    assert error.type == "HistoryDivergedError"
    assert 'a message of "order" is recorded as refused, but the code has it completed' in error.message
    refuses = True
    run.recover()
    assert h.finish(run).state == "completed"


# -- where


def test_in_an_inner_scope(h: Harness, flavour: Flavour) -> None:
    async def nested(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)

        async def branch(c: Any) -> Any:
            async def body(inner: Any) -> Any:
                await message.refuse("not here")
                return Break()

            await c.loop("loop", body)

        await ctx.join("join", {"one": branch})
        return message.is_completed

    run = h.start(flavour(nested))
    h.send(run, "order")
    assert h.finish(run).output is True
    assert responses(h, run.id) == ["not here"]


def test_after_the_block_that_completed_it_there_is_nothing_to_refuse(h: Harness, flavour: Flavour) -> None:
    async def nested(ctx: Any) -> Any:
        kept: list[Any] = []

        async def body(c: Any) -> Any:
            kept.append(await c.queue.next("order", completable=True))
            await kept[0].complete()

        await ctx.try_block("block", body)
        await kept[0].refuse("late")

    run = h.start(flavour(nested))
    h.send(run, "order")
    error = h.finish(run).error
    assert error is not None
    assert "has been completed already" in error.message


@pytest.mark.parametrize(
    ("reason", "kind", "text"),
    [
        ("", "ValueError", "a refusal needs a reason"),
        (" \n", "ValueError", "a refusal needs a reason"),
        (None, "TypeError", "the reason of a refusal is text for the sender, not None"),
        ({"why": 1}, "TypeError", "the reason of a refusal is text"),
    ],
)
def test_the_reason_is_checked(h: Harness, flavour: Flavour, reason: Any, kind: str, text: str) -> None:
    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse(reason)

    run = h.start(flavour(refuses))
    h.send(run, "order")
    error = h.finish(run).error
    assert error is not None
    assert (error.type, text in error.message) == (kind, True)


def test_a_message_that_is_not_completable_cannot_be_refused(h: Harness, flavour: Flavour) -> None:
    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order")
        await message.refuse("no")

    run = h.start(flavour(refuses))
    h.send(run, "order")
    error = h.finish(run).error
    assert error is not None
    assert "was not received with completable=True, so it cannot be refused" in error.message


def test_hostile_reasons_arrive_as_they_were_given(h: Harness, flavour: Flavour) -> None:
    reason = "\x00\ud800 \u202e<b>'\"\\ \U0001f600" + "x" * 10_000

    async def refuses(ctx: Any) -> Any:
        message = await ctx.queue.next("order", completable=True)
        await message.refuse(reason)

    with pytest.raises(MessageRefusedError) as refused:
        h.start(flavour(refuses)).ask("order")
    assert refused.value.reason == reason
