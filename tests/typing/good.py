"""Code that both type checkers accept: what they make of the public API. Checked, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, assert_type

from durable import (
    AsyncContext,
    AsyncQueueMessage,
    BlockResult,
    Break,
    Child,
    Context,
    Continue,
    Handle,
    MapChild,
    MapResult,
    QueueMessage,
    RaceResult,
    RetryLater,
    RollbackContext,
    StepOptions,
    StepResult,
    aget_run,
    current_step,
    get_run,
    step,
    workflow,
)
from durable.models import Run
from durable.testing import Harness

Q = ParamSpec("Q")
V = TypeVar("V")


@dataclass(frozen=True)
class Approval:
    by: int


def _takes(message: QueueMessage[Approval]) -> int:
    return message.body.by


def charge(order_id: int, amount: Decimal, note: str = "") -> str:
    return f"{order_id} {amount} {note}"


async def weigh(order_id: int) -> float:
    return float(order_id)


def saving() -> None:
    step = current_step()
    assert_type(step.saved, Any)
    step.save({"row": 7})


def limited(retry_after: str | None) -> None:
    raise RetryLater(retry_after, "429 Too Many Requests", counts=False)


def closed(until: datetime) -> None:
    raise RetryLater(until if until.tzinfo else timedelta(hours=1))


def refund(rollback: RollbackContext, payment: str) -> None: ...


def wrong_refund(rollback: RollbackContext, payment: int) -> None: ...


def log_any(rollback: RollbackContext, output: object) -> None: ...


def unpack(rollback: RollbackContext, parcel: bytes) -> None: ...


@step(max_retries=1, timeout="10 s", rollback=refund)
def book(order_id: int) -> str:
    return f"booked {order_id}"


@step(name="pack", rollback=unpack)
async def pack(order_id: int) -> bytes:
    return bytes(order_id)


@step
def label(order_id: int, printer: str = "default") -> bytes:
    return f"{order_id} {printer}".encode()


def one(c: Context, number: int) -> Break[str] | Continue[int]:
    return Break("x") if number > 3 else Continue(number + 1)


def until_paid(c: Context) -> Break[int] | None:
    return Break(3) if c.step("is paid", bool, 1) else None


def paid(c: Context) -> str:
    return c.step("pay", charge, 1, Decimal(1))


@workflow(name="shop.fulfil")
def fulfil(ctx: Context, order_id: int, *, gift: bool = False) -> dict[str, str]:
    assert_type(ctx.step("charge", charge, order_id, Decimal(3)), str)
    assert_type(ctx.step("charge", charge, order_id, Decimal(3), "note", max_retries=5, rollback=refund), str)
    assert_type(ctx.step("charge", charge, order_id, Decimal(3), rollback=log_any, timeout=None), str)
    assert_type(ctx.step("charge", charge, order_id, Decimal(3), retry_jitter=0.2, heartbeat="1 min"), str)
    assert_type(ctx.step("weigh", weigh, order_id), float)
    assert_type(ctx.step("partial", partial(charge, 1), Decimal(1)), str)
    assert_type(ctx.step(book, 1, timeout="10 s"), str)
    assert_type(ctx.step(pack, 1), bytes)
    assert_type(ctx.step(label, 1, "big"), bytes)
    assert_type(ctx.step("again", label, 1), bytes)
    assert_type(ctx.try_step("t", charge, 1, Decimal(1), catch=["timeout"], atomic=True), StepResult[str])
    assert_type(ctx.try_step("w", weigh, 1, catch="exhausted"), StepResult[float])
    assert_type(ctx.try_step(book, 1).value, str | None)
    assert_type(ctx.try_block("b", paid, catch=["step"]), BlockResult[str])
    assert_type(ctx.loop("n", one, 1), str)
    assert_type(ctx.loop("n", one, state=1, history_prune_interval=5), str)
    assert_type(ctx.loop("p", until_paid, history_size=3), int)
    assert_type(ctx.join("j", {"a": paid, "b": paid}, at_once=2), dict[str, str])
    assert_type(ctx.race("r", {"a": paid}), RaceResult[str])
    message = ctx.queue.next("approved", timeout="1 day", completable=True)
    assert_type(message, QueueMessage)
    assert_type(message.sent_at.year, int)
    message.complete("yes")
    message.refuse("out of stock")
    typed = ctx.queue.next("approved", Approval, timeout="1 day", completable=True)
    assert_type(typed, QueueMessage[Approval])
    assert_type(typed.body.by, int)
    typed.complete("yes")
    assert_type(ctx.queue.next("verdict", of=Approval, names=["approved", "rejected"]).body, Approval)
    assert_type(ctx.queue.next("prices", list[Decimal]).body, list[Decimal])
    assert_type(ctx.queue.next_batch("approved", Approval, count=3), list[QueueMessage[Approval]])
    assert_type(ctx.queue.next_batch("b", ["approved"], 3), list[QueueMessage])
    ctx.queue.next("either", Approval | None)
    _takes(typed)
    assert_type(fulfil.using(deadline="30 days", work_limit=timedelta(hours=1)).start(3), Handle[dict[str, str]])
    assert_type(fulfil.using(tags={"tenant": "acme", "order": 42, "sum": Decimal(1)}).start(3).tags, dict[str, str])
    ctx.status("paid", done=1, of=2.5, eta=message.sent_at)
    ctx.tag(stage="paid", order=order_id, gift=gift, at=message.sent_at)
    ctx.queue.send("done", {"order": order_id}, to=get_run("x"))
    ctx.queue.send("done", None, to="x")
    options: StepOptions[str] = {"max_retries": 3, "rollback": refund}
    assert_type(ctx.step("charge", charge, 1, Decimal(1), **options), str)
    return {}


async def aone(c: AsyncContext, number: int) -> Break[str] | Continue[int]:
    return Break("x") if number > 3 else Continue(await c.step("add", int, number + 1))


async def apaid(c: AsyncContext) -> str:
    return await c.step("pay", charge, 1, Decimal(1))


@workflow(messages={"approved": Approval, "cancel": None, "either": Approval | None})
def declaring(ctx: Context, order_id: int) -> str:
    return ctx.queue.next("cancel").name


@workflow
async def count(ctx: AsyncContext, upto: int) -> int:
    assert_type(await ctx.step("weigh", weigh, upto), float)
    assert_type(await ctx.step("charge", charge, upto, Decimal(1), rollback=refund), str)
    assert_type(await ctx.step(book, 1), str)
    assert_type(await ctx.step(pack, 1), bytes)
    assert_type(await ctx.try_step("weigh", weigh, upto), StepResult[float])
    assert_type(await ctx.try_block("b", apaid), BlockResult[str])
    assert_type(await ctx.loop("n", aone, 1), str)
    assert_type(await ctx.join("j", {"a": apaid, "b": apaid}, at_once=2), dict[str, str])
    assert_type(await ctx.race("r", {"a": apaid}), RaceResult[str])
    message = await ctx.queue.next("approved", completable=True)
    assert_type(message, AsyncQueueMessage)
    assert_type(message.complete("yes"), Awaitable[None])
    await message.complete("yes")
    typed = await ctx.queue.next("approved", Approval)
    assert_type(typed, AsyncQueueMessage[Approval])
    assert_type(typed.body.by, int)
    await typed.refuse("too late")
    assert_type(await ctx.queue.next_batch("approved", of=Approval), list[AsyncQueueMessage[Approval]])
    return 3


@workflow
def parent(ctx: Context) -> None:
    assert_type(fulfil(ctx, 1, gift=True), dict[str, str])
    assert_type(ctx.child("c", fulfil.using(queue="slow", when_parent_ends="leave"), 1, gift=True), dict[str, str])
    assert_type(ctx.child("d", count, 1), int)
    assert_type(ctx.child("e", "shop.fulfil", 1), Any)
    started = ctx.start_child("f", fulfil, order_id=1)
    assert_type(started, Child[dict[str, str]])
    assert_type(started.result("g", timeout="1 day"), dict[str, str])
    assert_type(started.handle, Handle[dict[str, str]])
    assert_type(
        ctx.map("h", fulfil, [fulfil.input(1, gift=True)], at_once=5, when_held="free"), MapResult[dict[str, str]]
    )
    assert_type(ctx.map("i", fulfil.using(queue="slow"), [(1,), (2,)]), MapResult[dict[str, str]])
    assert_type(ctx.map("j", count, ((each,) for each in range(3)), on_failure="finish").outputs, list[int])
    assert_type(ctx.map("k", "shop.fulfil", [(1,)]), MapResult[Any])
    for each in ctx.map("l", count, [(1,)]):
        assert_type(each, MapChild[int])
        assert_type(each.output, int | None)
        assert_type(each.state, Literal["completed", "failed", "cancelled"])


@workflow
async def async_parent(ctx: AsyncContext) -> None:
    assert_type(await count(ctx, 1), int)
    assert_type(await ctx.child("c", fulfil, 1), dict[str, str])
    assert_type(await (await ctx.start_child("d", count, 1)).result("e"), int)
    assert_type(await ctx.map("f", count, [(1,)], at_once=5), MapResult[int])
    assert_type((await ctx.map("g", fulfil, [fulfil.input(1)])).failed, list[MapChild[dict[str, str]]])


assert_type(declaring.start(3), Handle[str])
assert_type(fulfil.start(3), Handle[dict[str, str]])
assert_type(fulfil.using(id="x").start(3, gift=True).result(), dict[str, str])
assert_type(fulfil.using(id="x").using(delay="1 h").start(3).restart(), Handle[dict[str, str]])
assert_type(fulfil.start(3).output, dict[str, str] | None)
assert_type(count.start(3).result(), int)
assert_type(get_run("x", count).result(), int)
assert_type(get_run("x", of=fulfil), Handle[dict[str, str]])
assert_type(get_run("x"), Handle[Any])
assert_type(fulfil.start_many([fulfil.input(1), fulfil.input(2, gift=True)]), list[Handle[dict[str, str]]])
assert_type(count.start_many([(1,), (2,)], ids=["a", "b"]), list[Handle[int]])


async def from_async() -> None:
    handle = await fulfil.astart(3)
    assert_type(handle, Handle[dict[str, str]])
    assert_type(await handle.aresult(), dict[str, str])
    assert_type(await handle.arestart(changes={"upto": 4}), Handle[dict[str, str]])
    assert_type(await handle.areplay("charge", in_place=True), Handle[dict[str, str]])
    assert_type(await handle.asend("approved", 3, id="x"), str)
    assert_type(await handle.achildren(state="failed"), list[Handle[Any]])
    await handle.awake(end_sleeps=True)
    assert_type(await aget_run("x", of=count), Handle[int])
    assert_type(await count.astart_many([count.input(1)]), list[Handle[int]])


def in_a_test(h: Harness) -> None:
    assert_type(h.start(fulfil.using(id="x"), 3, gift=True), Handle[dict[str, str]])
    h.start(fulfil, 3, id="x")
    h.start(paid)


def any_run(run: Handle) -> str:
    return run.state


def any_int_run(run: Handle[int]) -> str:
    return any_run(run)


# -- what else may be a step's function


def many(*ids: int) -> list[int]:
    return list(ids)


def kwopt(a: int, *, b: int = 1) -> int:
    return a + b


class Bank:
    def pay(self, order: int) -> bytes:
        return bytes(order)


class Parcel:
    def __init__(self, weight: int) -> None: ...


def timed(fn: Callable[Q, V]) -> Callable[Q, V]:
    return fn


@timed
def timed_pay(order: int) -> bytes:
    return bytes(order)


def functions(ctx: Context) -> None:
    assert_type(ctx.step("many", many, 1, 2, 3), list[int])
    assert_type(ctx.step("kwopt", kwopt, 1), int)
    assert_type(ctx.step("method", Bank().pay, 1), bytes)
    assert_type(ctx.step("class", Parcel, 1), Parcel)
    assert_type(ctx.step("decorated", timed_pay, 1), bytes)
    assert_type(ctx.step("lambda", lambda x: x + 1, 1), int)
    assert_type(ctx.step("builtin", len, "abc"), int)


def runs_of_a_tenant() -> list[str]:
    found = Run.objects.tagged(tenant="acme")
    return [run.id for run in found.open().newest_first()[:10]]
