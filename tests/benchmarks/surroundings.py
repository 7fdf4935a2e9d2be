"""The servers of a run: one PostgreSQL with fsync on and one Redis, embedded unless the environment names others.

Whatever the server, the databases are made for the run and dropped after it; nothing in Redis is flushed. Must not
import Django before the environment is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from project.servers import EmbeddedPostgres, EmbeddedRedis

NAME = "durable_benchmarks"
#: What the server must keep beside what is measured; it costs every peer the same.
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}


@contextmanager
def surroundings() -> Iterator[None]:
    """Inside, the environment names the servers and Django is set up on a migrated database."""
    with ExitStack() as stack:
        server = os.environ.get("DATABASE_URL") or stack.enter_context(EmbeddedPostgres(settings=SETTINGS)).url
        redis = os.environ.get("REDIS_URL") or stack.enter_context(EmbeddedRedis()).url
        url = stack.enter_context(database(server, NAME))
        os.environ |= {
            "DATABASE_URL": url,
            "REDIS_URL": redis,
            "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
            "DEBUG": "0",
            "SECRET_KEY": "of the benchmarks",
            "LOG_LEVEL": "WARNING",
        }
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        try:
            yield
        finally:
            connections.close_all()


@contextmanager
def database(server: str, name: str) -> Iterator[str]:
    """A database of this name on the server of the URL, empty at first and dropped at the end; its URL."""
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(drop)
