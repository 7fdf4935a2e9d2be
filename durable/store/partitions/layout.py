"""The layout of the tables in partitions: what it is, and new tables in another one.

Owns the statements that make and replace tables, read from PostgreSQL's catalog: what operators have added to a table
(triggers, indexes, rights, settings of vacuum) is in the new one too. Must not decide when tables are replaced.
"""

# ruff: noqa: S608 - texts are made of names of the catalog; values are parameters

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import CursorWrapper
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable.conf import conf
from durable.store.routines.comparison import expected
from durable.store.routines.operations import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in partitions by the hash of the column `by`, with the primary key `key`.

    The key is unique among all partitions where it is that column. Otherwise it is unique in each partition, and a
    sequence gives it.
    """

    name: str
    key: str
    by: str

    @property
    def new(self) -> str:
        """The name of the table that is to replace it."""
        return f"{self.name}_new"

    @property
    def old(self) -> str:
        """The name of the table after it was replaced."""
        return f"{self.name}_old"

    def partition(self, number: int, into: int) -> str:
        return f"{self.name}_p{number}_of_{into}"


RUN: Final = Table(name="durable_run", key="id", by="id")
ENTRY: Final = Table(name="durable_entry", key="id", by="run_id")
TABLES: Final = (RUN, ENTRY)


class PartitionError(Exception):
    """The tables cannot be partitioned. The message says why, and what to do."""


def partitions(alias: str) -> int | None:
    """Return the number of partitions of each table, 0 for tables without; None without tables or PostgreSQL."""
    if connections[alias].vendor != "postgresql":
        return None
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM pg_inherits WHERE inhparent = c.oid) FROM pg_class AS c "
            "WHERE c.oid = to_regclass(%s)",
            [RUN.name],
        )
        found = cursor.fetchone()
    return None if found is None else int(found[0])


def counted(number: int) -> str:
    """Return so many partitions in words; 0 are none."""
    return f"{number} partitions" if number else "no partitions"


def use_schema(cursor: CursorWrapper) -> None:
    """Have this transaction make its tables in the schema of durable's."""
    cursor.execute(
        "SELECT set_config('search_path', concat_ws(', ', quote_ident(n.nspname), "
        "NULLIF(current_setting('search_path'), '')), true) "
        "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s::regclass",
        [RUN.name],
    )


def obstacles(cursor: CursorWrapper, alias: str) -> list[str]:
    """Return what refers to the tables and cannot follow them to others."""
    found = []
    names = [table.name for table in TABLES]
    known = [each.name for each in expected(alias) if isinstance(each, Function)]
    asked: list[tuple[str, str, list[list[str]] | list[str]]] = [
        ("the view {}", _VIEWS, [names]),
        ("the publication {}", _PUBLICATIONS, [names]),
        ("row security on {}", _ROW_SECURITY, [names]),
        ("the foreign key {}", _TO_ENTRIES, [ENTRY.name]),
        ("the function {}", f"SELECT signature FROM ({_WITH_ROW_TYPE}) AS f WHERE name <> ALL(%s)", [known]),
    ]
    for what, statement, parameters in asked:
        cursor.execute(statement, parameters)
        found += [what.format(name) for (name,) in cursor.fetchall()]
    return found


_VIEWS: Final = """SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid
WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = ANY(%s::regclass[]) AND d.refobjid <> r.ev_class"""
_PUBLICATIONS: Final = """SELECT DISTINCT p.pubname FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
WHERE r.prrelid = ANY(%s::regclass[])"""
_ROW_SECURITY: Final = "SELECT oid::regclass::text FROM pg_class WHERE oid = ANY(%s::regclass[]) AND relrowsecurity"
_TO_ENTRIES: Final = (
    "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND confrelid = %s::regclass"
)
#: The functions with a parameter or a result of the type of a row of runs.
_WITH_ROW_TYPE: Final = f"""SELECT p.oid, p.proname::text AS name, p.oid::regprocedure::text AS signature FROM pg_proc AS p
WHERE (SELECT reltype FROM pg_class WHERE oid = '{RUN.name}'::regclass)
  = ANY(p.prorettype || p.proargtypes::oid[] || COALESCE(p.proallargtypes, '{{}}'))"""


# -- new tables


def make(cursor: CursorWrapper, table: Table, into: int) -> None:
    """Make `table.new` in so many partitions (0: none), with the columns, indexes and rights of the table, and empty.

    It has no triggers and no foreign keys before it is in place: the table's own do all the work until then.
    """
    owner, options = _one(
        cursor,
        "SELECT quote_ident(pg_get_userbyid(c.relowner)), array_to_string(l.reloptions, ', ') FROM pg_class AS c "
        "JOIN pg_class AS l ON l.oid = COALESCE((SELECT min(inhrelid) FROM pg_inherits WHERE inhparent = c.oid), c.oid) "
        "WHERE c.oid = %s::regclass",
        table.name,
    )
    storage = f" WITH ({options})" if options else ""
    like = f"CREATE TABLE {table.new} (LIKE {table.name} INCLUDING ALL EXCLUDING INDEXES)"
    cursor.execute(f"{like} PARTITION BY HASH ({table.by})" if into else f"{like}{storage}")
    leaves = [table.partition(number, into) for number in range(into)]
    for number, leaf in enumerate(leaves):
        cursor.execute(
            f"CREATE TABLE {leaf} PARTITION OF {table.new} "
            f"FOR VALUES WITH (MODULUS {into}, REMAINDER {number}){storage}"
        )
    keyed = leaves if into and table.by != table.key else [table.new]
    for each in keyed:
        cursor.execute(f"ALTER TABLE {each} ADD CONSTRAINT {each}_pkey PRIMARY KEY ({table.key})")
    for name, definition, constraint in _indexes(cursor, table.name):
        if constraint is not None:
            cursor.execute(f'ALTER TABLE {table.new} ADD CONSTRAINT "{_beside(name, "_new")}" {constraint}')
        else:
            create, _, columns = definition.partition(" USING ")
            unique = "UNIQUE " if create.startswith("CREATE UNIQUE") else ""
            cursor.execute(f'CREATE {unique}INDEX "{_beside(name, "_new")}" ON {table.new} USING {columns}')
    for each in (table.new, *leaves):
        cursor.execute(f"ALTER TABLE {each} OWNER TO {owner}")
    _grant(cursor, _rights(cursor, "pg_class", "relacl", "relowner", table.name), table.new)
    if (sequence := _sequence(cursor, table.name, table.key)) is not None:
        rights = _rights(cursor, "pg_class", "relacl", "relowner", sequence)
        _grant(cursor, rights, f"SEQUENCE {_sequence(cursor, table.new, table.key)}")


def has_its_indexes(cursor: CursorWrapper, table: Table) -> bool:
    """Return whether the new table has the indexes of the table, but for the primary key."""
    wanted, made = ({name for name, *_ in _indexes(cursor, each)} for each in (table.name, table.new))
    return {_beside(name, "_new") for name in wanted} == made


def swap(cursor: CursorWrapper, alias: str, *, has_rows: bool) -> None:
    """Put `new` in the place of each table, which becomes `old`. The caller has locked them and what refers to them.

    With rows, foreign keys to runs are not validated, and those of runs are not there: `missing_references` says what
    follows.
    """
    changed = [each for each in expected(alias) if isinstance(each, Function)]
    rights = {}
    cursor.execute(f"SELECT oid, name, signature FROM ({_WITH_ROW_TYPE}) AS f")
    for oid, name, signature in cursor.fetchall():
        rights[name] = _rights(cursor, "pg_proc", "proacl", "proowner", oid)
        cursor.execute(f"DROP FUNCTION {signature}")
    for table in TABLES:
        incoming = list(_incoming(cursor, table.name))
        outgoing = _foreign_keys(cursor, table.name)
        cursor.execute(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal",
            [table.name],
        )
        triggers = [definition for (definition,) in cursor.fetchall()]
        for other, name, _ in incoming:
            cursor.execute(f'ALTER TABLE {other} DROP CONSTRAINT "{name}"')
        _rename(cursor, table)
        for definition in triggers:
            cursor.execute(definition)
        if not has_rows:
            for name, definition in outgoing:
                cursor.execute(f'ALTER TABLE {table.name} ADD CONSTRAINT "{name}" {definition}')
        for other, name, definition in incoming:
            unchecked = " NOT VALID" if has_rows else ""
            cursor.execute(f'ALTER TABLE {other} ADD CONSTRAINT "{name}" {definition}{unchecked}')
    for function in changed:  # sessions compile anew what names the type of a row of runs
        cursor.execute(function.replacing)
    for name, granted in rights.items():
        [function] = [each for each in changed if each.name == name]
        if granted is not None:
            cursor.execute(f"REVOKE ALL ON FUNCTION {function.signature} FROM PUBLIC")
            _grant(cursor, granted, f"FUNCTION {function.signature}")


def _rename(cursor: CursorWrapper, table: Table) -> None:
    names = [name for name, *_ in _indexes(cursor, table.name)]
    for name in names:
        cursor.execute(f'ALTER INDEX "{name}" RENAME TO "{_beside(name, "_old")}"')
        cursor.execute(f'ALTER INDEX "{_beside(name, "_new")}" RENAME TO "{name}"')
    key = f"{table.name}_pkey"
    cursor.execute(f"ALTER INDEX IF EXISTS {key} RENAME TO {key}_old")
    cursor.execute(f"ALTER INDEX IF EXISTS {table.new}_pkey RENAME TO {key}")
    sequence, successor = (_sequence(cursor, each, table.key) for each in (table.name, table.new))
    cursor.execute(f"ALTER TABLE {table.name} RENAME TO {table.old}")
    cursor.execute(f"ALTER TABLE {table.new} RENAME TO {table.name}")
    if sequence is not None:
        cursor.execute(f"SELECT setval(%s, last_value, is_called) FROM {sequence}", [successor])
        plain = sequence.rpartition(".")[2]
        cursor.execute(f"ALTER SEQUENCE {sequence} RENAME TO {plain}_old")
        cursor.execute(f"ALTER SEQUENCE {successor} RENAME TO {plain}")


def drop_old(cursor: CursorWrapper) -> None:
    """Drop the tables that were replaced."""
    cursor.execute(f"DROP TABLE IF EXISTS {', '.join(table.old for table in TABLES)}")


def referring(cursor: CursorWrapper) -> list[str]:
    """Return the tables with foreign keys to those in partitions."""
    found = {other for table in TABLES for other, *_ in _incoming(cursor, table.name)}
    return sorted(found)


def missing_references(alias: str) -> list[str]:
    """Return the statements after which all foreign keys from and to the new tables hold, as they did for the old ones.

    A foreign key of a partition is added unchecked and validated without a lock against writers. That of the whole
    table then takes over those of its partitions, and has nothing to check.
    """
    found = []
    with connections[alias].cursor() as cursor:
        for table in TABLES:
            there = {name for name, _ in _foreign_keys(cursor, table.name)}
            for name, definition in _foreign_keys(cursor, table.old):
                if name in there:
                    continue
                own = definition.replace(f"REFERENCES {table.old}(", f"REFERENCES {table.name}(")
                for leaf in _leaves(cursor, table.name):
                    state = dict(_validity(cursor, leaf))
                    if name not in state:
                        found.append(f'ALTER TABLE {leaf} ADD CONSTRAINT "{name}" {own} NOT VALID')
                    if not state.get(name):
                        found.append(f'ALTER TABLE {leaf} VALIDATE CONSTRAINT "{name}"')
                if _leaves(cursor, table.name) != [table.name]:
                    found.append(f'ALTER TABLE {table.name} ADD CONSTRAINT "{name}" {own}')
            for other, name, _ in _incoming(cursor, table.name):
                if not dict(_validity(cursor, other))[name]:
                    found.append(f'ALTER TABLE {other} VALIDATE CONSTRAINT "{name}"')
    return found


def _leaves(cursor: CursorWrapper, name: str) -> list[str]:
    """Return the partitions of the table, or the table if it has none."""
    cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass ORDER BY 1", [name])
    return [leaf for (leaf,) in cursor.fetchall()] or [name]


def _validity(cursor: CursorWrapper, name: str) -> list[tuple[str, bool]]:
    cursor.execute(
        "SELECT conname, convalidated FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass", [name]
    )
    return list(cursor.fetchall())


# -- the catalog


def _one(cursor: CursorWrapper, statement: str, *parameters: Any) -> tuple[Any, ...]:
    cursor.execute(statement, parameters)
    row: tuple[Any, ...] = cursor.fetchone()
    return row


def _indexes(cursor: CursorWrapper, name: str) -> list[tuple[str, str, str | None]]:
    """Return the indexes but for the primary key: name, definition, and that of the constraint it is for."""
    cursor.execute(
        "SELECT x.indexrelid::regclass::text, pg_get_indexdef(x.indexrelid), pg_get_constraintdef(c.oid) "
        "FROM pg_index AS x LEFT JOIN pg_constraint AS c "
        "ON c.conindid = x.indexrelid AND c.conrelid = x.indrelid AND c.contype IN ('u', 'x') "
        "WHERE x.indrelid = %s::regclass AND NOT x.indisprimary AND x.indisvalid ORDER BY x.indexrelid",
        [name],
    )
    return [(index.strip('"'), definition, constraint) for index, definition, constraint in cursor.fetchall()]


def _foreign_keys(cursor: CursorWrapper, name: str) -> list[tuple[str, str]]:
    cursor.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE contype = 'f' AND conparentid = 0 AND conrelid = %s::regclass",
        [name],
    )
    return list(cursor.fetchall())


def _incoming(cursor: CursorWrapper, name: str) -> Iterator[tuple[str, str, str]]:
    cursor.execute(
        "SELECT conrelid::regclass::text, conname, replace(pg_get_constraintdef(oid), ' NOT VALID', '') "
        "FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND confrelid = %s::regclass "
        "AND conrelid <> confrelid ORDER BY 1, 2",
        [name],
    )
    yield from cursor.fetchall()


def _sequence(cursor: CursorWrapper, name: str, column: str) -> str | None:
    [found] = _one(cursor, "SELECT pg_get_serial_sequence(%s, %s)", name, column)
    return None if found is None else str(found)


def _rights(
    cursor: CursorWrapper, catalog: str, rights: str, owner: str, which: str | int
) -> list[tuple[str, str, bool]] | None:
    """Return to whom which rights are granted, and whether they may grant them on; None for the server's default."""
    kind = "oid" if catalog == "pg_proc" else "regclass"
    [is_default] = _one(cursor, f"SELECT {rights} IS NULL FROM {catalog} WHERE oid = %s::{kind}", which)
    if is_default:
        return None
    cursor.execute(
        f"SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.privilege_type, a.is_grantable "
        f"FROM {catalog} AS c, aclexplode(c.{rights}) AS a WHERE c.oid = %s::{kind} AND a.grantee <> c.{owner}",
        [which],
    )
    return list(cursor.fetchall())


def _grant(cursor: CursorWrapper, rights: Iterable[tuple[str, str, bool]] | None, what: str) -> None:
    for grantee, right, is_grantable in rights or ():
        on = " WITH GRANT OPTION" if is_grantable else ""
        cursor.execute(f"GRANT {right} ON {what} TO {grantee}{on}")


def _beside(name: str, suffix: str) -> str:
    return f"{name[: 63 - len(suffix)]}{suffix}"


class Partition(Operation):
    """Partition the tables as `DURABLE["PARTITIONS"]` says, where they are empty; backwards, make them whole again.

    Tables with rows stay as they are: `manage.py durable partition` is for them. Does nothing on other databases.
    """

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Put tables in partitions in the place of empty ones."""
        self._make(app_label, schema_editor, conf.PARTITIONS)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Put tables without partitions in the place of empty ones. Raises PartitionError if they have rows."""
        if self._make(app_label, schema_editor, 0):
            return
        raise PartitionError(
            "The tables in partitions have rows, which migrations before do not know: "
            "run `manage.py durable partition --into 0` first."
        )

    def describe(self) -> str:
        return "Partition empty tables on PostgreSQL, if the settings say so"

    def _make(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, into: int) -> bool:
        """Return False if the tables have rows, and other partitions than these."""
        editor: Any = schema_editor
        alias = editor.connection.alias
        if editor.collect_sql or not router.allow_migrate(alias, app_label) or partitions(alias) in (None, into):
            return True
        with editor.connection.cursor() as cursor:
            use_schema(cursor)
            if _have_rows(cursor):
                return False
            for table in TABLES:
                make(cursor, table, into)
            swap(cursor, alias, has_rows=False)
            drop_old(cursor)
        return True


def _have_rows(cursor: CursorWrapper) -> bool:
    cursor.execute("SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {table.name})" for table in TABLES))
    [(found,)] = cursor.fetchall()
    return bool(found)
