"""The end of a test that commits: its rows are deleted, and all that it has not written stays.

Owns a faster `flush` for `TransactionTestCase`. Django's own deletes the content types and the permissions too, and has
`post_migrate` make them again, which is most of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

from durable.store.routines import restore

#: Tables whose rows are made by `post_migrate`. No test changes them; if one did, Django's own flush would follow.
KEPT: Final = (ContentType, Permission)
#: PostgreSQL plans for a new table as if it had so many pages.
PAGES_OF_A_NEW_TABLE: Final = 10
#: What the routines of a database were when they were last found right.
_right: dict[str, list[tuple[Any, ...]]] = {}


@contextmanager
def fast_flush(aliases: Iterable[str]) -> Iterator[None]:
    """Inside, the tests that commit are flushed by `flush`, on those of the databases that the session has created."""
    made = {alias: _made(alias) for alias in aliases if _is_migrated(alias)}
    flush_all = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]

    def tear_down(case: Any) -> None:
        names = case._databases_names(include_mirrors=False)
        is_plain = case.available_apps is None and not case.serialized_rollback
        if is_plain and all(alias in made and made[alias] == _made(alias) for alias in names):
            for alias in names:
                flush(alias)
            return
        flush_all(case)
        made.update({alias: _made(alias) for alias in names if alias in made})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", tear_down)
        yield


def flush(alias: str) -> None:
    """Empty the tables of the database that have been written to, and restore durable's functions and triggers."""
    connection = connections[alias]
    if written := _written(alias):
        connection.ops.execute_sql_flush(_statements(alias, written))
    ContentType.objects.clear_cache()  # as `post_migrate` does
    if connection.vendor == "postgresql" and _right.get(alias) != _routines(alias):
        restore(using=alias)
        _right[alias] = _routines(alias)


def _statements(alias: str, tables: list[str]) -> list[str]:
    """Return what empties the tables.

    A TRUNCATE makes new files for each table that refers to one of them and for each index, and has every session plan
    its statements anew: on PostgreSQL 60 ms. To delete the rows takes 2 ms. It leaves pages behind, so it is done only
    as long as PostgreSQL plans for the tables as for new ones.
    """
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return connection.ops.sql_flush(no_style(), tables)
    if not _are_as_new(alias, tables):
        return connection.ops.sql_flush(no_style(), tables, allow_cascade=True)  # the tables that refer to them, too
    deletions = [f"DELETE FROM {table}" for table in tables]
    # without triggers and checks of references; after the transactions that others have begun
    before = ["SET LOCAL session_replication_role = replica", f"LOCK TABLE {', '.join(tables)}"]
    return ["; ".join([*before, *deletions])]


def _are_as_new(alias: str, tables: list[str]) -> bool:
    """Whether the tables are small and without statistics, and the role may delete from them without triggers."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('is_superuser')::boolean AND bool_and(reltuples < 0 "
            "AND pg_relation_size(oid) < %s * current_setting('block_size')::integer) FROM pg_class WHERE oid IN ("
            "SELECT to_regclass(name) FROM unnest(%s::text[]) AS each(name) UNION ALL "
            "SELECT relid FROM unnest(%s::text[]) AS each(name), pg_partition_tree(to_regclass(name)))",
            [PAGES_OF_A_NEW_TABLE, tables, tables],
        )
        ((answer,),) = cursor.fetchall()
        return bool(answer)


def _routines(alias: str) -> list[tuple[Any, ...]]:
    """Return which versions of its functions and triggers the database has, in short."""
    each = " UNION ALL ".join(
        f"SELECT count(*), sum(oid::bigint), sum(xmin::text::bigint) FROM {catalogue} WHERE {is_ours}"
        for catalogue, is_ours in (("pg_proc", "proname LIKE 'durable%'"), ("pg_trigger", "NOT tgisinternal"))
    )
    with connections[alias].cursor() as cursor:
        cursor.execute(each)
        return list(cursor.fetchall())


def _is_migrated(alias: str) -> bool:
    return ContentType._meta.db_table in connections[alias].introspection.table_names()


def _made(alias: str) -> list[tuple[Any, ...]]:
    """Return what the kept tables contain, in short."""
    each = " UNION ALL ".join(f"SELECT count(*), sum(id), max(id) FROM {model._meta.db_table}" for model in KEPT)
    with connections[alias].cursor() as cursor:
        cursor.execute(each)
        return list(cursor.fetchall())


def _written(alias: str) -> list[str]:
    """Return the tables that are not empty; on PostgreSQL those that have pages."""
    connection = connections[alias]
    kept = {model._meta.db_table for model in KEPT}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            names = sorted(set(connection.introspection.django_table_names()) - kept)
            cursor.execute(
                "SELECT name FROM unnest(%s::text[]) AS each(name) WHERE pg_relation_size(to_regclass(name)) > 0 "
                "OR EXISTS (SELECT FROM pg_partition_tree(to_regclass(name)) WHERE pg_relation_size(relid) > 0)",
                [names],
            )
            return [name for (name,) in cursor.fetchall()]
        names = sorted(set(connection.introspection.django_table_names(only_existing=True)) - kept)
        cursor.execute(" UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in names))
        return [name for (name,) in cursor.fetchall()]
