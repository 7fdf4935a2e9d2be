"""Workflows for real workers that are to be stopped, cut off and started again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection
from psycopg import RawCursor
from psycopg.types.string import TextBinaryLoader
from redis import Redis

from durable import (
    AsyncContext,
    Break,
    Context,
    Continue,
    CriticalError,
    Found,
    Limit,
    NotDone,
    RetryLater,
    RollbackContext,
    Unknown,
    current_step,
    get_run,
    workflow,
)
from project.shop.models import Mail
from tests.faults import dying


def redis() -> Redis:
    """The tests' Redis, with patience."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=180)


def post(key: str) -> None:
    """A row of the application's."""
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=key)


def hold(run: str) -> int:
    """Write a row, and the first time say so and wait until the test lets go. Returns the process's id."""
    pid = os.getpid()
    post(f"{run} {pid}")
    with redis() as client:
        if client.incr(f"{run}:calls") == 1:
            client.rpush(f"{run}:holds", pid)
            client.blpop([f"{run}:go"], timeout=150)
    return pid


@workflow(name="faults.haunted")
def haunted(ctx: Context, is_atomic: bool) -> list[int]:
    """Two steps; in the first one a worker can be stopped."""
    first = ctx.step("hold", hold, ctx.run_id, atomic=is_atomic, timeout=0)
    second = ctx.step("after", os.getpid)
    return [first, second]


@workflow(name="faults.crossing")
def crossing(ctx: Context, other: str, messages: int) -> list[int]:
    """Atomic steps that each send to the other run: both lock both rows, in opposite orders."""
    for number in range(messages):
        ctx.step(
            f"send {number}",
            partial(get_run(other).send, "crossing", number, id=f"{ctx.run_id} {number}"),
            atomic=True,
            max_retries=50,
            retry_backoff_base=0.01,
        )
    return [ctx.queue.next(f"wait {number}", names=["crossing"]).body for number in range(messages)]


# -- children


def _label(number: int) -> str:
    time.sleep(0.05)
    return f"label {number}"


def _is_there(marker: str) -> bool:
    if not Path(marker).exists():
        raise FileNotFoundError(marker)
    return True


@workflow(name="faults.mended")
def mended(ctx: Context, marker: str) -> bool:
    """Fail unless the file is there."""
    return ctx.step("look", _is_there, marker, max_retries=0)


@workflow(name="faults.label")
def label(ctx: Context, number: int) -> str:
    """A step, a wait and a step."""
    found = ctx.step("buy", _label, number)
    ctx.sleep("a moment", 0.2)
    return ctx.step("again", _label, int(found.split()[1]))


@workflow(name="faults.mail")
def mail(ctx: Context, number: int) -> str:
    """A parent in turn."""
    return ctx.child("inner", label, number).replace("label", "mail")


@workflow(name="faults.family")
def family(ctx: Context, children: int) -> list[str]:
    """A child in each branch of a join, beside one that is waited for at the end."""
    last = ctx.start_child("last", mail, children)

    def branch(number: int) -> Callable[[Context], str]:
        return lambda inner: inner.child("label", label, number)

    found = ctx.join("all", {f"b{number}": branch(number) for number in range(children)})
    return [*found.values(), last.result("last ended")]


@workflow(name="faults.posted")
def posted(ctx: Context, number: int) -> int:
    """Write a row, and fail then for each tenth number."""
    return _post(ctx, number)


def _post(ctx: Context, number: int) -> int:
    ctx.step("post", post, ctx.run_id, atomic=True)
    if number % 10 == 3:
        raise CriticalError(f"not {number}")
    return number


@workflow(name="faults.posted_or_waiting")
def posted_or_waiting(ctx: Context, number: int, waiting_from: int) -> int:
    """Do as `posted`; from that number on, wait for a message first."""
    if number >= waiting_from:
        ctx.queue.next("go on")
    return _post(ctx, number)


@workflow(name="faults.mapped")
def mapped(ctx: Context, count: int, at_once: int | None, waiting_from: int | None = None) -> list[int]:
    """How many children completed, failed and were cancelled, and the sum of the outputs."""
    child = posted if waiting_from is None else posted_or_waiting
    inputs = [(each,) if waiting_from is None else (each, waiting_from) for each in range(count)]
    found = ctx.map("children", child, inputs, at_once=at_once, on_failure="finish")
    return [len(found.outputs), len(found.failed), len(found.cancelled), sum(found.outputs)]


def call(url: str, what: str) -> str:
    """What the service answers that counts its callers."""
    with urllib.request.urlopen(f"{url}/{what}", timeout=60) as answer:  # the test's own server
        return str(answer.read().decode())


def of_tenant(_url: str, tenant: str) -> str:
    """The key of `limited`: at most two runs of a tenant are passed at once."""
    return tenant


@workflow(name="faults.limited", limit=Limit("faults-tenant", at_once=2, key=of_tenant))
def limited(ctx: Context, url: str, tenant: str) -> list[str]:
    """Calls under the limit of its tenant, and then under one for all."""
    first = ctx.step("first", call, url, f"{tenant}/first", max_retries=20, retry_backoff_max=1)
    ctx.sleep("rest", 0.2)
    second = ctx.step("second", call, url, f"{tenant}/second", limit="faults-all", max_retries=20, retry_backoff_max=1)
    return [first, second]


def meter(run: str, closes: bool) -> int:
    """Note the call and its time. The first call of all closes the limit, if it is asked to."""
    with redis() as client:
        number = int(client.rpush("faults:metered", f"{time.time()} {run}"))
    if closes and number == 1:
        raise RetryLater("2 s", "busy", limit="faults-rate")
    return number


@workflow(name="faults.metered")
def metered(ctx: Context, closes: bool) -> int:
    """A step with a moment in a rate and a slot."""
    number: int = ctx.step("call", meter, ctx.run_id, closes, limit="faults-slot", rate="faults-rate", max_retries=9)
    return number


@workflow(name="faults.undone")
def undone(ctx: Context, depth: int) -> None:
    """A parent that fails when its children, and theirs, have written rows that they undo."""
    ctx.rollback_checkpoint("undo")
    ctx.step("post", post, f"{ctx.run_id} did", rollback=_undo_post, atomic=True)
    if depth:
        ctx.child("first", undone.using(rollback=True), depth - 1)
        ctx.start_child("second", undone.using(rollback=True), depth - 1).result("second ended")
    if ":" not in ctx.run_id:
        raise ValueError("undo all")


def _undo_post(context: RollbackContext, _output: None) -> None:
    """Note that the step is undone; a repeated call notes it again."""
    time.sleep(0.2)
    Mail.objects.get_or_create(
        idempotency_key=f"{context.run_id} undone", defaults={"to": "cat@example.com", "subject": "purr", "body": ""}
    )


@workflow(name="faults.idle")
def idle(ctx: Context) -> None:
    """A parent whose child waits for a message that never comes."""
    ctx.child("never", waits_for_ever)


@workflow(name="faults.waits_for_ever")
def waits_for_ever(ctx: Context) -> None:
    """A wait without an end."""
    ctx.queue.next("never")


@workflow(name="faults.shelved")
def shelved(ctx: Context, children: int) -> None:
    """A parent that ends while its children and theirs wait."""
    for number in range(children):
        ctx.start_child(f"idle {number}", idle)
    ctx.sleep("a moment", 2)


# -- steps that change their database session


def _by_cursor(*statements: str) -> Callable[[], None]:
    def pollute() -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    return pollute


def _by_driver(statement: str) -> None:
    connection.ensure_connection()
    connection.connection.execute(statement)


def _set_on_driver(name: str, value: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if not (name == "autocommit" and connection.in_atomic_block):  # the driver refuses that
        setattr(connection.connection, name, value)


def _register_loader() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    connection.connection.adapters.register_loader("text", TextBinaryLoader)


POLLUTIONS: dict[str, Callable[[], None]] = {
    "read only": _by_cursor("SET default_transaction_read_only = on"),
    "search_path": _by_cursor("SET search_path TO pg_catalog"),
    "role": _by_cursor("SET ROLE durable_nobody"),
    "authorization": _by_cursor("SET SESSION AUTHORIZATION durable_nobody"),
    "set_config": _by_cursor("SELECT set_config('search_path', 'pg_catalog', false)"),
    "time zone": _by_cursor("SET TIME ZONE 'Asia/Tokyo'"),
    "lock_timeout": _by_cursor("SET lock_timeout = '5s'"),
    "setting of one's own": _by_cursor("SET app.tenant = '7'"),
    "encoding": _by_cursor("SET client_encoding = 'LATIN1'"),
    "temporary table": _by_cursor("CREATE TEMPORARY TABLE IF NOT EXISTS shop_mail (id integer)"),
    "temporary table of the engine": _by_cursor("CREATE TEMPORARY TABLE IF NOT EXISTS durable_run (id integer)"),
    "cursor": _by_cursor("CLOSE ALL; DECLARE left_open CURSOR WITH HOLD FOR SELECT 1"),
    "listening": _by_cursor("LISTEN durable_gossip"),
    "autocommit of the driver": lambda: _set_on_driver("autocommit", value=False),
    "cursor factory": lambda: _set_on_driver("cursor_factory", RawCursor),
    "loader": lambda: _register_loader(),
    "raw": lambda: _by_driver("SET search_path TO pg_catalog"),
    "raw autocommit": lambda: _by_driver("SET default_transaction_read_only = on"),
}
_SQLITE = {"pragma": _by_cursor("PRAGMA query_only = on")}

_SESSION = """SELECT current_user, session_user, current_setting('search_path'), current_setting('TimeZone'),
    current_setting('default_transaction_read_only'), current_setting('lock_timeout'), current_setting('client_encoding'),
    coalesce(current_setting('app.tenant', true), ''), (SELECT count(*)::text FROM pg_cursors WHERE is_holdable),
    (SELECT count(*)::text FROM pg_listening_channels()),
    (SELECT count(*)::text FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r')"""


def _session() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
        return [*cursor.fetchone()]


def _pollute(way: str) -> str:
    (POLLUTIONS | _SQLITE)[way]()
    return "done"


async def _apollute(way: str) -> str:
    return await sync_to_async(_pollute)(way)


@workflow(name="faults.polluted")
def polluted(ctx: Context, way: str) -> str:
    """Its only step changes the session."""
    done: str = ctx.step("pollute", _pollute, way, max_retries=0)
    return done


@workflow(name="faults.apolluted")
async def apolluted(ctx: AsyncContext, way: str) -> str:
    """The same in an async workflow, by an async step."""
    done: str = await ctx.step("pollute", _apollute, way, max_retries=0)
    return done


@workflow(name="faults.in_branches")
def in_branches(ctx: Context, way: str) -> str:
    """The same in threads of branches, and in transactions there."""
    ctx.join(
        "all",
        {
            "plain": lambda c: c.step("pollute", _pollute, way, max_retries=0),
            "atomic": lambda c: c.step("pollute", _pollute, way, max_retries=0, atomic=True),
        },
    )
    return "done"


@workflow(name="faults.where_am_i")
def where_am_i(ctx: Context, way: str, atomic: bool) -> list[list[str]]:  # the input of a run
    """What the session is before and after a step has changed it."""
    before = ctx.step("before", _session, max_retries=0)
    ctx.step("pollute", _pollute, way, max_retries=0, atomic=atomic)
    return [before, ctx.step("after", _session, max_retries=0)]


@workflow(name="faults.where_are_branches")
def where_are_branches(ctx: Context, way: str, atomic: bool) -> list[list[str]]:  # the input of a run
    """The same within each of two branches, one after the other in each thread."""

    def branch(c: Context) -> list[list[str]]:
        before = c.step("before", _session, max_retries=0)
        c.step("pollute", _pollute, way, max_retries=0, atomic=atomic)
        return [before, c.step("after", _session, max_retries=0)]

    found = ctx.join("both", {"one": branch, "two": branch})
    return [*found["one"], *found["two"]]


@workflow(name="faults.ended_past_django")
def ended_past_django(ctx: Context) -> None:
    """An atomic step that ends its transaction by SQL."""
    ctx.step("end", _by_cursor("COMMIT"), atomic=True, max_retries=0)


@workflow(name="faults.plain")
def plain(ctx: Context, number: int) -> int:
    """A step that leaves the database alone."""
    result: int = ctx.step("return", lambda: number)
    return result


@workflow(name="faults.allowed")
def allowed(ctx: Context) -> int:
    """Something of all that is written: a failed attempt, a loop that prunes, a message, a send, an atomic step."""
    ctx.try_step("fail", lambda: 1 // 0, max_retries=0)
    ctx.loop("turn", lambda c, n: Continue(n + 1) if n < 5 else Break(n), state=0, history_prune_interval=2)
    got = ctx.queue.next("go", names=["go"])
    ctx.queue.send("self", 1)
    ctx.step("post", post, ctx.run_id, atomic=True)
    return int(got.body) + int(ctx.queue.next("own", names=["self"]).body)


# -- steps and bodies that fork


def _count_mails(_number: int) -> int:
    return Mail.objects.count()


def _pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(_count_mails, range(4))


def _terminate() -> int | None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


@workflow(name="faults.pooled")
def pooled(ctx: Context) -> list[int]:
    """Queries in a pool of forked processes."""
    counts: list[int] = ctx.step("pool", _pool, max_retries=0)
    return counts


@workflow(name="faults.terminated")
def terminated(ctx: Context) -> int | None:
    """The exit code of a forked process that gets SIGTERM."""
    return ctx.step("terminate", _terminate, max_retries=0)


def _fork(way: str) -> tuple[str, int]:
    child = os.fork()  # durable: allow[W106] the test is about code that does so between its steps
    if child:
        return "parent", os.waitpid(child, 0)[1]
    if way == "raise":
        raise ValueError("the child's")
    if way == "exit":
        sys.exit(0)
    return "child", 0


@workflow(name="faults.forked_step")
def forked_step(ctx: Context, way: str) -> list[Any]:
    """A step whose function returns in two processes."""
    return [*ctx.step("fork", _fork, way, max_retries=0)]


@workflow(name="faults.forked_body")
def forked_body(ctx: Context, way: str) -> list[Any]:
    """The same between steps."""
    ctx.step("before", os.getpid)
    process, status = _fork(way)
    ctx.step("after", post, f"{ctx.run_id} {os.getpid()}")
    return [process, status]


# -- steps that outlast what stops them


def _swallow() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:  # as code does that wants to go on whatever happens
            continue


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(600)


async def _aswallow() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            continue


OVERRUNS: dict[str, Callable[[], Any]] = {
    "swallow": _swallow,
    "silence": _swallow,
    "disarm": _disarm,
    "aswallow": _aswallow,
}


@workflow(name="faults.overrunning")
def overrunning(ctx: Context, way: str) -> str:
    """A step that goes on after its timeout, or after its heartbeat without a sign, each time."""
    timeout, heartbeat = (0, 0.5) if way == "silence" else (0.5, None)
    result = ctx.try_step(
        f"overrun by {way}",
        OVERRUNS[way],
        max_retries=0,
        timeout=timeout,
        heartbeat=heartbeat,
        retry_on_timeout=True,
    )
    assert result.failure is not None
    return f"{result.failure.kind}: {result.failure.error}"


async def _leave_a_task() -> str:
    task = asyncio.create_task(_aswallow(), name="_aswallow")
    await asyncio.sleep(0)
    return f"left {task.get_name()}"


async def _leave_a_thread() -> None:
    await asyncio.to_thread(time.sleep, 600)


@workflow(name="faults.leaving")
def leaving(ctx: Context, way: str) -> str:
    """An async step that leaves something running: when it returns, or at its timeout."""
    if way == "task":
        return ctx.step("leave a task", _leave_a_task)
    result = ctx.try_step("leave a thread", _leave_a_thread, timeout=0.5)
    return result.failure.kind if result.failure is not None else "returned"


@workflow(name="faults.patient")
def patient(ctx: Context) -> int:
    """Long steps, to be beside others."""
    for number in range(8):
        ctx.step(f"wait {number}", time.sleep, 0.25)
    return 8


def hang(marker: str) -> str:
    """Hang the first time; return at once from the second time on, which the marker file tells."""
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(600)
    return "returned"


def save_and_hang(marker: str) -> Any:
    """Count in what is saved; hang in the first call, once it has told that it has saved."""
    step = current_step()
    if step.saved is not None:
        return step.saved
    for number in range(10_000):
        step.save(number)
        time.sleep(0.01)
        if number == 100:
            Path(marker).touch()
    return None


@workflow(name="faults.saving")
def saving(ctx: Context, marker: str) -> Any:
    """A step that saves its progress; its first call goes on for long."""
    return ctx.step("save", save_and_hang, marker)


@workflow(name="faults.hanging")
def hanging(ctx: Context, marker: str) -> Any:
    """A step whose first call does not come back."""
    return ctx.step("hang", hang, marker)


if point := os.environ.get("FAULTS_DIE_AFTER"):
    dying.arm(point)


def charge_at_bank(order: int, dies: bool) -> str:
    """Charge, and now and then die before or after that, or hear nothing."""
    key = current_step().idempotency_key
    with redis() as bank:
        chance = bank.incr(f"outside:tries:{key}") * 7 + order
        if dies and chance % 11 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        bank.hincrby("outside:charged", key, 1)
        if dies and chance % 13 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if chance % 5 == 0:
        raise TimeoutError("the bank did not answer")
    return f"receipt {order}"


def find_at_bank(order: int, dies: bool) -> Found[str] | NotDone:
    """What the bank says."""
    with redis() as bank:
        is_charged = bank.hexists("outside:charged", current_step().idempotency_key)
    return Found(f"receipt {order}") if is_charged else NotDone()


def pay_back_at_bank(rollback: RollbackContext, receipt: str) -> None:
    """Pay back, each receipt once."""
    with redis() as bank:
        bank.hsetnx("outside:paid back", receipt, 1)


@workflow(name="faults.paying")
def paying(ctx: Context, order: int, dies: bool, fails: bool) -> str:
    """Charge once, and with `fails` have it paid back."""
    ctx.rollback_checkpoint("paid")
    receipt = ctx.step(
        "charge",
        charge_at_bank,
        order,
        dies,
        once=True,
        verify=find_at_bank,
        rollback=pay_back_at_bank,
        max_retries=None,
        retry_backoff_base=0.01,
        retry_backoff_max=0.05,
    )
    if fails:
        raise CriticalError("out of stock")
    return receipt


def find_sometimes(order: int, dies: bool) -> Found[str] | NotDone | Unknown:
    """What the bank says, if it can tell; now and then it kills who asks, or is away."""
    with redis() as bank:
        chance = bank.incr(f"outside:asked:{current_step().idempotency_key}") * 5 + order
    if dies and chance % 17 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if chance % 3 == 0:
        raise ConnectionError("the bank is away")
    return find_at_bank(order, dies) if chance % 3 == 1 else Unknown("the bank cannot tell")


def print_label(order: int) -> str:
    """Fail now and then."""
    with redis() as bank:
        if (bank.incr(f"outside:labels:{order}") + order) % 3 == 0:
            raise ConnectionError("no paper")
    return f"label {order}"


@workflow(name="faults.held_paying", when_exhausted="hold")
def held_paying(ctx: Context, order: int, dies: bool, asks: bool) -> list[str]:
    """Charge once, side by side with a label; people decide what the bank cannot tell, and what has no paper."""
    asking: dict[str, Any] = {"verify": find_sometimes, "verify_retries": 1} if asks else {}
    backoff: dict[str, Any] = {"max_retries": None, "retry_backoff_base": 0.01, "retry_backoff_max": 0.05}

    def charge(branch: Context) -> str:
        receipt: str = branch.step("charge", charge_at_bank, order, dies, once=True, **asking, **backoff)
        return receipt

    def label(branch: Context) -> str:
        printed: str = branch.step("label", print_label, order, max_retries=0)
        return printed

    return sorted(ctx.join("order", {"charge": charge, "label": label}).values())
