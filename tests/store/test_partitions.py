"""Tables in partitions: which migrations make them, what is said of others, and that claims and look-ups know them.

`pytest --partitions 8 tests/store` has the whole contract on such tables, as `.ci/run` does. How tables with rows are
partitioned is in `faults/test_partitioning.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import call_command
from django.db import connections
from django.db.models import Q
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable.models import Entry, Run
from durable.store.partitions.copying import partition
from durable.store.partitions.layout import PartitionError, partitions
from durable.store.postgres import PostgresStore, sql
from durable.store.routines import differences
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.making import LEASE, NOW, a_run, an_entry, commit, started
from tests.support.databases import migrated

pytestmark = pytest.mark.slow

ALIAS = "store_in_partitions"
NUMBERS = count()

MakeDatabase = Callable[[int], PostgresStore]


def in_force(wanted: int) -> override_settings:
    return override_settings(DURABLE={"DATABASE": ALIAS, "PARTITIONS": wanted})


@pytest.fixture
def migrate(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, postgres_server: EmbeddedPostgres
) -> Iterator[MakeDatabase]:
    """Make a new database with so many partitions in the settings."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def make(wanted: int) -> PostgresStore:
            config = database_from(postgres_server.create_database(f"partitions_{next(NUMBERS)}"))
            stack.enter_context(in_force(wanted))
            stack.enter_context(migrated(ALIAS, {**config, "CONN_HEALTH_CHECKS": False}))
            return PostgresStore(ALIAS)

        yield make


def errors() -> list[Any]:
    return [each for each in run_checks(tags=[Tags.database], databases=[ALIAS]) if each.id == "durable.E024"]


def test_the_first_migrate_makes_the_partitions_that_the_settings_say(migrate: MakeDatabase) -> None:
    store = migrate(4)
    assert (partitions(ALIAS), differences(ALIAS), errors()) == (4, [], [])
    commit(store, started(store), entries=[an_entry("a")])
    call_command("migrate", "durable", database=ALIAS, verbosity=0)  # nothing is left to do
    assert Entry.objects.using(ALIAS).get().run_id == Run.objects.using(ALIAS).get().id


@pytest.mark.parametrize(("made", "wanted"), [(4, 0), (4, 8), (0, 8)])
def test_other_partitions_than_the_settings_say_are_reported(migrate: MakeDatabase, made: int, wanted: int) -> None:
    migrate(made)
    with in_force(wanted):
        [error] = errors()
    assert f"{made or 'no'} partitions" in error.msg
    assert f"{wanted or 'no'} partitions" in error.msg
    assert f"durable partition --into {wanted}" in error.hint


def test_migrate_leaves_tables_with_rows_as_they_are(migrate: MakeDatabase) -> None:
    store = migrate(0)
    call_command("migrate", "durable", "0003", database=ALIAS, verbosity=0)
    store.create([a_run("there")])
    with in_force(4):
        call_command("migrate", "durable", database=ALIAS, verbosity=0, skip_checks=True)
        assert partitions(ALIAS) == 0
        assert len(errors()) == 1


def test_migrations_before_partitions_are_for_empty_tables(migrate: MakeDatabase) -> None:
    store = migrate(4)
    store.create([a_run("there")])
    with pytest.raises(PartitionError, match="durable partition --into 0"):
        call_command("migrate", "durable", "0003", database=ALIAS, verbosity=0)
    Run.objects.using(ALIAS).all()._raw_delete(ALIAS)  # the tables of later migrations are gone already
    call_command("migrate", "durable", "0003", database=ALIAS, verbosity=0)
    assert (partitions(ALIAS), differences(ALIAS)) == (0, [])


def test_a_look_up_by_the_run_reads_one_partition(migrate: MakeDatabase) -> None:
    store = migrate(4)
    commit(store, started(store, "one"), entries=[an_entry("a")])
    for statement in (sql.TRY_LOCK_RUN, sql.LOAD):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(f"EXPLAIN {statement}", {"run": "one"})
            plan = " ".join(line for (line,) in cursor.fetchall())
        assert plan.count(" on durable_run_p") + plan.count(" on durable_entry_p") == 1, plan


def test_the_few_entries_of_a_run_are_read_from_its_partition(migrate: MakeDatabase) -> None:
    store = migrate(4)
    commit(store, started(store, "one"), entries=[an_entry("a")])
    found = Entry.objects.using(ALIAS).few_of("one", Q(attempts__gte=0))
    assert [each.location for each in found] == ["a"]
    plan = found.explain()
    assert len(set(re.findall(r" on (durable_entry_p\w+)", plan))) == 1, plan


def test_a_claim_counts_what_it_has_read_of_all_partitions(migrate: MakeDatabase) -> None:
    store = migrate(4)
    store.create([a_run(f"run-{number}") for number in range(50)])
    claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    assert (len(claimed), claimed.passed_over <= 4) == (10, True)  # the first of each partition
    assert store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=100).passed_over >= 10


def test_sqlite_has_none(sqlite_alias: str, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), override_settings(DURABLE={"DATABASE": sqlite_alias, "PARTITIONS": 4}):
        assert partitions(sqlite_alias) is None
        assert [
            each for each in run_checks(tags=[Tags.database], databases=[sqlite_alias]) if each.id == "durable.E024"
        ] == []
        with pytest.raises(PartitionError, match="only those have partitions"):
            partition(sqlite_alias, 4, print)
