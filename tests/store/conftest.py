"""The stores under test: each test of this directory runs once for each of them.

The databases are the tests' own, beside the default one: a SQLite file and a database on the session's PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from durable.testing import Harness
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.actors import Pools, Race, races
from tests.store.emptying import POSTGRES as POSTGRES
from tests.store.emptying import SQLITE as SQLITE
from tests.store.emptying import empty, tables
from tests.support.databases import migrated
from tests.support.stores import in_force


@pytest.fixture(scope="session")
def sqlite_alias(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("store") / "store.sqlite3"
    # Django's own defaults, not the project's: a store must not depend on a transaction mode
    options = {"timeout": 60, "init_command": "PRAGMA synchronous = OFF"}  # this machine need not crash
    config = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": options}
    with django_db_blocker.unblock(), migrated(SQLITE, config):
        yield SQLITE


@pytest.fixture(scope="session")
def postgres_alias(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, postgres_server: EmbeddedPostgres
) -> Iterator[str]:
    config = database_from(postgres_server.create_database("stores"))
    with django_db_blocker.unblock(), migrated(POSTGRES, {**config, "CONN_HEALTH_CHECKS": False}):
        yield POSTGRES


@pytest.fixture
def sqlite_store(sqlite_alias: str, django_db_blocker: DjangoDbBlocker) -> Iterator[SQLiteStore]:
    with django_db_blocker.unblock():
        empty(sqlite_alias)
        yield SQLiteStore(sqlite_alias)


@pytest.fixture
def postgres_store(postgres_alias: str, django_db_blocker: DjangoDbBlocker) -> Iterator[PostgresStore]:
    with django_db_blocker.unblock():
        empty(postgres_alias)
        yield PostgresStore(postgres_alias)


@pytest.fixture(params=["memory", "sqlite_store", "postgres_store"])
def store(request: pytest.FixtureRequest) -> Store:
    """Every store in turn."""
    found: Store = MemoryStore() if request.param == "memory" else request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["sqlite_store", "postgres_store"])
def database_store(request: pytest.FixtureRequest) -> SQLiteStore | PostgresStore:
    """Every store on a database in turn."""
    found: SQLiteStore | PostgresStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def new_tables(postgres_alias: str, django_db_blocker: DjangoDbBlocker) -> None:
    """Tables as new: no dead rows, index pages or statistics that other tests have left, on which plans depend."""
    with django_db_blocker.unblock(), connections[postgres_alias].cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables())} CASCADE")


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness() as harness:
        yield harness


@pytest.fixture(params=["memory", "database"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What is in force: a harness, or the store of the tests' database."""
    with Harness() if request.param == "memory" else in_force():
        yield request.param


@pytest.fixture(params=races(), ids="-".join)
def race(request: pytest.FixtureRequest, postgres_store: PostgresStore, pools: Pools) -> Race:
    """Every order of two transactions, with the ends of the two that matter, in turn."""
    order, *ends = request.param
    return Race(postgres_store, pools, order, tuple(ends))


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Two threads, each with a connection of its own, for `tests.store.actors`."""
    pools = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    yield pools
    for pool in pools:
        pool.submit(connections.close_all).result(120)
        pool.shutdown()
