"""Children, starts, keys and their options."""

from datetime import datetime, timedelta
from uuid import uuid4

from durable import AsyncContext, Context, workflow


def work(*args):
    return args


@workflow(name="starts.bill")
def bill(ctx: Context, order_id: int):
    return ctx.step("bill", work, order_id)


@workflow(name="starts.started")
def started(ctx: Context, order_id: int):
    bill.start(order_id)  # expect: W146
    bill.using(queue="slow").start(order_id)  # expect: W146
    bill.using(id=f"bill-{uuid4()}").start(order_id)  # expect: W103, W146
    bill.start_many([(1,), (2,)])  # expect: W146
    bill.using(key=f"order-{order_id}").start(order_id)  # expect: W146
    slow = bill.using(queue="slow")
    slow.start(order_id)  # expect: W146
    bill.using(id="the only one").start(order_id)  # expect: W146


@workflow(name="starts.astarted")
async def astarted(ctx: AsyncContext, order_id: int):
    await bill.astart(order_id)  # expect: W146


@workflow(name="starts.with_an_id")
def with_an_id(ctx: Context, order_id: int):
    bill.using(id=f"{ctx.run_id}-bill").start(order_id)
    bill.using(id=ctx.run_id + "-again").start(order_id)
    bill.start_many([(1,), (2,)], ids=[f"{ctx.run_id}-{n}" for n in (1, 2)])
    bill.using(id="the only one").start(7)
    ctx.step("start", lambda: bill.start(order_id).id)
    ctx.step("start again", start_bill, order_id)
    options = {"id": f"{ctx.run_id}-third"}
    bill.using(**options).start(order_id)


def start_bill(order_id):
    return bill.using(key=f"order-{order_id}").start(order_id).id


@workflow(name="starts.children")
def children(ctx: Context, order_id: int):
    ctx.child("bill", bill, order_id)
    ctx.child("slow", bill.using(queue="slow", id=f"bill-{order_id}"), order_id)
    ctx.child("keyed", bill.using(key="k"), order_id)
    ctx.child("replaces", bill.using(key="k", if_open="replace"), order_id)
    one = ctx.start_child("later", bill, order_id)
    ctx.start_child("left alone", bill.using(when_parent_ends="leave"), order_id)
    one.result("later done")
    ctx.child("by name", "starts.bill", order_id)


@workflow(name="starts.wrong_children")
def wrong_children(ctx: Context, order_id: int):
    ctx.child("a", bill.using(key="k", if_open="return"), order_id)  # expect: W161
    ctx.child("g", bill.using(if_open="replace"), order_id)  # expect: W161
    ctx.map("h", bill.using(key="k"), [(order_id,)])  # expect: W161
    ctx.child("b", bill.using(on_conflict="error"), order_id)  # expect: W161
    ctx.child("c", bill.using(id="the bill"), order_id)  # expect: W162
    ctx.child("e", bill.using(debounce=5, key="k"), order_id)  # expect: W161
    ctx.start_child("f", bill.using(when_parent_ends="abandon"), order_id)  # expect: W161
    ctx.start_child("d", bill, order_id)  # expect: W163
    ctx.step("done", work)


@workflow(name="starts.child_of_a_long_parent")
def child_of_a_long_parent(ctx: Context, order_id: int):
    ctx.start_child("d", bill, order_id)
    ctx.sleep("a while", "1 day")


@workflow(name="starts.wrong_options")
def wrong_options(ctx: Context, order_id: int):
    def start():
        bill.using(if_open="join", key="k").start(order_id)  # expect: W161
        bill.using(delay=5, debounce=5, key="k").start(order_id)  # expect: W161
        bill.using(about="shop.order:1", when_deleted="delete").start(order_id)  # expect: W161
        bill.using(about="shop.order:1", when_deleted="cancel").start(order_id)
        bill.using(if_open="return").start(order_id)  # expect: W161
        bill.using(id="x").start_many([(1,)])  # expect: W161
        bill.using(key="x").start_many([(1,)])  # expect: W161
        bill.start_or_send("queue", 1, order_id)  # expect: W161
        bill.using(key="k", if_open="error").start_or_send("queue", 1, order_id)  # expect: W161
        bill.using(deadline=datetime(2026, 5, 1)).start(order_id)  # expect: W111

    ctx.step("start", start)


@workflow(name="starts.wrong_ranks")
def wrong_ranks(ctx: Context, order_id: int):
    def start():
        bill.using(priority="").start(order_id)  # expect: W161
        bill.using(priority=86401).start(order_id)  # expect: W161
        bill.using(priority=-1e9).start(order_id)  # expect: W161
        bill.using(priority=True).start(order_id)  # expect: W161
        bill.using(share="").start(order_id)  # expect: W161
        bill.using(share="a\nb").start(order_id)  # expect: W161
        bill.using(share=7).start(order_id)  # expect: W161
        bill.using(share="a", weight=0).start(order_id)  # expect: W161
        bill.using(share="a", weight=1e4).start(order_id)  # expect: W161
        bill.using(share="a", weight="2").start(order_id)  # expect: W161

    ctx.step("start", start)
    ctx.child("urgent", bill.using(priority=-90000), order_id)  # expect: W161


@workflow(name="starts.right_ranks")
def right_ranks(ctx: Context, order_id: int, tenant: str):
    def start():
        bill.using(priority="p1").start(order_id)
        bill.using(priority="-1 hour").start(order_id)
        bill.using(priority=86400).start(order_id)
        bill.using(priority=-3600.5, share=tenant, weight=0.001).start(order_id)
        bill.using(priority=timedelta(hours=2), share=f"tenant-{tenant}", weight=1000).start(order_id)
        bill.using(priority=None, share=None, weight=None).start(order_id)
        bill.using(share=str(uuid4()), weight=order_id).start(order_id)

    ctx.step("start", start)


@workflow(name="starts.right_options")
def right_options(ctx: Context, order_id: int):
    def start():
        bill.using(if_open="replace", key="k").start(order_id)
        bill.using(debounce=5, at_most=60, keep="first", key="k").start(order_id)
        bill.start_many([(1,)], ids=["a"])
        bill.using(key="k").start_or_send("queue", 1, order_id)
        keyed = bill.using(if_open="return")
        keyed.using(key="k").start(order_id)
        bill.using(delay=5, deadline="30 days").start(order_id)

    ctx.step("start", start)


@workflow(name="starts.child_names")
def child_names(ctx: Context, orders: list):
    for order in orders:
        ctx.child("bill", bill, order)  # expect: W133
    runs = [ctx.start_child(f"bill {order}", bill, order) for order in orders]
    return [run.result(f"done {number}") for number, run in enumerate(runs)]


@workflow(name="starts.unknown_options")
def unknown_options(ctx: Context, order_id: int):
    ctx.child("a", bill.using(limit="slow"), order_id)  # expect: W161
    ctx.step("b", work, order_id, retries=3)  # expect: W161
    ctx.try_step("c", work, order_id=order_id)  # expect: W161
    options = {"max_retries": 3}
    ctx.step("d", work, order_id, **options, timeout="1 minute")
