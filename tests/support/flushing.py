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
        is_truncated = connection.vendor == "postgresql"  # which needs the tables that refer to them, too
        statements = connection.ops.sql_flush(no_style(), written, allow_cascade=is_truncated)
        connection.ops.execute_sql_flush(statements)
    ContentType.objects.clear_cache()  # as `post_migrate` does
    restore(using=alias)


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
