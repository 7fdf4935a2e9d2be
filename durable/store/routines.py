"""Check on PostgreSQL that the database's functions and triggers are those of the migrations, and restore them.

The applied migrations define the expected ones; a later migration that drops some names them in `DROPPED`. A function's
text and settings are compared, and a trigger's definition and whether it is enabled. What an operator may change
without changing their effect (owner, grants, further settings, schema) is not compared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

__all__ = ["Difference", "differences", "restore"]

logger = logging.getLogger("durable.store")

#: The migrations that create functions or triggers.
MIGRATIONS: Final = ("0002_flush", "0007_functions", "0008_guards", "0009_compensate", "0010_claims")

_FUNCTION: Final = re.compile(
    r"CREATE FUNCTION (?P<name>\w+)\((?P<parameters>[^)]*)\).*?LANGUAGE plpgsql(?P<settings>.*?)AS \$\$(?P<body>.*)\$\$",
    re.DOTALL,
)
_SETTING: Final = re.compile(r"SET (\w+) TO (\w+)")
_TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .*? ON (\w+) ", re.DOTALL)
_SCHEMA: Final = re.compile(r'(?:"[^"]+"|\w+)\.(?=durable_)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A function or trigger that differs from the migrations. `problem` is "missing", "different" or "disabled"."""

    kind: str
    name: str
    problem: str
    mending: tuple[str, ...]  # statements that restore it

    def __str__(self) -> str:
        verb = "differs from the one in the migrations" if self.problem == "different" else f"is {self.problem}"
        return f"the {self.kind} {self.name} {verb}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    name: str
    statement: str
    signature: str  # as to_regprocedure takes it
    body: str
    settings: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    name: str
    table: str
    statement: str


def differences(alias: str) -> list[Difference]:
    """Return the differences of the database `alias`; [] if it is not PostgreSQL or does not have durable's tables.

    Makes two queries besides the one for the migrations. Raises the database's errors.
    """
    if connections[alias].vendor != "postgresql" or not _query(alias, "SELECT to_regclass('durable_run')")[0][0]:
        return []
    functions, triggers = _expected(alias)
    return [*_wrong_functions(alias, functions), *_wrong_triggers(alias, triggers)]


def restore(*, using: str, **_: object) -> None:
    """Restore functions and triggers that differ from the applied migrations. A receiver of `post_migrate`.

    It also creates the functions where tables are created without migrations, as in some test runs.
    """
    found = differences(using)
    if not found:
        return
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        for each in found:
            for statement in each.mending:
                cursor.execute(statement)
    if MigrationLoader.migrations_module("durable")[0] is not None:
        logger.warning("made anew, as the migrations say: %s", ", ".join(each.name for each in found))


def _expected(alias: str) -> tuple[list[_Function], list[_Trigger]]:
    are_migrated = MigrationLoader.migrations_module("durable")[0] is not None
    applied = {name for app, name in MigrationRecorder(connections[alias]).applied_migrations() if app == "durable"}
    functions: dict[str, str] = {}
    triggers: list[str] = []
    for name in MIGRATIONS:
        module = import_module(f"durable.migrations.{name}")
        is_guarding = hasattr(module, "triggers")
        if name in applied if are_migrated else not is_guarding:  # without migrations, the models' checks guard
            functions |= module.FUNCTIONS
            triggers += module.triggers() if is_guarding else []
            for dropped in getattr(module, "DROPPED", ()):
                functions.pop(dropped, None)
    return [_function(each) for each in functions.values()], [_trigger(each) for each in triggers]


def _function(statement: str) -> _Function:
    found = _FUNCTION.search(statement)
    assert found is not None, statement
    parameters = [each.split() for each in found["parameters"].split(",") if each.strip()]
    types = ", ".join(each[-1] for each in parameters if each[0] != "OUT")
    return _Function(
        name=found["name"],
        statement=statement,
        signature=f"{found['name']}({types})",
        body=found["body"],
        settings=frozenset(f"{name}={value}" for name, value in _SETTING.findall(found["settings"])),
    )


def _trigger(statement: str) -> _Trigger:
    found = _TRIGGER.search(statement)
    assert found is not None, statement
    return _Trigger(name=found[1], table=found[2], statement=statement.strip())


def _wrong_functions(alias: str, expected: Iterable[_Function]) -> Iterable[Difference]:
    wanted = {each.signature: each for each in expected}
    rows = _query(
        alias,
        "SELECT wanted.signature, p.prosrc, p.proconfig FROM unnest(%s::text[]) AS wanted(signature) "
        "LEFT JOIN pg_proc AS p ON p.oid = to_regprocedure(wanted.signature)",
        [list(wanted)],
    )
    for signature, body, settings in rows:
        function = wanted[signature]
        if body is None:
            yield Difference(
                kind="function", name=function.name, problem="missing", mending=(function.statement.strip(),)
            )
        elif body != function.body or not function.settings <= set(settings or ()):
            anew = function.statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1).strip()
            yield Difference(kind="function", name=function.name, problem="different", mending=(anew,))


def _wrong_triggers(alias: str, expected: Iterable[_Trigger]) -> Iterable[Difference]:
    wanted = list(expected)
    rows = _query(
        alias,
        "SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled IN ('O', 'A') FROM pg_trigger AS t "
        "JOIN pg_class AS c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal "
        "AND t.tgrelid IN (SELECT to_regclass(name) FROM unnest(%s::text[]) AS each(name))",
        [sorted({each.table for each in wanted})],
    )
    found: Mapping[tuple[str, str], tuple[str, bool]] = {(row[0], row[1]): (row[2], row[3]) for row in rows}
    for trigger in wanted:
        name = f"{trigger.name} on {trigger.table}"
        definition, is_enabled = found.get((trigger.table, trigger.name), (None, False))
        if definition is None:
            yield Difference(kind="trigger", name=name, problem="missing", mending=(trigger.statement,))
        elif _plain(definition) != _plain(trigger.statement):
            drop = f"DROP TRIGGER {trigger.name} ON {trigger.table}"
            yield Difference(kind="trigger", name=name, problem="different", mending=(drop, trigger.statement))
        elif not is_enabled:
            enable = f"ALTER TABLE {trigger.table} ENABLE TRIGGER {trigger.name}"
            yield Difference(kind="trigger", name=name, problem="disabled", mending=(enable,))


def _plain(definition: str) -> str:
    """Return a trigger's definition without schemas, casts, parentheses and case, which PostgreSQL writes differently."""
    text = _SCHEMA.sub("", definition.lower()).replace("::text", "")
    return " ".join(re.sub(r"[()]", " ", text).split())


def _query(alias: str, statement: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
