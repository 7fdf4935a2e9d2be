"""Partition tables that have rows, while workers write to them: copy them behind triggers, then swap in one short lock.

1. New tables are made beside the old ones. Triggers on the old ones repeat there what each transaction writes, as a
   part of it, and note the rows that it deletes.
2. The rows that were there before are copied, some pages of the table in one transaction, with what has been done. A
   row that the triggers have brought already stays as it is. A copied row that was deleted meanwhile is deleted, by the
   notes.
3. In one transaction, under a lock that keeps everybody out, the new tables take the place of the old ones.
4. The foreign keys that refer to the new tables are validated, and the old tables are dropped.

Each step is one or many transactions that are whole or have not happened, and what the database has says which is next.
So the process may be killed at each point, and the next one goes on. A transaction of the copy waits for locks for less
time than PostgreSQL waits before it looks for deadlocks: so the copy gives way, never a worker.
"""

# ruff: noqa: S608 - texts are made of names of the catalog; values are parameters

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from django.db import OperationalError, connections, transaction
from django.db.backends.utils import CursorWrapper
from psycopg.errors import LockNotAvailable

from durable.store.partitions.layout import (
    RUN,
    TABLES,
    PartitionError,
    Table,
    counted,
    drop_old,
    has_its_indexes,
    make,
    missing_references,
    obstacles,
    partitions,
    referring,
    swap,
    use_schema,
)

PAGES: Final = 128  # of 8 kB, that one transaction copies: a writer waits for one such transaction at most
_PATIENCE: Final = 0.25  # seconds for which a transaction waits for a lock; PostgreSQL looks for deadlocks after one
_TRIES: Final = 600  # to get a lock
_PAUSE: Final = 0.5  # seconds between two tries
_TOLD_OF_LOCKS: Final = 20  # tries, after which the wait is reported
_STEP: Final = 5  # percent, after which progress is reported again

_PROGRESS: Final = "durable_partition_progress"
_GONE: Final = "durable_partition_gone"

Tell = Callable[[str], None]
_Result = TypeVar("_Result")


def partition(alias: str, into: int, tell: Tell) -> None:
    """Partition the tables of the database `alias` into so many parts (0: none), or go on with it.

    Tells what it does. Raises PartitionError if it cannot, and the database's errors.
    """
    present = partitions(alias)
    if present is None:
        raise PartitionError(
            f'The database "{alias}" has no tables of durable on PostgreSQL: only those have partitions.'
        )
    begun = _begun(alias)
    if begun is None and not _is_swapped(alias):
        if present == into:
            tell(f"the tables have {counted(into)} already")
            return
        _begin(alias, into, tell)
        begun = into
    if begun is not None:
        if begun != into:
            raise PartitionError(
                f"The tables are being copied to {counted(begun)}: say --into {begun} to go on, or --abandon to give it up."
            )
        _copy_all(alias, tell)
        _swap(alias, tell)
    _finish(alias, tell)
    tell(f"the tables have {counted(partitions(alias) or 0)}")


def abandon(alias: str, tell: Tell) -> None:
    """Drop what a copy has made so far. Raises PartitionError if there is none; the tables stay as they were."""
    if _begun(alias) is None:
        raise PartitionError("No copy is under way. Once the new tables are in place, `--into` makes others of them.")

    def work(cursor: CursorWrapper) -> None:
        _lock(cursor, [table.name for table in TABLES], "ACCESS EXCLUSIVE")
        for table in TABLES:
            _stop_mirroring(cursor, table)
            cursor.execute(f"DROP TABLE {table.new}")
        cursor.execute(f"DROP TABLE {_PROGRESS}, {_GONE}")

    _retried(alias, work, tell)
    tell("the copy is given up, and what it had made is dropped")


def _begun(alias: str) -> int | None:
    """Return into how many partitions a copy is under way that has not come to its swap; None without one."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [_PROGRESS])
        [(is_there,)] = cursor.fetchall()
        if not is_there:
            return None
        cursor.execute(f"SELECT partitions FROM {_PROGRESS} LIMIT 1")
        [(into,)] = cursor.fetchall()
    return int(into)


def _is_swapped(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [RUN.old])
        [(found,)] = cursor.fetchall()
    return bool(found)


# -- 1. new tables, and what is written from now on


def _begin(alias: str, into: int, tell: Tell) -> None:
    def work(cursor: CursorWrapper) -> None:
        _lock(cursor, [table.name for table in TABLES], "SHARE ROW EXCLUSIVE")
        if found := obstacles(cursor, alias):
            raise PartitionError(
                f"These refer to the tables and would stay with the old ones: {', '.join(found)}. "
                "Drop them, and make them again afterwards."
            )
        cursor.execute(
            f"CREATE TABLE {_PROGRESS} ("
            "source text PRIMARY KEY, target text NOT NULL, partitions integer NOT NULL, "
            "next_page bigint NOT NULL, pages bigint NOT NULL)"
        )
        cursor.execute(f"CREATE TABLE {_GONE} (source text NOT NULL, key text NOT NULL)")
        cursor.execute(f"GRANT INSERT ON {_GONE} TO PUBLIC")
        for table in TABLES:
            make(cursor, table, into)
            _mirror(cursor, table)
            # a table without partitions is not a row of its own partition tree
            cursor.execute(
                f"INSERT INTO {_PROGRESS} SELECT source, %s, %s, 0, "
                "pg_relation_size(source::regclass) / current_setting('block_size')::bigint "
                "FROM (SELECT relid::text FROM pg_partition_tree(%s) WHERE isleaf "
                "UNION SELECT %s WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%s))) AS s(source)",
                [table.name, into, table.name, table.name, table.name],
            )

    _retried(alias, work, tell)
    tell(f"made tables with {counted(into)} beside the old ones; what is written goes to both")


def _mirror(cursor: CursorWrapper, table: Table) -> None:
    """Have each row that is written be copied as it is then; a later trigger of the statement may have changed it."""
    columns = _columns(cursor, table.name)
    names = ", ".join(columns)
    unique = "(id)" if table is RUN else "(run_id, location)"
    changes = ", ".join(f"{each} = EXCLUDED.{each}" for each in columns)
    function = f"durable_mirror_{table.name.removeprefix('durable_')}"
    gone = (
        f"DELETE FROM {table.new} WHERE {table.key} = OLD.{table.key} AND {table.by} = OLD.{table.by};\n"
        f"    INSERT INTO {_GONE} (source, key) VALUES ('{table.name}', OLD.{table.key}::text);"
    )
    cursor.execute(
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$\n"
        "BEGIN\n"
        f"  IF TG_OP = 'TRUNCATE' THEN\n    TRUNCATE {table.new};\n    RETURN NULL;\n  END IF;\n"
        f"  IF TG_OP = 'DELETE' THEN\n    {gone}\n    RETURN NULL;\n  END IF;\n"
        f"  IF TG_OP = 'UPDATE' AND OLD.{table.key} <> NEW.{table.key} THEN\n    {gone}\n  END IF;\n"
        f"  INSERT INTO {table.new} ({names}) SELECT {names} FROM {table.name} WHERE {table.key} = NEW.{table.key}\n"
        f"    AND {table.by} = NEW.{table.by}\n"
        f"  ON CONFLICT {unique} DO UPDATE SET {changes};\n"
        "  RETURN NULL;\nEND $$"
    )
    cursor.execute(
        f"CREATE TRIGGER durable_mirror AFTER INSERT OR UPDATE OR DELETE ON {table.name} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()"
    )
    cursor.execute(
        f"CREATE TRIGGER durable_mirror_emptied AFTER TRUNCATE ON {table.name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )


def _stop_mirroring(cursor: CursorWrapper, table: Table) -> None:
    cursor.execute(f"DROP FUNCTION durable_mirror_{table.name.removeprefix('durable_')} CASCADE")


def _columns(cursor: CursorWrapper, name: str) -> list[str]:
    cursor.execute(
        "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped ORDER BY attnum",
        [name],
    )
    return [name for (name,) in cursor.fetchall()]


# -- 2. the rows that were there before


def _copy_all(alias: str, tell: Tell) -> None:
    told = -_STEP
    done, pages = 0, 1
    while done < pages:
        done, pages = _retried(alias, _copy, tell)
        percent = 100 * done // pages if pages else 100
        if percent >= told + _STEP or done >= pages:
            tell(f"copied {percent} % ({done} of {pages} pages)")
            told = percent
    for table in TABLES:
        _retried(alias, partial(_analyze, table), tell)


def _analyze(table: Table, cursor: CursorWrapper) -> None:
    cursor.execute(f"ANALYZE {table.new}")


def _copy(cursor: CursorWrapper) -> tuple[int, int]:
    """Copy the next pages. Return how many pages are copied, of how many."""
    cursor.execute(
        f"SELECT source, target, next_page FROM {_PROGRESS} WHERE next_page < pages ORDER BY target DESC, source "
        "LIMIT 1 FOR UPDATE"
    )
    for source, target, first in cursor.fetchall():
        table = next(each for each in TABLES if each.name == target)
        names = ", ".join(_columns(cursor, table.new))
        cursor.execute(
            f"INSERT INTO {table.new} ({names}) SELECT {names} FROM ONLY {source} "
            f"WHERE ctid >= '({first},0)'::tid AND ctid < '({first + PAGES},0)'::tid ON CONFLICT DO NOTHING"
        )
        cursor.execute(
            f"UPDATE {_PROGRESS} SET next_page = LEAST(pages, next_page + %s) WHERE source = %s", [PAGES, source]
        )
    for table in TABLES:
        _forget_deleted(cursor, table)
    cursor.execute(f"SELECT sum(next_page)::bigint, sum(pages)::bigint FROM {_PROGRESS}")
    [(done, pages)] = cursor.fetchall()
    return int(done), int(pages)


def _forget_deleted(cursor: CursorWrapper, table: Table) -> None:
    """Delete copies of rows that were deleted. Whoever deleted a row did not see a copy that was not committed yet."""
    cursor.execute(f"DELETE FROM {_GONE} WHERE source = %s RETURNING key", [table.name])
    if keys := [key for (key,) in cursor.fetchall()]:
        kind = "text" if table is RUN else "bigint"
        cursor.execute(
            f"DELETE FROM {table.new} AS n WHERE n.{table.key} = ANY(%s::{kind}[]) "
            f"AND NOT EXISTS (SELECT FROM {table.name} AS o WHERE o.{table.key} = n.{table.key})",
            [keys],
        )


# -- 3. the swap


def _swap(alias: str, tell: Tell) -> None:
    def work(cursor: CursorWrapper) -> float:
        _lock(cursor, [*(table.name for table in TABLES), *referring(cursor)], "ACCESS EXCLUSIVE")
        began = time.monotonic()
        for table in TABLES:
            if _columns(cursor, table.name) != _columns(cursor, table.new) or not has_its_indexes(cursor, table):
                raise PartitionError(
                    f"{table.name} has got or lost a column or an index since the copy was begun, by a migration for "
                    "example: say --abandon, and begin again."
                )
            _forget_deleted(cursor, table)
            _stop_mirroring(cursor, table)
        cursor.execute(f"DROP TABLE {_PROGRESS}, {_GONE}")
        swap(cursor, alias, has_rows=True)
        return time.monotonic() - began

    length = _retried(alias, work, tell)
    tell(f"put the new tables in the place of the old ones, under a lock of {length:.2f} s")


# -- 4. what is left


def _finish(alias: str, tell: Tell) -> None:
    for statement in missing_references(alias):
        _retried(alias, partial(_execute, statement), tell)
    _retried(alias, drop_old, tell)
    tell("validated the foreign keys, and dropped the old tables")


# -- transactions


def _retried(alias: str, work: Callable[[CursorWrapper], _Result], tell: Tell) -> _Result:
    """Do the work in a transaction that gives way: it waits for a lock for a moment only, and is tried again."""
    for number in range(_TRIES):
        if number == _TOLD_OF_LOCKS:
            tell("waiting for a lock: a transaction uses the tables for long, which pg_stat_activity shows")
        try:
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                use_schema(cursor)
                cursor.execute(
                    f"SET LOCAL lock_timeout = '{round(_PATIENCE * 1000)}ms'; SET LOCAL statement_timeout = 0"
                )
                return work(cursor)
        except OperationalError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
        time.sleep(_PAUSE)
    raise PartitionError("A lock was not to be had. What is done stays done: the same command goes on with it.")


def _execute(statement: str, cursor: CursorWrapper) -> None:
    cursor.execute(statement)


def _lock(cursor: CursorWrapper, names: list[str], mode: str) -> None:
    cursor.execute(f"LOCK TABLE {', '.join(names)} IN {mode} MODE")
