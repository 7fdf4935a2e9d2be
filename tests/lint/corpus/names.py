"""Names: steady, and unique in their scope."""

import functools
import itertools
import os
import uuid
from datetime import timedelta

from django.utils import timezone
from django.utils.text import slugify

from durable import AsyncContext, Break, Context, Continue, step, workflow

ticks = itertools.count()
PREFIX = "order"
serial = 0


def work(*args):
    return args


def next_serial():
    global serial
    serial += 1
    return serial


@workflow(name="names.unsteady")
def unsteady(ctx: Context, order_id: int):
    ctx.step(f"a {timezone.now()}", work)  # expect: W131
    ctx.step(f"b {uuid.uuid4().hex}", work)  # expect: W131
    ctx.step("c " + str(uuid.uuid4()), work)  # expect: W131
    ctx.step(f"d {next(ticks)}", work)  # expect: W131
    ctx.step(f"e {hash('x')}", work)  # expect: W131
    ctx.step(f"f {id(work)}", work)  # expect: W131
    ctx.step("g {}".format(os.getpid()), work)  # expect: W131
    ctx.step("h %s" % os.environ["HOST"], work)  # expect: W131
    ctx.sleep(f"i {timezone.now()}", 5)  # expect: W131
    ctx.queue.next(f"j {timezone.now():%H}", names=["a"])  # expect: W131


@workflow(name="names.unsteady_at_a_distance")
def unsteady_at_a_distance(ctx: Context):
    stamp = timezone.now().isoformat()  # expect: W101
    name = f"import {stamp}"
    ctx.step(name, work)  # expect: W131
    key = uuid.uuid4()  # expect: W103
    short = str(key)[:8]
    ctx.step(f"b {short}", work)  # expect: W131
    ctx.step(f"c {next_serial()}", work)  # expect: W131


@workflow(name="names.steady")
def steady(ctx: Context, order_id: int, title: str, lines: list):
    ctx.step(f"charge {order_id}", work)
    ctx.step(f"{PREFIX} {slugify(title)}", work)
    found = ctx.step("find", work)
    ctx.step(f"use {found['id']}", work)
    for number, line in enumerate(lines):
        ctx.step(f"line {number} {line['sku']}", work)
    ctx.step(f"day {ctx.now():%d}", work)
    ctx.step(f"draw {ctx.random.randint(1, 6)} {ctx.uuid4()}", work)
    ctx.step(f"run {ctx.run_id}", work)
    ctx.step(f"in {timedelta(hours=3)}", work)
    ctx.step(f"at {ctx.step('when', timezone.now)}", work)


@workflow(name="names.duplicate")
def duplicate(ctx: Context, order_id: int):
    ctx.step("work", work)
    ctx.step("work", work)  # expect: W132
    ctx.sleep("nap", 5)
    ctx.step("nap", work)  # expect: W132
    ctx.queue.next("answer")
    ctx.queue.next("answer")  # expect: W132
    name = "named"
    ctx.step(name, work)
    ctx.step("named", work)  # expect: W132
    ctx.step("pre" + "fix", work)
    ctx.step("prefix", work)  # expect: W132


@workflow(name="names.duplicate_after_a_branch")
def duplicate_after_a_branch(ctx: Context, is_big: bool):
    if is_big:
        ctx.step("check", work)
    ctx.step("check", work)  # expect: W132


@workflow(name="names.duplicate_in_handler")
def duplicate_in_handler(ctx: Context):
    try:
        ctx.step("send", work)
    except ValueError:
        ctx.step("send", work)  # expect: W132


@workflow(name="names.exclusive")
def exclusive(ctx: Context, kind: str):
    if kind == "a":
        ctx.step("work", work, 1)
    elif kind == "b":
        ctx.step("work", work, 2)
    else:
        ctx.step("work", work, 3)
    match kind:
        case "a":
            ctx.sleep("nap", 1)
        case _:
            ctx.sleep("nap", 2)
    ctx.step("one" if kind == "a" else "other", work)
    value = ctx.step("x", work) if kind == "a" else ctx.step("x", work, 2)
    if kind == "c":
        return ctx.step("end", work)
    if kind == "d":
        ctx.step("end", work)
        raise ValueError(kind)
    ctx.step("end", work, value)


@workflow(name="names.scopes")
def scopes(ctx: Context):
    ctx.step("work", work)
    ctx.try_block("block", lambda c: c.step("work", work))
    ctx.loop("loop", lambda c: Break(c.step("work", work)))
    ctx.join("join", {"a": lambda c: c.step("work", work), "b": lambda c: c.step("work", work)})
    ctx.race("race", {"a": lambda c: c.step("work", work), "b": lambda c: c.sleep("work", 5)})


@workflow(name="names.duplicate_in_a_branch")
def duplicate_in_a_branch(ctx: Context):
    def label(c):
        c.step("buy", work)
        return c.step("buy", work)  # expect: W132

    ctx.join("join", {"a": label, "b": label})


@workflow(name="names.unnamed_numbers")
def unnamed_numbers(ctx: Context):
    ctx.queue.send("a", 1)
    ctx.queue.send("a", 2)
    ctx.rollback_checkpoint("from here")
    ctx.compensate("a")
    ctx.compensate("a")


@step(name="charge", max_retries=5)
def charge(order_id):
    return order_id


@step
def ship(order_id):
    return order_id


@workflow(name="names.decorated")
def decorated(ctx: Context, order_id: int):
    ctx.step(charge, order_id)
    ctx.step(ship, order_id)
    ctx.step("charge again", charge, order_id)


@workflow(name="names.decorated_twice")
def decorated_twice(ctx: Context, order_id: int):
    ctx.step(charge, order_id)
    ctx.step(ship, order_id)
    ctx.step("ship", work)  # expect: W132
    ctx.step(charge, order_id)  # expect: W132


@workflow(name="names.in_a_loop")
def in_a_loop(ctx: Context, orders: list, prefix: str):
    for order in orders:
        ctx.step("work", work, order)  # expect: W133
    for order in orders:
        ctx.step(f"{prefix} work", work, order)  # expect: W133
    while ctx.step("more", work):  # expect: W133
        pass
    [ctx.step("each", work, order) for order in orders]  # expect: W133
    for attempt in range(3):
        result = ctx.try_step("attempt", work, attempt)  # expect: W133
        if result.ok:
            break
    for order in orders:
        ctx.step(charge, order)  # expect: W133


@workflow(name="names.in_a_loop_right")
def in_a_loop_right(ctx: Context, orders: list):
    for order in orders:
        ctx.step(f"work {order}", work, order)
    for number in range(3):
        name = f"number {number}"
        ctx.step(name, work)
    for order in orders:
        if order["big"]:
            ctx.step("the first big one", work, order)
            break
    for order in orders:
        ctx.queue.send("order", order)
        ctx.try_block(f"block {order}", lambda c, order=order: c.step("work", work, order))
    while True:
        ctx.step("once", work)
        break
    page = 1
    while page:
        page = ctx.step(f"page {page}", work, page)
    for order in orders:
        if order["bad"]:
            ctx.step("refuse", work)
            return None
    return {order: ctx.step(f"fetch {order}", work, order) for order in orders}


@workflow(name="names.endless")
def endless(ctx: Context):
    number = 0
    while True:  # expect: W134
        number += 1
        ctx.step(f"tick {number}", work)
        ctx.sleep(f"nap {number}", "1 day")


@workflow(name="names.loop")
def looped(ctx: Context):
    def one(c: Context, number: int):
        c.step("tick", work)
        c.sleep("nap", "1 day")
        return Continue(number + 1)

    ctx.loop("days", one, state=1)


@workflow(name="names.captured")
def captured(ctx: Context, orders: list):
    branches = {}
    for order in orders:
        branches[f"order {order}"] = lambda c: c.step("buy", work, order)  # expect: W135
    ctx.join("all", branches)
    ctx.join("again", {str(order): lambda c: c.step("buy", work, order) for order in orders})  # expect: W135
    handlers = []
    for order in orders:
        handlers.append(lambda: work(order))  # expect: W135
    for order in orders:

        def body(c):  # expect: W135
            return c.step("buy", work, order)

        branches[f"body {order}"] = body
    ctx.race("third", dict((order, lambda c: c.step("buy", work, order)) for order in orders))  # expect: W135


@workflow(name="names.bound")
def bound(ctx: Context, orders: list):
    branches = {}
    for order in orders:
        branches[f"order {order}"] = lambda c, order=order: c.step("buy", work, order)
    ctx.join("all", branches)
    ctx.join("again", {str(order): functools.partial(buy, order) for order in orders})
    for order in orders:
        ctx.step(f"now {order}", lambda: work(order))
        ctx.try_block(f"block {order}", lambda c: c.step("buy", work, order))
        ctx.join(f"join {order}", {"a": lambda c: c.step("a", work, order), "b": lambda c: c.step("a", work)})
    orders.sort(key=lambda each: each["id"])  # expect: W123
    ranked = sorted(orders, key=lambda each: each["id"])
    for order in ranked:
        best = max(orders, key=lambda each: each["id"] - order["id"])
        ctx.step(f"best {order['id']}", work, best)


def buy(order, c: Context):
    return c.step("buy", work, order)


@workflow(name="names.async_loop")
async def async_loop(ctx: AsyncContext, pages: list):
    for page in pages:
        await ctx.step("fetch", work, page)  # expect: W133
    for page in pages:
        await ctx.step(f"get {page}", work, page)


@workflow(name="names.global_counter")
def global_counter(ctx: Context):
    next_serial()
    ctx.step(f"number {serial}", work)  # expect: W131, W122


@workflow(name="names.helper_called_twice")
def helper_called_twice(ctx: Context, order_id: int):
    notify(ctx, order_id)
    notify(ctx, order_id)  # expect: W132
    named(ctx, "a", order_id)
    named(ctx, "b", order_id)
    named(ctx, "a", order_id)  # expect: W132


@workflow(name="names.helper_in_a_loop")
def helper_in_a_loop(ctx: Context, orders: list):
    for order in orders:
        shared(ctx, order)
        named(ctx, f"order {order}", order)


def notify(ctx, order_id):
    ctx.step("notify", work, order_id)


def named(ctx, name, order_id):
    ctx.step(name, work, order_id)


def shared(ctx, order_id):
    ctx.step("shared", work, order_id)  # expect: W133


@workflow(name="names.after_a_loop_over_a_set")
def after_a_loop_over_a_set(ctx: Context, names: list, is_all: bool):
    chosen = set(names)
    if is_all:
        for name in list(chosen)[:2]:  # expect: W108
            ctx.step(f"some {name}", work)  # expect: W131
    else:
        for name in sorted(chosen):
            ctx.step(f"each {name}", work)
    for name in sorted(chosen):
        ctx.step(f"last {name}", work)


@workflow(name="names.bound_in_one_arm")
def bound_in_one_arm(ctx: Context, names: list, is_first: bool):
    name = sorted(names)[0]
    if is_first:
        for name in set(names):
            print(name)
        name = names[-1]
        ctx.step(f"first {name}", work)
    for other in set(names):
        name = other
    ctx.step(f"unknown {name}", work)  # expect: W131


class Plain:
    pass


class Named(Plain):
    def __str__(self):
        return "named"


@workflow(name="names.addresses")
def addresses(ctx: Context):
    plain = Plain()
    named = Named()
    ctx.step(f"a {plain}", work)  # expect: W131
    ctx.step(f"b {object()}", work)  # expect: W131
    ctx.step(str(plain), work)  # expect: W131
    ctx.step("c %s" % work, work)  # expect: W131
    ctx.step("d {}".format(plain), work)  # expect: W131
    ctx.step(f"e {named}", work)
    ctx.step(f"f {named!r}", work)  # expect: W131
    ctx.step(f"g {Plain}", work)
    ctx.step(f"h {work.__name__} {plain.__class__}", work)
