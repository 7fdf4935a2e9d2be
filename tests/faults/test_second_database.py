"""Durable's tables on a second database, in another time zone: no statement strays, and moments are moments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, workflow
from durable.conf import conf
from durable.core import clock
from durable.models import Run
from durable.store import store_for
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis]

ALIAS = "elsewhere"


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
    config = {**database_from(postgres_server.create_database(ALIAS)), "TIME_ZONE": request.param}
    with django_db_blocker.unblock(), migrated(ALIAS, config):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS rows (name text)")
            cursor.execute("TRUNCATE rows")
        Run.objects.using(ALIAS).all().delete()
        with (
            override_settings(DURABLE={"DATABASE": ALIAS, "SHORT_SLEEP": 0.0}),
            connections["default"].execute_wrapper(stray),
        ):
            yield ALIAS


def write(name: str) -> str:
    with connections[ALIAS].cursor() as cursor:
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
