"""Operations: awaited, on their own context, outside of steps, with control flow left alone."""

import asyncio
import contextlib
import functools
import time
from datetime import UTC, date, datetime, timedelta

from durable import AsyncContext, Break, Context, Continue, RetryLater
from durable.errors import ChildFailedError, DurableError, StepExhaustedError
from durable import step, workflow


def work(*args):
    return args


def undo(rollback, output):
    return output


class Handlers:
    @staticmethod
    def undo(rollback, output):
        return output

    def own(self, rollback, output):
        return output


@workflow(name="flow.in_step")
def in_step(ctx: Context):
    ctx.step("outer", lambda: ctx.step("inner", work))  # expect: W141

    def outer():
        ctx.sleep("nap", 5)  # expect: W141
        ctx.queue.send("a", 1)  # expect: W141
        return ctx.run_id

    ctx.step("second", outer)
    ctx.step("third", given_a_context, ctx)


def given_a_context(ctx):
    ctx.step("inner of third", work)  # expect: W141


@workflow(name="flow.run_id_in_step")
def run_id_in_step(ctx: Context):
    ctx.step("a", lambda: work(ctx.run_id, ctx.now()))


@workflow(name="flow.not_awaited")
async def not_awaited(ctx: AsyncContext):
    ctx.step("a", work)  # expect: W142
    result = ctx.step("b", work)  # expect: W142
    ctx.sleep("c", 5)  # expect: W142
    if result:
        await ctx.step("d", work)
    value = ctx.step("e", work)["id"]  # expect: W142
    message = await ctx.queue.next("f", completable=True)
    message.complete(value)  # expect: W142
    helper(ctx)  # expect: W142


async def helper(ctx):
    await ctx.step("help", work)


@workflow(name="flow.awaited")
async def awaited(ctx: AsyncContext):
    await ctx.step("a", work)
    waiting = ctx.step("b", work)
    await waiting
    message = await ctx.queue.next("f", completable=True)
    await message.complete(1)
    await helper(ctx)
    await ctx.join("both", {"a": lambda c: c.step("a", work), "b": helper})

    async def body(c):
        return Break(await c.step("x", work))

    return await ctx.loop("loop", body)


@workflow(name="flow.sync")
def sync(ctx: Context):
    ctx.step("a", work)
    message = ctx.queue.next("f", completable=True)
    message.complete(1)


@workflow(name="flow.outer_context")
def outer_context(ctx: Context):
    ctx.try_block("block", lambda c: ctx.step("a", work))  # expect: W143

    def body(inner):
        ctx.sleep("nap", 5)  # expect: W143
        return Break(inner.step("b", work))

    ctx.loop("loop", body)
    ctx.join("join", {"a": lambda c: ctx.step("d", work)})  # expect: W143

    def nested(c):
        return c.try_block("inner", lambda d: c.step("e", work))  # expect: W143

    ctx.race("race", {"a": nested})


@workflow(name="flow.own_context")
def own_context(ctx: Context):
    ctx.try_block("block", lambda c: c.step("a", work, ctx.run_id))

    def body(ctx):
        return Break(ctx.step("b", work))

    ctx.loop("loop", body)
    ctx.logger.info("done")


@workflow(name="flow.swallowed")
def swallowed(ctx: Context):
    try:
        ctx.step("a", work)
    except:  # expect: W144
        pass
    try:
        ctx.sleep("nap", 5)
    except BaseException as error:  # expect: W144
        ctx.logger.info(error)
    with contextlib.suppress(BaseException):  # expect: W144
        ctx.step("b", work)
    try:
        ctx.step("c", work)
    finally:
        return 1  # expect: W144


@workflow(name="flow.swallowed_in_tasks")
async def swallowed_in_tasks(ctx: AsyncContext):
    try:
        await ctx.step("a", work)
    except asyncio.CancelledError:  # expect: W144
        return
    except (ValueError, BaseException):  # expect: W144
        return


@workflow(name="flow.swallowed_in_a_helper")
def swallowed_in_a_helper(ctx: Context):
    try:
        quiet_helper(ctx)
    except BaseException:  # expect: W144
        return


def quiet_helper(ctx):
    ctx.step("helped", work)


@workflow(name="flow.let_through")
def let_through(ctx: Context):
    try:
        ctx.step("a", work)
    except Exception:
        ctx.step("tell", work)
    try:
        ctx.step("b", work)
    except StepExhaustedError as error:
        ctx.step("tell again", work, str(error))
    try:
        ctx.step("c", work)
    except BaseException:
        work()
        raise
    try:
        ctx.step("d", work)
    except BaseException as error:
        work()
        raise error
    with contextlib.suppress(ChildFailedError, DurableError):
        ctx.step("e", work)
    try:
        int("x")
    except:
        work()
    try:
        ctx.step("f", work)
    finally:
        work()


@workflow(name="flow.in_finally")
def in_finally(ctx: Context):
    try:
        ctx.step("a", work)
    finally:
        ctx.step("clean up", work)  # expect: W145
    try:
        ctx.step("b", work)
    except BaseException:
        ctx.step("undo", work)  # expect: W145
        raise


@workflow(name="flow.handlers")
def handlers(ctx: Context):
    def nested(rollback, output):
        return output

    ctx.rollback_checkpoint("from here")
    ctx.step("a", work, rollback=lambda rollback, output: None)  # expect: W147
    ctx.step("b", work, rollback=nested)  # expect: W147
    ctx.step("c", work, rollback=functools.partial(undo, 1))  # expect: W147
    ctx.step("d", work, rollback=Handlers().own)  # expect: W147


@step(rollback=lambda rollback, output: None)
def decorated(order_id):
    return order_id


@workflow(name="flow.decorated_handler")
def decorated_handler(ctx: Context):
    ctx.rollback_checkpoint("from here")
    ctx.step(decorated, 1)  # expect: W147


@workflow(name="flow.importable_handlers")
def importable_handlers(ctx: Context, handler):
    ctx.rollback_checkpoint("from here")
    ctx.step("a", work, rollback=undo)
    ctx.step("b", work, rollback=Handlers.undo)
    ctx.step("c", work, rollback=None)
    ctx.step("d", work, rollback=handler)


@workflow(name="flow.naive")
def naive(ctx: Context):
    ctx.sleep_until("noon", datetime(2026, 5, 1, 12))  # expect: W111
    launch = datetime(2026, 5, 1)
    ctx.sleep_until("launch", launch + timedelta(days=1))  # expect: W111
    ctx.queue.next("a", until=launch)  # expect: W111
    if ctx.now() > launch:  # expect: W111
        ctx.step("late", work)
    left = launch - ctx.now()  # expect: W111
    ctx.step("left", work, left)


@workflow(name="flow.aware")
def aware(ctx: Context, when: datetime):
    ctx.sleep_until("noon", datetime(2026, 5, 1, 12, tzinfo=UTC))
    ctx.sleep_until("given", when)
    ctx.sleep_until("soon", ctx.now() + timedelta(hours=1))
    ctx.sleep_until("made aware", datetime(2026, 5, 1).replace(tzinfo=UTC))
    day = date(2026, 5, 1)
    ctx.step("day", work, day, datetime(2026, 5, 1))
    if ctx.now().date() > day:
        ctx.step("late", work)


@workflow(name="flow.returned")
async def returned(ctx: AsyncContext):
    return ctx.step("a", work)  # expect: W142


@workflow(name="flow.returned_by_bodies")
async def returned_by_bodies(ctx: AsyncContext):
    def plain(c):
        return c.step("a", work)

    return await ctx.join("both", {"a": plain, "b": lambda c: c.step("b", work)})


@workflow(name="flow.retry_between_steps")
def retry_between_steps(ctx: Context):
    if not ctx.step("is ready", work):
        raise RetryLater("5 minutes")  # expect: W148


def ask():
    raise RetryLater("5 minutes")


@workflow(name="flow.retry_in_a_step")
def retry_in_a_step(ctx: Context):
    ctx.step("ask", ask)


@workflow(name="flow.undecided")
def undecided(ctx: Context):
    def one(c, number):  # expect: W149
        c.step("work", work)
        if number > 3:
            return Break(number)

    def two(c, number):  # expect: W149
        c.step("work", work)

    ctx.loop("one", one, state=1)
    ctx.loop("two", two, 1)


@workflow(name="flow.decided")
def decided(ctx: Context):
    def one(c, number):
        if number > 3:
            return Break(number)
        return Continue(number + 1)

    def two(c, number):
        try:
            c.step("work", work)
        except ValueError:
            return Break(number)
        else:
            return Continue(number + 1)

    def three(c, kind):
        match kind:
            case "a":
                return Continue("b")
            case "b":
                return Break(kind)

    def four(c, kind):
        if kind == "a":
            return Continue("b")
        elif kind == "b":
            return Break(kind)

    def five(c):
        c.step("work", work)

    def six(c, number):
        while True:
            return Break(number)

    def seven(c, number):
        if number > 3:
            return Break(number)
        raise ValueError(number)

    ctx.loop("one", one, state=1)
    ctx.loop("two", two, state=1)
    ctx.loop("three", three, state="a")
    ctx.loop("four", four, state="a")
    ctx.loop("five", five)
    ctx.loop("six", six, state=1)
    ctx.loop("seven", seven, state=1)


@workflow(name="flow.bound")
async def bound(ctx: AsyncContext):
    one = ctx.step("a", work)  # expect: W142
    two: object = ctx.step("b", work)  # expect: W142
    three = four = ctx.step("c", work)  # expect: W142
    five = ctx.step("d", work)
    six = ctx.step("e", work)
    print(two)
    await five
    await asyncio.gather(six)  # expect: W107
    return {"one": one}


def reads_the_clock():
    return time.time()  # expect: W101


@workflow(name="flow.one_caller")
def one_caller(ctx: Context):
    ctx.step("a", work, reads_the_clock())


@workflow(name="flow.other_caller")
def other_caller(ctx: Context):
    ctx.step("a", work, reads_the_clock())
