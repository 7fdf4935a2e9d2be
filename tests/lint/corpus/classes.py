"""Workflows and helpers in classes and functions, and helpers of several kinds."""

import random
import time
import uuid
from datetime import datetime
from functools import partial

from durable import AsyncContext, Break, Context, Continue, workflow


def work(*args):
    return args


class Base:
    def inherited(self):
        return time.time()  # expect: W101


class Flow(Base):
    @staticmethod
    @workflow(name="classes.static")
    def static(ctx: Context):
        ctx.step("work", work)
        ctx.step("work", work)  # expect: W132

    def charge(self, ctx):
        ctx.step("charge", work)

    def clock(self):
        return datetime.now()  # expect: W101


@workflow(name="classes.uses_methods")
def uses_methods(ctx: Context):
    flow = Flow()
    flow.charge(ctx)
    flow.clock()
    flow.inherited()


@workflow(name="classes.partial_body")
def partial_body(ctx: Context, orders: list):
    ctx.join("all", {str(order): partial(one_order, order) for order in orders})
    ctx.loop("loop", partial(iteration, 3), state=0)


def one_order(order, c: Context):
    time.time()  # expect: W101
    return c.step("buy", work, order)


def iteration(limit, c: Context, state: int):
    c.step("work", work)
    if state > limit:
        return Break(state)
    return Continue(state + 1)


def factory():
    def helper(ctx):
        ctx.step("helped", work, random.random())  # expect: W102

    @workflow(name="classes.nested")
    def nested(ctx: Context):
        helper(ctx)
        ctx.try_block("block", helper)

    return nested


def plain(ctx: Context):
    ctx.step("step", work)
    return uuid.uuid4()  # expect: W103


wrapped = workflow(name="classes.wrapped")(plain)


@workflow(name="classes.calls_another")
def calls_another(ctx: Context):
    wrapped(ctx)


@workflow(name="classes.aliases")
def aliases(ctx: Context):
    inbox = ctx.queue
    do = ctx.step
    inbox.next("a")
    inbox.next("a")  # expect: W132
    do("b", work)
    do("b", work)  # expect: W132


@workflow(name="classes.recursive")
def recursive(ctx: Context, depth: int):
    climb(ctx, depth)


def climb(ctx, depth):
    if depth:
        ctx.step(f"at {depth}", work)
        climb(ctx, depth - 1)


@workflow(name="classes.lambdas")
def lambdas(ctx: Context, orders: list):
    stamp = lambda: time.time()  # expect: W101
    ranked = sorted(orders, key=lambda order: random.random())  # expect: W102
    stamp()
    list(map(lambda order: ctx.step(f"map {order}", work), ranked))


@workflow(name="classes.async_helpers")
async def async_helpers(ctx: AsyncContext):
    async def body(c: AsyncContext, state: int):
        await help_along(c)
        return Break(state)

    await ctx.loop("loop", body, state=1)
    await help_along(ctx)


async def help_along(ctx: AsyncContext):
    await ctx.step("helped", work)


@workflow(name="classes.unknown_things")
def unknown_things(ctx: Context, service, *args, **options):
    service.charge(ctx.run_id)
    service.objects.get(1)
    options["a"](args)
    for each in service:
        ctx.step(f"each {each}", service.run, each)
    first, *rest = args
    ctx.step("first", first, rest)


@workflow(name="classes.walrus")
def walrus(ctx: Context):
    if (found := ctx.step("find", work)) and found["x"]:
        ctx.step(f"use {found['x']}", work)
    if (now := time.time()) > 5:  # expect: W101
        ctx.step(f"at {now}", work)  # expect: W131


class Mails:
    def __init__(self, ctx):
        self.ctx = ctx

    def send(self, name):
        self.ctx.step("send", work, name)


class Orders(Base):
    def __init__(self, ctx: Context, orders: list):
        self.ctx = ctx
        self.orders = orders
        self.mails = Mails(ctx)

    def run(self):
        for order in self.orders:
            self.ctx.step(f"buy {order}", work, order)
            self.ctx.step("pack", work, order)  # expect: W133
        self.mails.send("customer")

    def in_a_body(self):
        self.ctx.loop("days", self.day)

    def day(self, c):
        self.ctx.sleep("night", "8 hours")  # expect: W143
        return Break()


@workflow(name="classes.with_a_context")
def with_a_context(ctx: Context, orders: list):
    Orders(ctx, orders).run()


@workflow(name="classes.in_a_body")
def in_a_body(ctx: Context):
    Orders(ctx, []).in_a_body()


class Switching:
    def __init__(self, ctx):
        self.ctx = ctx

    def use(self, c):
        self.ctx = c
        self.ctx.step("work", work)


@workflow(name="classes.an_attribute_of_two_contexts")
def an_attribute_of_two_contexts(ctx: Context):
    switching = Switching(ctx)
    ctx.join("both", {"a": lambda c: switching.use(c), "b": lambda c: switching.use(c)})


class Basket:
    def __init__(self):
        self.items = []
        self.count = 0
        self._token = None

    def token(self):
        if self._token is None:
            self._token = work("token")
        return self._token

    def add(self, item):
        self.items.append(item)  # expect: W121
        self.count += 1  # expect: W121
        return self.token()


class SmallBasket(Basket):
    pass


@workflow(name="classes.step_of_an_object")
def step_of_an_object(ctx: Context, item: str):
    basket = SmallBasket()
    ctx.step("add", basket.add, item)
    if basket.count > 1:
        ctx.step("many", work, basket.items)


@workflow(name="classes.client_that_remembers")
def client_that_remembers(ctx: Context, item: str):
    client = Basket()
    ctx.step("token", client.token)
    ctx.step("again", client.token)
    basket = Basket()
    basket.add(item)
    ctx.step("count", work, basket.count)
