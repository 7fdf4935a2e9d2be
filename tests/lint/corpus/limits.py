"""Limits, rates and maps."""

import os
import time
from datetime import date

from django.contrib.auth.models import User
from django.utils import timezone

from durable import AsyncContext, Context, Limit, RetryLater, step, workflow


def call(*args):
    return args


def slowly(tenant):
    for _ in range(3):
        time.sleep(1)
    return tenant


def later(tenant):
    raise RetryLater(30, limit=f"crm/{tenant}")


def todays(tenant):
    return f"{tenant}-{date.today()}"


def of_tenant(tenant):
    return tenant.lower()


@workflow(name="limits.named")
def named(ctx: Context, tenant: str, count: int):
    ctx.step("none", call, limit=None, rate=None)
    ctx.step("name", call, limit="carrier")
    ctx.step("key", call, limit=f"crm/{tenant}")
    ctx.step("rate", call, rate=f"openai/{tenant}", units=count)
    ctx.step("units", call, rate="openai", units=10)
    ctx.step("one unit", call, units=1)
    ctx.step("long key", call, limit="crm/a/b")
    ctx.step("later", later, tenant, limit="crm/acme")
    ctx.step("slow", slowly, tenant)


@workflow(name="limits.refused")
def refused(ctx: Context, tenant: str):
    ctx.step("empty key", call, limit="crm/")  # expect: W171
    ctx.step("no name", call, limit="/acme")  # expect: W171
    ctx.step("number", call, limit=4)  # expect: W171
    ctx.step("units", call, limit="crm", units=3)  # expect: W171
    ctx.step("no units", call, rate="openai", units=0)  # expect: W171
    ctx.step("empty rate", call, rate="openai/")  # expect: W171


@workflow(name="limits.unsteady_keys")
def unsteady_keys(ctx: Context, tenant: str):
    ctx.step("clock", call, limit=f"crm/{timezone.now().hour}")  # expect: W101, W172
    ctx.step("process", call, rate=f"openai/{os.getpid()}")  # expect: W104, W172
    region = os.environ["REGION"]  # expect: W104
    ctx.step("region", call, limit=f"carrier/{region}")  # expect: W172
    answer = ctx.step("region of the tenant", call, tenant)
    ctx.step("steady", call, limit=f"carrier/{answer}")


@workflow(name="limits.key_of_today", limit=Limit("crm", at_once=1, key=lambda tenant: f"{tenant}-{date.today()}"))  # expect: W172
def key_of_today(ctx: Context, tenant: str):
    ctx.step("call", call, tenant)


@workflow(name="limits.key_function", limit=[Limit("crm", at_once=1, key=todays)])  # expect: W172
def key_function(ctx: Context, tenant: str):
    ctx.step("call", call, tenant)


@workflow(
    name="limits.key_of_a_row",
    limit=Limit("crm", at_once=1, key=lambda user: User.objects.get(pk=user).username),  # expect: W172
)
def key_of_a_row(ctx: Context, user: int):
    ctx.step("call", call, user)


@workflow(name="limits.steady_key", limit=Limit("crm", at_once=1, key=of_tenant))
def steady_key(ctx: Context, tenant: str):
    ctx.step("call", call, tenant)


@step(limit="crm")
def sleeps_in_its_slot(tenant):
    time.sleep(5)


@workflow(name="limits.sleeps")
def sleeps(ctx: Context, tenant: str):
    ctx.step("slot", slowly, tenant, limit="crm")  # expect: W173
    ctx.step("rate", slowly, tenant, rate="openai")
    ctx.step(sleeps_in_its_slot, tenant)  # expect: W173


@workflow(name="limits.sync_one", limit=Limit("crm", at_once=1, key=lambda tenant: tenant))
def sync_one(ctx: Context, tenant: str):
    ctx.step("call", call, tenant)


@workflow(name="limits.any", limit=Limit("crm", at_once=3))
def any_tenant(ctx: Context):
    ctx.step("call", call)


@workflow(name="limits.holds", limit=Limit("crm", at_once=1, key=lambda tenant: tenant, hold="open"))
def holds(ctx: Context, tenant: str):
    ctx.child("one", sync_one, tenant)  # expect: W174
    ctx.map("all", sync_one, [(tenant,)])  # expect: W174
    ctx.step("call", call, limit=f"crm/{tenant}")  # expect: W174
    ctx.step("other limit", call, limit=f"carrier/{tenant}")
    ctx.step("without a key", call, limit="crm")
    ctx.child("any", any_tenant)


@workflow(name="limits.holds_while_running", limit=Limit("crm", at_once=1, key=lambda tenant: tenant))
def holds_while_running(ctx: Context, tenant: str):
    ctx.child("one", sync_one, tenant)


@workflow(name="limits.maps")
def maps(ctx: Context, tenants: list[str]):
    ctx.map("list", sync_one, [(tenant,) for tenant in tenants])
    ctx.map("sorted", sync_one, [(tenant,) for tenant in sorted(set(tenants))])
    found = ctx.step("tenants", call)
    ctx.map("found", sync_one, found, at_once=10)
    ctx.map("rank", sync_one.using(priority="10 min", share=tenants[0]), found)


@workflow(name="limits.unsteady_maps")
def unsteady_maps(ctx: Context, tenants: list[str]):
    ctx.map("set", sync_one, [(tenant,) for tenant in set(tenants)])  # expect: W164
    ctx.map("rows", sync_one, [(user.username,) for user in User.objects.all()])  # expect: W109, W164
    names = {f"{tenant}!" for tenant in tenants}
    ctx.map("names", sync_one, [(name,) for name in names])  # expect: W164
    for tenant in tenants:
        ctx.map("each", sync_one, [(tenant,)])  # expect: W133
    ctx.map("key", sync_one.using(key="one"), [(tenant,) for tenant in tenants])  # expect: W161
    ctx.map("id", sync_one.using(id=f"{ctx.run_id}-one"), [(tenant,) for tenant in tenants])  # expect: W161


@workflow(name="limits.async_maps")
async def async_maps(ctx: AsyncContext, tenants: list[str]):
    await ctx.map("set", sync_one, inputs=[(tenant,) for tenant in set(tenants)])  # expect: W164
    await ctx.map("list", sync_one, inputs=[(tenant,) for tenant in tenants])
