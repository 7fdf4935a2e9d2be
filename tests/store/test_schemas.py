"""A schema for each tenant in one database: the same code, tables of its own for each, and nothing in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
import redis
from django.db import connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, get_run, workflow
from durable.models import Run
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis]

TENANTS = ("tenant_one", "tenant_two")


@workflow(name="schemas.greet")
def greet(ctx: Context, name: str) -> str:
    word: str = ctx.step("word", str.upper, name, atomic=True)
    return f"{word}{ctx.queue.next('end').body}"


@pytest.fixture(scope="module", autouse=True)
def schemas(
    postgres_server: EmbeddedPostgres, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """An alias for each tenant, in whose sessions its schema is the only one."""
    url = postgres_server.create_database("tenants")
    with psycopg.connect(url, autocommit=True) as session:
        for each in TENANTS:
            session.execute(f"CREATE SCHEMA {each}")
    with django_db_blocker.unblock(), ExitStack() as stack:
        for each in TENANTS:
            config = database_from(url)
            stack.enter_context(migrated(each, {**config, "OPTIONS": {"options": f"-c search_path={each}"}}))
        yield


@pytest.mark.slow
def test_runs_of_two_tenants_know_nothing_of_each_other(redis_connection: redis.Redis) -> None:
    for tenant, name in zip(TENANTS, ("ada", "bob"), strict=True):
        with override_settings(DURABLE={"DATABASE": tenant}):
            greet.using(id="the same").start(name)
    for tenant, name in zip(TENANTS, ("ADA", "BOB"), strict=True):
        with override_settings(DURABLE={"DATABASE": tenant}):
            work_off()
            get_run("the same").send("end", "!")
            work_off()
            assert get_run("the same").result(timeout=0) == f"{name}!"
    for tenant in TENANTS:
        assert Run.objects.using(tenant).count() == 1
        with connections[tenant].cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name LIKE 'durable_%'"
            )
            assert sorted(cursor.fetchall()) == sorted((each,) for each in TENANTS)
