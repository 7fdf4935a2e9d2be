"""Behind a pooler in transaction mode, with Django's pool, and on a second database.

No promise relies on a session or a default.

`POOLER_URL` names a database behind a pooler of one's own, a PgBouncer say, to prove the same there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import override_settings
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from durable import Break, Context, Continue, current_step, workflow
from durable.conf import conf
from durable.core import clock
from durable.execution.passes import execute_pass
from durable.models import Run
from durable.store import store_for
from durable.store.postgres import libpq
from durable.worker import unanswered
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.faults.pooler import Pooler
from tests.support.databases import migrated
from tests.support.waiting import eventually
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis]


ALIAS = "pooled"
MOST_TRIED = 4  # a pass and its branches, before one of them has lost a statement


@pytest.fixture(scope="module", params=[False, True], ids=["loses statements", "keeps statements"])
def pooler(postgres_server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Pooler]:
    """Server connections that think in another time zone, and print moments accordingly."""
    config = database_from(postgres_server.create_database(ALIAS))
    path = Path(config["HOST"]) / f".s.PGSQL.{config['PORT']}"
    options = "-c TimeZone=Asia/Kathmandu"
    keeps = bool(request.param)
    with Pooler(path, user=config["USER"], database=ALIAS, options=options, keeps_statements=keeps) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def alias(pooler: Pooler, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    url = os.environ.get("POOLER_URL") or f"postgresql://postgres@127.0.0.1:{pooler.port}/{ALIAS}"
    # what Django's documentation asks for behind such a pooler
    config = {**database_from(url), "DISABLE_SERVER_SIDE_CURSORS": True}
    with django_db_blocker.unblock(), migrated(ALIAS, config):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS counter (number integer)")
        yield ALIAS


@pytest.fixture
def counter(
    alias: str, django_db_blocker: DjangoDbBlocker, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(libpq, "_unnamed", set())
    with django_db_blocker.unblock(), override_settings(DURABLE={"DATABASE": ALIAS, "SHORT_SLEEP": 0.0}):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("TRUNCATE counter")
            cursor.execute("INSERT INTO counter VALUES (0)")
        Run.objects.using(ALIAS).all().delete()
        yield


def count() -> int:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute("UPDATE counter SET number = number + 1 RETURNING number")
        return int(cursor.fetchone()[0])


def count_in_the_second_attempt() -> None:
    count()
    if current_step().attempt == 1:
        raise RuntimeError("after the row")


@workflow(name="faults.pooler")
def pooled(ctx: Context, partner: str) -> list[Any]:
    """Something of all that writes."""

    def once(c: Context, n: int) -> Break | Continue:
        c.step("count", count, atomic=True)
        return Break(n) if n == 4 else Continue(n + 1)

    def branch(c: Context) -> str:
        c.step("count", count, atomic=True)
        return str(c.step("plain", lambda: "done"))

    ctx.loop("loop", once, state=0, history_prune_interval=2)
    joined = ctx.join("join", {"a": branch, "b": branch, "c": branch})
    ctx.step("again", count_in_the_second_attempt, atomic=True, retry_backoff_base=0)
    ctx.queue.send("ball", ctx.run_id, to=partner)
    came = ctx.queue.next("catch", names=["ball"], timeout="1 hour")
    ctx.sleep("rest", 0.02)
    moment = ctx.step("moment", lambda: datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    return [joined, came.body, moment.isoformat()]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["auto", False])
def test_runs_live_behind_a_pooler_that_forgets_every_session(
    counter: None, pooler: Pooler, setting: object, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DURABLE = {**settings.DURABLE, "PREPARED_STATEMENTS": setting}
    before, pooler.prepared = pooler.transactions, []
    pairs = [(f"{n} one", f"{n} other") for n in range(4)]
    runs = pooled.start_many(
        [(each,) for one, other in pairs for each in (other, one)], ids=[each for pair in pairs for each in pair]
    )
    for _ in range(40):
        work_off(conf.QUEUE, store=store_for(ALIAS), seconds=120)
        if not Run.objects.using(ALIAS).exclude(state__in=["completed", "failed"]).exists():
            break
    joined = dict.fromkeys("abc", "done")
    for run in runs:
        number, _, name = run.id.partition(" ")
        partner = f"{number} {'other' if name == 'one' else 'one'}"
        assert run.output == [joined, partner, "2026-03-29T01:30:00+00:00"], (run.state, run.error)
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT number FROM counter")
        assert cursor.fetchall() == [(8 * (5 + 3 + 1),)]
    assert pooler.faults == []
    if "POOLER_URL" not in os.environ:
        assert pooler.transactions - before > 8 * 15, "all of that went through the pooler"
        notes = [each.getMessage() for each in caplog.records if "prepared statements" in each.getMessage()]
        is_lost = setting == "auto" and not pooler.keeps_statements
        assert (bool(pooler.prepared), len(notes)) == (setting == "auto", int(is_lost))
        assert not is_lost or len(pooler.prepared) <= MOST_TRIED, "each thread may have tried at the same time"


def test_a_statement_that_waits_for_a_lock_behind_a_pooler_is_not_taken_for_unanswered(
    counter: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """The server does not know a pooler's number for the session that waits."""
    waiting: list[BaseDatabaseWrapper] = []

    def wait() -> None:
        with django_db_blocker.unblock(), connections[ALIAS].cursor() as cursor:
            waiting.append(connections[ALIAS])
            cursor.execute("UPDATE counter SET number = 7")
        connections.close_all()

    thread = threading.Thread(target=wait)
    with transaction.atomic(using=ALIAS), connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT number FROM counter FOR UPDATE")
        thread.start()

        def is_waiting() -> bool:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

        eventually(is_waiting)
        assert not unanswered._is_lost(waiting[0], unanswered._IDLE)
    thread.join(300)
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT number FROM counter")
        assert cursor.fetchone() == (7,)


def test_the_pooler_is_as_hostile_as_it_says(counter: None, pooler: Pooler) -> None:
    """What these tests rest upon: sessions change under a client, and what it set is gone."""
    if "POOLER_URL" in os.environ:
        pytest.skip("what another pooler does is its own affair")
    pids = set()
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SET application_name = 'mine'")
        for _ in range(8):
            cursor.execute("SELECT pg_backend_pid(), current_setting('application_name'), current_setting('TimeZone')")
            pid, name, zone = cursor.fetchone()
            assert (name, zone) == ("", "Asia/Kathmandu")
            pids.add(pid)
    assert len(pids) == 4


# -- Django's own pool of psycopg sessions


DRAWN = "drawn"
SLOTS = 3
SIZE = 2 + SLOTS * (1 + 3) + 1  # for claims and leases, for runs and their three branches, and for the test


@pytest.fixture
def drawn(
    postgres_server: EmbeddedPostgres,
    redis_connection: redis.Redis,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Any]:
    """durable's database by a pool, which is yielded."""
    config = {**database_from(postgres_server.create_database(DRAWN)), "CONN_MAX_AGE": 0}  # Django's rule for pools
    config["OPTIONS"] = {"pool": {"min_size": 1, "max_size": SIZE, "timeout": 60}}
    with django_db_blocker.unblock(), migrated(DRAWN, config):
        connection: Any = connections[DRAWN]
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE counter (number integer)")
            cursor.execute("INSERT INTO counter VALUES (0)")
        with override_settings(DURABLE={"DATABASE": DRAWN, "SHORT_SLEEP": 0.0}):
            yield connection.pool
        connection.close_pool()


def session() -> list[str]:
    """What a step finds in its session."""
    with connections[DRAWN].cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name'), current_setting('TimeZone')")
        return list(cursor.fetchone())


def spoil() -> None:
    with connections[DRAWN].cursor() as cursor:
        cursor.execute("SET application_name = 'mine'")
        cursor.execute("SET TIME ZONE 'Asia/Kathmandu'")
    if current_step().attempt == 1:
        with connections[DRAWN].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@workflow(name="faults.drawn")
def spoiling(ctx: Context) -> list[list[str]]:
    """What steps find before and after one that changes its session, and whose session is ended at first."""
    before = ctx.step("before", session)
    ctx.step("spoil", spoil, retry_backoff_base=0)
    return [before, ctx.step("after", session)]


@pytest.mark.slow
def test_runs_live_on_sessions_of_a_pool(drawn: Any) -> None:
    """Neither what a step sets in its session nor a session that was ended reaches another run; none is kept."""
    pairs = [(f"{n} one", f"{n} other") for n in range(2)]
    partners = {run: other for pair in pairs for run, other in (pair, pair[::-1])}
    sending = pooled.start_many([(partner,) for partner in partners.values()], ids=list(partners))
    spoilt = spoiling.start_many([()] * 9)
    with WorkerLoop(ThreadPool(SLOTS), store=store_for(DRAWN), execute=execute_pass, stop=ShutdownFlag()) as loop:

        def all_have_ended() -> bool:
            loop.work(conf.QUEUE, 120)
            return not Run.objects.using(DRAWN).exclude(state__in=["completed", "failed"]).exists()

        eventually(all_have_ended, every=0.05)
    for run in sending:
        assert run.output == [dict.fromkeys("abc", "done"), partners[run.id], "2026-03-29T01:30:00+00:00"], run.error
    assert [run.output for run in spoilt] == [[["", "UTC"]] * 2] * 9, [run.error for run in spoilt]
    assert count() == 4 * (5 + 3 + 1) + 1
    connections[DRAWN].close()
    figures = drawn.get_stats()
    assert figures["pool_size"] <= SIZE
    eventually(lambda: drawn.get_stats()["pool_available"] == drawn.get_stats()["pool_size"])


# -- durable's tables on a second database, in another time zone: no statement strays, and moments are moments


SECOND = "elsewhere"


def stray(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise AssertionError(f"a statement strayed to the default database: {sql}")


@pytest.fixture(params=[None, "Asia/Kathmandu"], ids=["utc", "kathmandu"])
def elsewhere(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    postgres_server: EmbeddedPostgres,
    redis_connection: redis.Redis,
) -> Iterator[str]:
    """A database beside the default one, which nothing may touch meanwhile."""
    config = {**database_from(postgres_server.create_database(SECOND)), "TIME_ZONE": request.param}
    with django_db_blocker.unblock(), migrated(SECOND, config):
        with connections[SECOND].cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS rows (name text)")
            cursor.execute("TRUNCATE rows")
        Run.objects.using(SECOND).all().delete()
        with (
            override_settings(DURABLE={"DATABASE": SECOND, "SHORT_SLEEP": 0.0}),
            connections["default"].execute_wrapper(stray),
        ):
            yield SECOND


def write(name: str) -> str:
    with connections[SECOND].cursor() as cursor:
        cursor.execute("INSERT INTO rows VALUES (%s)", [name])
    return name


def write_and_fail() -> None:
    write("lost")
    raise RuntimeError("after the row")


@workflow(name="faults.elsewhere")
def away(ctx: Context) -> list[Any]:
    row = ctx.step("row", write, "kept", atomic=True)
    ctx.try_step("lost", write_and_fail, atomic=True, max_retries=0)
    message = ctx.queue.next("wait", names=["go"], timeout="1 hour")
    moment = ctx.step("moment", lambda: datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    ctx.sleep("rest", "1 hour")
    return [row, message.body, moment.isoformat()]


def work() -> None:
    work_off(conf.QUEUE, store=store_for(conf.DATABASE), seconds=120)


@pytest.mark.slow
def test_a_run_lives_wholly_in_the_database_that_the_settings_name(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic(using=elsewhere):
        lost = away.start()
        transaction.set_rollback(True, using=elsewhere)
    assert not Run.objects.using(elsewhere).filter(pk=lost.id).exists()
    before = timezone.now()
    handle = away.start()
    work()
    assert handle.wake_at is not None
    assert timedelta(minutes=59) < handle.wake_at - before < timedelta(minutes=61)
    handle.send("go", "on")
    work()
    wake_at = handle.wake_at
    assert wake_at is not None
    assert timedelta(minutes=59) < wake_at - before < timedelta(minutes=61)
    monkeypatch.setattr(clock, "now", lambda: wake_at)
    work()
    assert handle.output == ["kept", "on", "2026-03-29T01:30:00+00:00"]
    with connections[elsewhere].cursor() as cursor:
        cursor.execute("SELECT name FROM rows")
        assert cursor.fetchall() == [("kept",)]
