"""Workflows whose findings are in the modules they call."""

from durable import Context, workflow

from . import helpers
from .helpers import Tools, load, notify
from .helpers import pause as rest


@workflow
def fulfil(ctx: Context, order_id: int):
    ctx.step("load", load, order_id)
    helpers.stamp()
    rest()
    helpers.too_deep()
    notify(ctx, order_id)


@workflow
def through_the_package(ctx: Context, order_id: int):
    from . import exported_stamp

    ctx.step(f"at {exported_stamp()}", load, order_id)  # expect: W131


@workflow
def methods(ctx: Context, order_id: int):
    tools = Tools(ctx)
    tools.run(ctx, order_id)
    ctx.try_block("block", Tools.body)


@workflow
def steps_are_the_border(ctx: Context, order_id: int):
    ctx.step("a", helpers.load, order_id)
    ctx.step("b", lambda: helpers.load(order_id).save())
