"""What the code between steps may not reach."""

import asyncio
import datetime as dt
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from pathlib import Path
from uuid import uuid4 as new_id

import httpx
import requests
from django.conf import settings
from django.core.cache import cache
from django.core.mail import EmailMessage, send_mail
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import connection, models, transaction
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.timezone import now as moment

import durable
from durable import AsyncContext, Context, get_run, workflow
from durable import workflow as flow


class Order(models.Model):
    class Meta:
        app_label = "corpus"


class Priced(Order):
    class Meta:
        app_label = "corpus"


client = httpx.Client()


def work(*args):
    return args


@workflow(name="world.clock")
def clock(ctx: Context):
    started = timezone.now()  # expect: W101
    ctx.step("work", work)
    if datetime.now(dt.UTC) - started > timedelta(hours=1):  # expect: W101
        ctx.step("late", work)
    time.time()  # expect: W101
    date.today()  # expect: W101
    moment()  # expect: W101
    dt.datetime.now(tz=dt.UTC)  # expect: W101
    time.monotonic()  # expect: W101


@workflow(name="world.clock_of_the_context")
def clock_of_the_context(ctx: Context):
    started = ctx.now()
    ctx.step("work", work)
    if ctx.now() - started > timedelta(hours=1):
        ctx.step("late", work)


@workflow(name="world.clock_in_steps")
def clock_in_steps(ctx: Context):
    started = ctx.step("start", lambda: timezone.now())
    ctx.step("read", timezone.now)
    ctx.step("work", work, started, timedelta(hours=1), datetime(2026, 1, 1, tzinfo=dt.UTC))


@workflow(name="world.dice")
def dice(ctx: Context):
    if random.random() < 0.5:  # expect: W102
        ctx.step("a", work)
    token = secrets.token_hex(8)  # expect: W102
    salt = os.urandom(4)  # expect: W102
    rng = random.SystemRandom()  # expect: W102
    ctx.step("b", work, token, salt, rng.random())  # expect: W102


@workflow(name="world.dice_of_the_context")
def dice_of_the_context(ctx: Context):
    rng = random.Random(7)
    if ctx.random.random() < rng.random():
        ctx.step("a", work)


@workflow(name="world.uuid")
def uuids(ctx: Context):
    key = uuid.uuid4()  # expect: W103
    other = new_id()  # expect: W103
    ctx.step("a", work, str(key), str(other))


@workflow(name="world.uuid_of_the_context")
def uuid_of_the_context(ctx: Context, name: str):
    ctx.step("a", work, ctx.uuid4(), uuid.uuid5(uuid.NAMESPACE_URL, name))


@workflow(name="world.environment")
def environment(ctx: Context):
    if os.environ["REGION"] == "eu":  # expect: W104
        ctx.step("a", work)
    os.environ.get("REGION")  # expect: W104
    os.getenv("REGION")  # expect: W104
    ctx.step("b", work, socket.gethostname(), sys.argv)  # expect: W104


@workflow(name="world.environment_in_a_step")
def environment_in_a_step(ctx: Context):
    return ctx.step("region", os.environ.get, "REGION")


@workflow(name="world.settings")
def reads_settings(ctx: Context):
    if settings.DEBUG:
        ctx.step("a", work, os.path.join("a", "b"))


@workflow(name="world.files")
def files(ctx: Context, path: str):
    with open(path) as file:  # expect: W105
        lines = file.readlines()
    Path(path).write_text("x")  # expect: W105
    target = Path("a") / "b"
    target.name
    os.remove(path)  # expect: W105
    tempfile.mkdtemp()  # expect: W105
    here = Path(path)
    here.exists()  # expect: W105
    ctx.step("a", work, lines)


@workflow(name="world.files_in_steps")
def files_in_steps(ctx: Context, path: str):
    def read():
        with open(path) as file:
            return file.read()

    ctx.step("read", read)
    ctx.step("write", lambda: Path(path).write_text("x"))


@workflow(name="world.network")
def network(ctx: Context):
    answer = requests.get("https://example.org")  # expect: W106
    httpx.post("https://example.org")  # expect: W106
    client.get("https://example.org")  # expect: W106
    send_mail("a", "b", "c", ["d"])  # expect: W106
    EmailMessage("a").send()  # expect: W106
    cache.set("a", 1)  # expect: W106
    subprocess.run(["ls"])  # expect: W106
    os.system("ls")  # expect: W106
    with httpx.Client() as session:  # expect: W106
        session.get("/")  # expect: W106
    ctx.step("a", work, answer.json())


@workflow(name="world.network_in_steps")
def network_in_steps(ctx: Context):
    ctx.step("get", requests.get, "https://example.org", timeout=5)
    ctx.step("ask", lambda: client.get("https://example.org").json())
    try:
        ctx.step("other", work)
    except (requests.RequestException, httpx.HTTPError) as error:
        ctx.step("tell", work, str(error), httpx.Timeout(5).read)


@workflow(name="world.threads")
def threads(ctx: Context):
    threading.Thread(target=work).start()  # expect: W107
    with ThreadPoolExecutor() as pool:  # expect: W107
        pool.submit(work)
    ctx.step("a", work)


@workflow(name="world.tasks")
async def tasks(ctx: AsyncContext):
    await asyncio.gather(ctx.step("a", work), ctx.step("b", work))  # expect: W107
    asyncio.create_task(ctx.step("c", work))  # expect: W107


@workflow(name="world.branches")
async def branches(ctx: AsyncContext):
    await ctx.join("both", {"a": lambda c: c.step("a", work), "b": lambda c: c.step("a", work)})


@workflow(name="world.query")
def query(ctx: Context, order_id: int):
    order = Order.objects.get(pk=order_id)  # expect: W109
    Order.objects.filter(pk=order_id).update(state="paid")  # expect: W109
    order.save()  # expect: W109
    with transaction.atomic():  # expect: W109
        ctx.step("a", work)
    with connection.cursor() as cursor:  # expect: W109
        cursor.execute("SELECT 1")
    get_object_or_404(Order, pk=order_id)  # expect: W109
    get_run("order-1").send("approved", 1)  # expect: W109
    Priced(pk=1).save()  # expect: W109
    User.objects.count()  # expect: W109
    get_user_model().objects.count()  # expect: W109
    for each in Order.objects.all():  # expect: W109
        ctx.step(f"b {each.pk}", work)  # expect: W131


@workflow(name="world.rows")
def rows_of_models(ctx: Context, order_id: int):
    order = get_object_or_404(Order, pk=order_id)  # expect: W109
    order.save()  # expect: W109
    user = User(pk=1)
    user.delete()  # expect: W109
    loaded = ctx.step("load", work)
    loaded.save()  # expect: W109
    loaded.refresh_from_db()  # expect: W109
    loaded.save("somewhere else")


@workflow(name="world.query_in_steps")
def query_in_steps(ctx: Context, order_id: int):
    total = ctx.step("total", lambda: Order.objects.get(pk=order_id).total)
    ctx.step("pay", Order.objects.filter(pk=order_id).update, atomic=True)
    rows = ctx.step("rows", lambda: list(Order.objects.values_list("pk", flat=True)))
    for row in rows:
        ctx.step(f"row {row}", work, total)


@workflow(name="world.sleep")
def sleeps(ctx: Context):
    time.sleep(5)  # expect: W110
    ctx.step("a", work)
    ctx.sleep("a while", 5)


@workflow(name="world.asleep")
async def asleeps(ctx: AsyncContext):
    await asyncio.sleep(5)  # expect: W110
    await ctx.sleep("a while", 5)


@workflow(name="world.sleep_in_a_step")
def sleep_in_a_step(ctx: Context):
    ctx.step("a", time.sleep, 1)
    ctx.step("b", lambda: time.sleep(1))


@workflow(name="world.set_order")
def set_order(ctx: Context, orders: list):
    for customer in {order["customer"] for order in orders}:  # expect: W108
        ctx.step(f"mail {customer}", work)  # expect: W131
    names = set(orders)
    for name in names:  # expect: W108
        ctx.step(f"name {name}", work)  # expect: W131
    [ctx.step(f"again {each}", work) for each in {"a", "b"} | names]  # expect: W108, W131
    ctx.step(",".join(names), work)  # expect: W131
    ctx.step(f"first {next(iter(names))}", work)  # expect: W131
    ctx.step(f"all {names}", work)  # expect: W131


@workflow(name="world.set_sorted")
def set_sorted(ctx: Context, orders: list):
    for customer in sorted({order["customer"] for order in orders}):
        ctx.step(f"mail {customer}", work)
    for number in {1, 2, 3}:
        ctx.step(f"number {number}", work)
    seen = set()
    for order in orders:
        if order["id"] in seen:
            continue
        seen.add(order["id"])
        ctx.step(f"order {order['id']}", work, len(seen))
    total = sum({order["price"] for order in orders})
    ctx.step(f"total {total}", work)


@workflow(name="world.set_input")
def set_input(ctx: Context, tags: set[str]):
    for tag in tags:
        work(tag)
    ctx.step("tags", work, sorted(tags))


@flow(name="world.aliased")
def aliased(ctx: Context):
    timezone.now()  # expect: W101


@durable.workflow
def dotted(ctx: Context):
    timezone.now()  # expect: W101


@workflow
def shadowed(ctx: Context, time, requests):
    time.time()
    requests.get("x")
    random = ctx.random
    random.random()


def not_a_workflow(ctx: Context):
    return timezone.now()


class clock_of_tests:
    time = staticmethod(lambda: 1)


@workflow(name="world.local_import")
def local_import(ctx: Context):
    from time import time as t

    t()  # expect: W101


@workflow(name="world.log")
def logs(ctx: Context, order_id: int):
    ctx.logger.info("order %s", order_id)
    print("order", order_id)
    assert order_id > 0
    ctx.step("a", work)


def drawn(number):
    return random.randint(1, number)  # expect: W102


def doubled(number):
    return number * 2


TOOLS = {"draw": drawn, "double": doubled}


@workflow(name="world.table_of_functions")
def table_of_functions(ctx: Context, tool: str):
    return TOOLS[tool](5)


def by_post(ctx, order):
    ctx.step("send", print, order)


def by_courier(ctx, order):
    ctx.step("send", print, order)


@workflow(name="world.table_of_ways")
def table_of_ways(ctx: Context, way: str):
    ways = {"post": by_post, "courier": by_courier}
    ways[way](ctx, 1)


@workflow(name="world.table_of_bodies")
def table_of_bodies(ctx: Context, order: int):
    ctx.join("tables", BODIES)


def clocked(c):
    return c.step("work", print, time.time())  # expect: W101


BODIES = {"one": clocked, "other": lambda c: c.sleep("a while", 5)}
