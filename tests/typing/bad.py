"""Mistakes, one in each numbered line. Both type checkers report these lines and no others. Checked, never run."""

from __future__ import annotations

from decimal import Decimal

from durable import (
    AsyncContext,
    AsyncQueueMessage,
    Context,
    Handle,
    QueueMessage,
    RetryLater,
    StepOptions,
    get_run,
    step,
    workflow,
)
from tests.typing.good import apaid, charge, count, fulfil, one, paid, weigh, wrong_refund


def body(ctx: Context) -> None:
    ctx.step("charge", charge, "not an int", Decimal(1))  # 1 wrong argument type
    ctx.step("charge", charge, 1)  # 2 missing argument
    ctx.step("charge", charge, 1, Decimal(1), "n", 4)  # 3 too many arguments
    ctx.step("charge", charge, 1, Decimal(1), max_retires=3)  # 4 misspelt option
    ctx.step("charge", charge, 1, Decimal(1), max_retries="3")  # 5 wrong type of an option
    ctx.step("charge", charge, 1, Decimal(1), rollback=wrong_refund)  # 6 handler of another output
    x: int = ctx.step("charge", charge, 1, Decimal(1))  # 7 wrong result
    ctx.step("charge")  # 8 no function
    ctx.loop("n", one, "text")  # 9 wrong state
    fulfil.start("3")  # 10 wrong argument type
    fulfil.start()  # 11 missing argument
    fulfil.start(3, gfit=True)  # 12 misspelt keyword
    y: str = count.start(3).result()  # 13 wrong result
    fulfil.start_many([count.input(3)])  # 14 input of another workflow
    print(x, y)


@workflow  # 15 no context
def no_context(order_id: int) -> int:
    return order_id


@workflow(name="x")  # 16 no context
def no_context2(order_id: int) -> int:
    return order_id


def more(ctx: Context) -> None:
    ctx.try_step("t", charge, 1, Decimal(1), catch=["timeuot"])  # 17 misspelt kind


def kwonly(a: int, *, b: int) -> int:
    return a + b


def keywords(ctx: Context) -> None:
    ctx.step("kwonly", kwonly, 1)  # 18 b can never be given


async def in_async_code(ctx: AsyncContext) -> None:
    await ctx.step("charge", charge, "1", Decimal(1))  # 19 wrong argument type
    await ctx.step("charge", charge, 1, Decimal(1), rollback=wrong_refund)  # 20 handler of another output
    x: int = await ctx.step("weigh", weigh, 1)  # 21 wrong result
    await ctx.join("j", {"a": paid})  # 22 branch of a synchronous workflow
    message = await ctx.queue.next("approved", completable=True)
    message.complete("yes").upper()  # 23 not awaited
    print(x)


def and_more(ctx: Context, message: AsyncQueueMessage) -> None:
    ctx.try_block("b", paid, catch=["timeout"])  # 24 a kind of try_step
    ctx.join("j", {"a": apaid})["a"].upper()  # 25 branch of an async workflow
    ctx.race("r", {"a": paid}).value.hex()  # 26 wrong value
    fulfil.using(ids="x")  # 27 misspelt option
    fulfil.delay(3)  # 28 method of a task queue
    x: Handle[int] = get_run("x", of=fulfil)  # 29 handle of another output
    fulfil.input(3, 4)  # 30 too many arguments
    options: StepOptions[str] = {"max_retires": 3}  # 31 misspelt option
    fulfil(ctx, "3")  # 32 wrong argument type
    ctx.queue.send("done", 1, to=2)  # 33 no run
    print(x, options, message)


@step(max_retires=3)  # 34 misspelt option
def misspelt(order_id: int) -> int:
    return order_id


@step(rollback=wrong_refund)  # 35 handler of another output
def mismatched(order_id: int) -> str:
    return str(order_id)


def jittery(ctx: Context) -> None:
    ctx.step("charge", charge, 1, Decimal(1), retry_jitter="0.2")  # 36 wrong type of an option
    ctx.step("charge", charge, 1, Decimal(1), heartbeat=[1])  # 41 wrong type of an option
    fulfil.using(deadline=b"30 days")  # 40 wrong type of an option
    ctx.child("c", fulfil, "3")  # 41 wrong argument type
    ctx.start_child("d", fulfil, 3).result("e").upper()  # 42 wrong result
    fulfil.using(when_parent_ends="never")  # 43 wrong value of an option
    ctx.map("e", fulfil, [3])  # 44 no tuple of arguments
    ctx.map("f", fulfil, [fulfil.input("3")])  # 45 wrong argument type
    ctx.map("g", fulfil, [(3,)], at_once="10")  # 46 wrong type of an option
    ctx.map("h", fulfil, [(3,)], on_failure="skip")  # 47 wrong value of an option
    ctx.map("i", fulfil, [(3,)]).outputs[0].upper()  # 48 wrong output
    ctx.tag(stage=["paid"])  # 50 wrong type of a value
    fulfil.using(tags={"stage": None})  # 51 wrong type of a value
    ctx.tag("paid")  # 52 a value without a name
    raise RetryLater("30 s", "the bank is closed", False)  # 37 a keyword by position


async def refusing(ctx: AsyncContext) -> None:
    message: AsyncQueueMessage = await ctx.queue.next("order", completable=True)
    await message.refuse(3)  # 38 a reason that is no text
    message.refuse("out of stock").upper()  # 39 not awaited
    ctx.map("m", fulfil, [(3,)]).outputs.copy()  # 49 not awaited


def typed(ctx: Context) -> None:
    ctx.queue.next("approved", Decimal).body.upper()  # 53 no method of the body's type
    ctx.queue.next("approved", 3)  # 54 no type
    ctx.queue.next("approved", of=Decimal, nmes=["a"])  # 55 misspelt option
    message: QueueMessage[int] = ctx.queue.next("approved", str)  # 56 wrong type of the body
    ctx.queue.next_batch("approved", int)[0].body.upper()  # 57 no method of the body's type
    print(message)


@workflow(messages=["approved"])  # 58 no types
def untyped(ctx: Context) -> None: ...


async def typed_too(ctx: AsyncContext) -> None:
    message: AsyncQueueMessage[int] = await ctx.queue.next("approved", str)  # 59 wrong type of the body
    print(message)


async def twins() -> None:
    handle = await fulfil.astart("3")  # 60 wrong argument type
    await handle.acancel(rollbak=True)  # 61 misspelt option
    await handle.asend(3)  # 62 wrong type of the queue's name
    (await handle.arestart()).output.upper()  # 63 no method of the output's type
