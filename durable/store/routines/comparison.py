"""On PostgreSQL, check that the database's functions and triggers are those of the migrations, and restore them.

The operations of the applied migrations define the expected ones. A function's text, settings and names of parameters
are compared, and a trigger's definition and whether it is enabled. What an operator may change without changing their
effect (owner, grants, further settings, schema) is not compared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from durable.store.routines.operations import GUARDS, ROUTINES, Function, Routine, Trigger, created_by

logger = logging.getLogger("durable.store")

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


def differences(alias: str) -> list[Difference]:
    """Return the differences of the database `alias`; [] if it is not PostgreSQL or does not have durable's tables.

    Makes two queries besides the one for the migrations. Raises the database's errors.
    """
    if connections[alias].vendor != "postgresql" or not _query(alias, "SELECT to_regclass('durable_run')")[0][0]:
        return []
    routines = expected(alias)
    functions = [each for each in routines if isinstance(each, Function)]
    triggers = [each for each in routines if isinstance(each, Trigger)]
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


def expected(alias: str) -> list[Routine]:
    """Return what the applied migrations have created; nothing if some of them belong to another version."""
    package, _ = MigrationLoader.migrations_module("durable")
    if package is None:  # tables without migrations have the models' constraints, and no guards
        guards = {each.name for each in GUARDS}
        return [each for each in ROUTINES.values() if each.name not in guards]
    applied = {name for app, name in MigrationRecorder(connections[alias]).applied_migrations() if app == "durable"}
    known = [each.name for each in iter_modules(import_module(package).__path__)]
    if not applied <= set(known):
        return []
    migrations = [import_module(f"{package}.{name}").Migration for name in known if name in applied]
    return created_by(operation for each in migrations for operation in each.operations)


def _wrong_functions(alias: str, expected: Iterable[Function]) -> Iterable[Difference]:
    wanted = {each.signature: each for each in expected}
    rows = _query(
        alias,
        "SELECT wanted.signature, p.prosrc, p.proconfig, p.proargnames FROM unnest(%s::text[]) AS wanted(signature) "
        "LEFT JOIN pg_proc AS p ON p.oid = to_regprocedure(wanted.signature)",
        [list(wanted)],
    )
    for signature, body, settings, names in rows:
        function = wanted[signature]
        if body is None:
            yield Difference(kind="function", name=function.name, problem="missing", mending=(function.statement,))
        elif tuple(names or ()) != function.names:  # CREATE OR REPLACE cannot change them
            anew = (function.dropping, function.statement)
            yield Difference(kind="function", name=function.name, problem="different", mending=anew)
        elif body != function.body or not function.settings <= set(settings or ()):
            mending = (function.replacing,)
            yield Difference(kind="function", name=function.name, problem="different", mending=mending)


def _wrong_triggers(alias: str, expected: Iterable[Trigger]) -> Iterable[Difference]:
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
        name, where = trigger.name, (trigger.table, trigger.trigger)
        definition, is_enabled = found.get(where, (None, False))
        if definition is None:
            yield Difference(kind="trigger", name=name, problem="missing", mending=(trigger.statement,))
        elif _plain(definition) != _plain(trigger.statement):
            anew = (trigger.dropping, trigger.statement)
            yield Difference(kind="trigger", name=name, problem="different", mending=anew)
        elif not is_enabled:
            enable = f"ALTER TABLE {trigger.table} ENABLE TRIGGER {trigger.trigger}"
            yield Difference(kind="trigger", name=name, problem="disabled", mending=(enable,))


def _plain(definition: str) -> str:
    """Return a trigger's definition without the parts that PostgreSQL formats differently: schemas, casts, parentheses,
    case.
    """
    text = _SCHEMA.sub("", definition.lower()).replace("::text", "")
    return " ".join(re.sub(r"[()]", " ", text).split())


def _query(alias: str, statement: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
