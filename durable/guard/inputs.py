"""Notice that a workflow has changed its input, by comparing what the codec writes of it before and after the pass.

In development and in tests only: it encodes the input twice in each pass.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from durable.codec import JsonCodec
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.errors import ContractError, InputChangedError, PayloadError
from durable.core.scope import Scope
from durable.guard.telling import tell_error

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
    """Return `function(context, *args, **kwargs)`, which is to be awaited if `is_async`.

    Tells of an argument that has another value at the end. Values that the default codec does not know are not
    compared.
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
        """Tell of the first argument that is not what it was."""
        for name, value in self._arguments.items():
            before = self._before[name]
            if before is not _NOTHING and _written(value) != before:
                tell_error(self._scope, InputChangedError(name), None, f"input {name}")


def _named(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return the positional arguments by the names of their parameters, or by their numbers."""
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
