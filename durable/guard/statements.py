"""Notice statements of the database between two operations, on every connection of Django's.

Each connection gets the wrapper at its first session, in whatever thread. For statements elsewhere it only reads a
context variable.

Also notice that a workflow has changed its input, by comparing the encoded input before and after the pass; only in
development and in tests, because it encodes the input twice in each pass.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from durable.codec import JsonCodec
from durable.conf import conf
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.errors import ContractError, InputChangedError, PayloadError
from durable.core.scope import Scope
from durable.guard.events import lets_reads_through, mode, scope_between_operations, step_call, tell, tell_error

_CODEC: Final = JsonCodec(max_bytes=sys.maxsize)
_NOTHING: Final = object()


def with_unchanged_input(
    scope: Scope,
    function: Callable[..., Any],
    context: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    is_async: bool,
) -> Any:
    """Wrap `function(context, *args, **kwargs)`; await the result if `is_async`.

    Reports an argument that has another value at the end. Values that the default codec does not know are not compared.
    """
    given = _Input(scope, function, args, kwargs)
    try:
        value = function(context, *args, **kwargs)
    except (ContractError, LeaseLost, PassAborted):
        raise
    except BaseException:
        given.check()
        raise
    if is_async and inspect.isawaitable(value):
        return _awaited(given, value)
    given.check()
    return value


async def _awaited(given: _Input, value: Awaitable[Any]) -> Any:
    try:
        returned = await value
    except (ContractError, LeaseLost, PassAborted, GeneratorExit):
        raise
    except BaseException:
        given.check()
        raise
    given.check()
    return returned


class _Input:
    """The arguments of one pass."""

    __slots__ = ("_arguments", "_before", "_scope")

    def __init__(
        self, scope: Scope, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._scope = scope
        self._arguments = {**_named(function, args), **kwargs}
        self._before = {name: _written(value) for name, value in self._arguments.items()}

    def check(self) -> None:
        """Report the first argument that has changed."""
        for name, value in self._arguments.items():
            before = self._before[name]
            if before is not _NOTHING and _written(value) != before:
                tell_error(self._scope, InputChangedError(name), None, f"input {name}")


def _named(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return the positional arguments by parameter name, or else by number."""
    try:
        parameters = [each.name for each in inspect.signature(function).parameters.values() if each.kind <= 1][1:]
    except (TypeError, ValueError):
        parameters = []
    names = [*parameters, *(f"argument {number}" for number in range(len(parameters) + 1, len(args) + 1))]
    return dict(zip(names, args, strict=False))


def _written(value: Any) -> object:
    if isinstance(value, str | int | float | bytes | None):
        return _NOTHING  # cannot change
    try:
        return _CODEC.encode(value)
    except PayloadError:
        return _NOTHING


_RULE: Final = "W109"
#: Statements that begin and leave transactions: without them code could not come out of `transaction.atomic()`.
_OF_TRANSACTIONS: Final = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT")
_READS: Final = ("SELECT", "WITH", "SHOW", "EXPLAIN", "VALUES", "PRAGMA")
_TABLE: Final = re.compile(r'\b(?:FROM|INTO|UPDATE)\s+(?:ONLY\s+)?["`\[]?([\w.]+)', re.IGNORECASE)


def install() -> None:
    """Watch all connections from now on: those of this thread, and any that opens a session."""
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
        wrappers.insert(0, _notice)  # first: at its end, `connection.execute_wrapper` removes the last one


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
