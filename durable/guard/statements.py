"""Notice statements of the database between two operations, on every connection of Django's.

The wrapper is on each connection from its first session on, whatever thread makes it. For a statement elsewhere it
costs a look at a context variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from durable.conf import conf
from durable.core.scope import Scope
from durable.guard.modes import lets_reads_through, mode
from durable.guard.places import scope_between_operations
from durable.guard.telling import step_call, tell

_RULE: Final = "W109"
#: Statements that begin and leave transactions: without them code could not come out of `transaction.atomic()`.
_OF_TRANSACTIONS: Final = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT")
_READS: Final = ("SELECT", "WITH", "SHOW", "EXPLAIN", "VALUES", "PRAGMA")
_TABLE: Final = re.compile(r'\b(?:FROM|INTO|UPDATE)\s+(?:ONLY\s+)?["`\[]?([\w.]+)', re.IGNORECASE)


def install() -> None:
    """Watch all connections from now on: those of this thread, and each that opens a session."""
    connection_created.connect(_on_created, dispatch_uid="durable.guard")
    setting_changed.connect(_on_setting_changed, dispatch_uid="durable.guard")
    _watch_all()


def is_guards(wrapper: object) -> bool:
    """Return True for the guard's own wrapper of statements."""
    return wrapper is _notice


def _on_created(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    if mode() != "off":
        _watch(connection)


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in ("DURABLE", "DEBUG"):
        _watch_all()


def _watch_all() -> None:
    if mode() != "off":
        for connection in connections.all(initialized_only=True):
            _watch(connection)


def _watch(connection: BaseDatabaseWrapper) -> None:
    wrappers = connection.execute_wrappers
    if _notice not in wrappers:
        wrappers.insert(0, _notice)  # first: `connection.execute_wrapper` takes the last one off at its end


def _notice(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    scope = scope_between_operations()
    if scope is not None:
        _judge(scope, str(sql), context["connection"].alias)
    return execute(sql, params, many, context)


def _judge(scope: Scope, sql: str, alias: str) -> None:
    verb = sql.lstrip("( \n\t").partition(" ")[0].strip().upper().rstrip(";")
    if verb in _OF_TRANSACTIONS:
        return
    found = _TABLE.search(sql)
    table = found[1] if found is not None else ""
    is_read = verb in _READS
    if is_read and lets_reads_through():
        return
    name = f"{'read' if is_read else 'write'} {table or 'rows'}"
    atomic = "" if is_read or alias != conf.DATABASE else ", atomic=True"
    what = f"{verb or 'a statement'} {f'of {table} ' if table else ''}".strip()
    tell(
        scope,
        _RULE,
        f"{verb} {table}",
        f'the statement {what} on the database "{alias}"',
        f"put it into a function, which returns what the workflow needs, and write {step_call(scope, name, atomic)}",
    )
