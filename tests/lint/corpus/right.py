"""Long workflows that are right in every line, with what real code has between steps."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import random
import re
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import NamedTuple

from django.conf import settings
from django.db import models, transaction
from django.utils import timezone

from durable import AsyncContext, Break, Context, Continue, cron, step, workflow
from durable.errors import ChildFailedError, JoinError, MessageTimeoutError, StepExhaustedError

log = logging.getLogger(__name__)
Status = Enum("Status", "NEW PAID")
DEFAULTS = {"retries": 3}
REGISTRY = {}


def register(fn):
    REGISTRY[fn.__name__] = fn
    return fn


class Order(models.Model):
    class Meta:
        app_label = "x"

    objects: models.Manager

    @classmethod
    def total_of(cls, pk):
        return cls.objects.get(pk=pk).total

    @property
    def url(self):
        return "x"


@dataclass
class Cart:
    items: list = field(default_factory=list)
    created: datetime = field(default_factory=timezone.now)

    def add(self, item):
        self.items.append(item)
        return self


class Row(NamedTuple):
    a: int


@register
@step(name="pay", max_retries=2, retry_if=lambda e: time.time() > 0)
def pay(order_id: int) -> dict:
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        order.paid_at = timezone.now()
        order.save()
    time.sleep(0.1)
    return {"id": str(uuid.uuid4()), "n": random.random()}


def handle(rollback, out):
    Order.objects.filter(pk=1).delete()


@workflow(name="right.order", schedule=cron("0 0 * * *"))
def order(ctx: Context, order_id: int, *, note: str = "", when: datetime | None = None) -> dict:
    ctx.rollback_checkpoint("cp")
    payment = ctx.step(pay, order_id, rollback=handle)
    name = payment["id"][:8]
    ctx.step(f"ship {name}", Order.total_of, order_id)
    cart = Cart()
    cart.add(1).add(2)
    cart.items.append(3)
    counts = Counter()
    for item in sorted(cart.items):
        counts[item] += 1
        ctx.step(f"item {item} #{counts[item]}", print, item)
    groups = defaultdict(list)
    for i, item in enumerate(cart.items):
        groups[item % 2].append(item)
    for key, members in groups.items():
        ctx.step(f"group {key}", print, members)
    lines = {"a": 1, "b": 2}
    lines.update(c=3)
    total = sum(lines.values()) + Decimal("1.5")
    ids = set()
    for item in cart.items:
        if item in ids:
            continue
        ids.add(item)
    if not ids & {1, 2}:
        ctx.step("no ids", print)
    try:
        result = ctx.child("child", helpers, order_id)
    except (ChildFailedError, StepExhaustedError) as error:
        result = None
        log.warning("failed %s", error)
    else:
        ctx.step("child ok", print, result)
    finally:
        log.info("done")
    with contextlib.suppress(MessageTimeoutError):
        ctx.queue.next("late", timeout=5, until=when)
    retry = 0
    while retry < 3:
        r = ctx.try_step(f"try {retry}", print)
        if r.ok:
            break
        retry += 1

    def body(c: Context, state: dict):
        nonlocal total
        total = total + 1
        message = c.queue.next("next", timeout="1 day", completable=True)
        message.complete({"ok": True})
        if message.body == "stop":
            return Break(state)
        return Continue({**state, "n": state["n"] + 1})

    end = ctx.loop("inbox", body, state={"n": 0})
    at = datetime(2026, 1, 1)
    label = at.strftime("%Y")
    ctx.step(f"year {label}", print)
    deadline = ctx.now() + timedelta(days=3)
    ctx.sleep_until("deadline", deadline.replace(hour=12))
    day = ctx.now().date()
    while day.weekday() > 4:
        day += timedelta(days=1)
    ctx.sleep_until("monday", datetime.combine(day, clock_time(9), tzinfo=UTC))
    if ctx.now() < datetime.fromisoformat("2026-01-01T00:00:00+00:00"):
        ctx.step("early", print)
    rng = ctx.random
    rng.shuffle(cart.items)
    pick = rng.choice(cart.items)
    ctx.step(f"pick {pick}", print)
    branches = {}
    for item in cart.items:

        def branch(c, item=item):
            return c.step("x", print, item)

        branches[str(item)] = branch
    try:
        outs = ctx.join("all", branches)
    except JoinError as error:
        outs = {}
    best = max(outs.values(), default=None, key=lambda out: out or 0)
    matcher = re.compile(r"x")
    pieces = [m.group() for m in matcher.finditer(note)]
    payload = json.dumps({"a": best, "p": pieces})
    ctx.step(
        "store",
        functools.partial(print, payload, sep=""),
    )
    ctx.step("env", lambda: os.environ["X"])
    path = os.path.join(settings.BASE_DIR, "x")
    ctx.step("read", lambda: open(path).read())
    ctx.queue.send("done", {"id": ctx.run_id}, to=f"parent-{order_id}")
    version = ctx.get_version("v", 2)
    if version == 1:
        ctx.step("old", print)
    else:
        ctx.step("new", print)
    ctx.removed("gone", "step")
    status = Status.NEW
    status = Status.PAID if payment else status
    return {"total": str(total), "end": end, "status": status.name}


@workflow(name="right.helpers")
def helpers(ctx: Context, order_id: int):
    data = ctx.step("load", load, order_id)
    data["extra"] = 1
    data["lines"].append(2)
    order = replace(Cart(items=[1]), items=[])
    order.items = data["lines"]
    match data:
        case {"kind": "x", "id": i}:
            ctx.step("kind", print, i)
        case [first, *rest]:
            ctx.step("kind", print, first)
        case _:
            ctx.step("kind", print)
    if order_id > 5:
        for n in range(3):
            ctx.step(f"s {n}", print)
    else:
        for n in range(3):
            ctx.step(f"s {n}", print)
    handler = REGISTRY["pay"]
    ctx.step("handler", handler, order_id)
    return helper(ctx, order_id, "a"), helper(ctx, order_id, "b")


def load(order_id):
    rows = []
    for i in range(order_id):
        rows.append(i)
    return {"lines": rows, "id": uuid.uuid4().hex}


def helper(ctx: Context, order_id: int, kind: str) -> int:
    def inner():
        found = []
        found.append(kind)
        return found

    r = ctx.step(f"{kind}-work", inner)
    if r:
        return len(r)
    r = ctx.step(f"{kind}-again", inner)
    return len(r)


@workflow(name="right.async")
async def awaits(ctx: AsyncContext, ids: list[int]):
    async def one(c: AsyncContext, pk: int):
        async with contextlib.nullcontext():
            return await c.step("one", load, pk)

    joined = await ctx.join("j", {str(pk): partial(one_by_pk, pk) for pk in ids})
    child = await ctx.start_child("kid", helpers, 1)
    await ctx.sleep("x", 1)
    out = await child.result("kid done")
    r = await ctx.race("r", {"a": lambda c: c.sleep("z", 5), "b": lambda c: c.step("y", load, 1)})
    msgs = await ctx.queue.next_batch("m", count=5, timeout=0)
    for m in msgs:
        await m.complete(None) if m else None
    coro = ctx.step("later", load, 1)
    value = await coro
    block = await ctx.try_block("blk", lambda c: one(c, 1))
    results = []
    for pk in ids:
        results.append(await ctx.step(f"pk {pk}", load, pk))
    return [value, out, r.winner, joined, block.ok, results]


async def one_by_pk(pk, c):
    return await c.step("one", load, pk)
