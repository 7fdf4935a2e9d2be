"""Plain data from payloads: the input of a redaction hook, and the part of its answer that may be shown.

A hook handles dicts, lists and text. So dataclasses, pydantic models and named tuples become dicts by field, sets and
tuples become lists, and times, decimals and UUIDs become text, at every level, before the hook is called: no `repr` is
made of a value that the hook has not examined. A value of another type, for example bytes, goes to the hook unchanged,
and is hidden afterwards unless the hook has replaced it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from durable.codec.classes import is_named_tuple_type, is_pydantic_type

DEEPEST: Final = 100  # levels of a payload that are shown
#: Shown instead of a value that is not plain data and that the hook returned unchanged.
NOT_LOOKED_INTO: Final = "(hidden: the redaction hook did not replace it)"
#: Shown instead of a field whose class leaves it out of its `repr`.
NOT_SHOWN: Final = "(hidden: its class does not show it)"

_CUT = "…"


def to_plain(value: Any, depth: int = 0) -> Any:
    """Convert `value` to dicts with text keys, lists, text, numbers, True, False and None, as far as possible.

    A dict whose keys are not scalars becomes a list of pairs. A value without a plain form is returned unchanged.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value, depth)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return (int if isinstance(value, int) else float)(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if depth >= DEEPEST:
        return _CUT
    fields = _fields(value)
    if fields is not None:
        return {name: to_plain(each, depth + 1) for name, each in fields.items()}
    if isinstance(value, Mapping):
        return _of_mapping(value, depth)
    if isinstance(value, list | tuple):
        return [to_plain(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(each, depth + 1) for each in value), key=repr)
    return value


def without_originals(shown: Any, given: Any) -> Any:
    """Return the hook's answer for `given` as plain data; a value without a plain form that the hook kept is hidden."""
    originals = {_identity(each) for each in _leaves(given)}

    def is_original(value: Any) -> bool:
        return _identity(value) in originals

    def hide(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hide(each) for key, each in value.items()}
        if isinstance(value, list):
            return [hide(each) for each in value]
        return NOT_LOOKED_INTO if not _is_plain(value) and is_original(value) else value

    return hide(to_plain(shown))


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a pydantic model or a named tuple; None for any other value."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        return {each.name: getattr(value, each.name) if each.repr else NOT_SHOWN for each in fields}
    if is_named_tuple_type(kind):
        return dict(zip(kind._fields, value, strict=False))
    if is_pydantic_type(kind):
        known = {name: field.repr for name, field in kind.model_fields.items()}
        extra = dict.fromkeys(value.model_extra or {}, True)
        return {name: getattr(value, name) if is_shown else NOT_SHOWN for name, is_shown in (known | extra).items()}
    return None


def _of_mapping(value: Mapping[Any, Any], depth: int) -> Any:
    keys = [to_plain(key, depth + 1) for key in value]
    values = [to_plain(each, depth + 1) for each in value.values()]
    if all(_is_scalar(key) for key in keys):
        named = [key if isinstance(key, str) else str(key) for key in keys]
        if len(set(named)) == len(named):
            return dict(zip(named, values, strict=True))
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_plain(value: Any) -> bool:
    return _is_scalar(value) or isinstance(value, dict | list)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values in plain data that have no plain form."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif not _is_plain(value):
        yield value


def _identity(value: Any) -> tuple[type, Any]:
    """Return a key that is equal for equal values of one type, and for all values of a type that is not hashable."""
    try:
        hash(value)
    except Exception:  # noqa: BLE001  # a class of the project may raise anything
        return type(value), None
    return type(value), value
