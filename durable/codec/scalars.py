"""Values without parts: the form of each type in the text, its writer beside its reader.

A writer gets a value of exactly its type. A reader gets any value that follows its tag: it may raise any exception for
a value that its writer cannot have written, and must build nothing but its type.

Readers of dates keep a reference to the method of the real class, because a clock-freezing test tool may replace
`datetime` by a fake class while it decodes.

The reason why a value cannot be recorded, and what to pass instead.

Owns wording only. Examines the type of a value and never the value: evaluating a lazy object or the repr of a queryset
would run a query, and a value in a message may be a secret. Imports neither Django nor pydantic.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import datetime as dt
import decimal
import functools
import io
import math
import os
import re
import sys
import types
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, MappingView, Sequence, Set
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from durable.codec.classes import PREFIX, SURROGATE_PAIR, Refused, loaded

_FETCH = "and fetch it again in the step that needs it"

# Types of Django, looked up only if Django is loaded: (module, class, what it is, what to pass instead).
_DJANGO: Final = (
    (
        "django.utils.functional",
        "LazyObject",
        "a lazy object of Django",
        f"pass the primary key of its object, as in `request.user.pk`, {_FETCH}",
    ),
    ("django.utils.functional", "Promise", "a lazy string of Django", "pass `str(...)` of it"),
    ("django.db.models.query", "QuerySet", "a queryset", 'pass its rows: `list(qs.values_list("pk", flat=True))`'),
    ("django.db.models.query", "RawQuerySet", "a raw queryset", "pass its rows: `[row.pk for row in qs]`"),
    (
        "django.db.models.manager",
        "BaseManager",
        "a manager",
        'pass rows: `list(manager.values_list("pk", flat=True))`',
    ),
    ("django.core.files.base", "File", "a file", "save it to a storage and pass its name there: `file.name`"),
    ("django.http.request", "HttpRequest", "a request", "pass the values that the workflow needs from it"),
    ("django.http.response", "HttpResponseBase", "a response", "pass the values that the workflow needs from it"),
)

_PLAIN: Final[tuple[tuple[type | tuple[type, ...], str, str], ...]] = (
    (BaseException, "an exception", "pass `str(error)`, or raise it and let the engine record the failure"),
    (type, "a class", "pass its importable name as text"),
    (
        (
            types.FunctionType,
            types.MethodType,
            types.BuiltinFunctionType,
            types.MethodWrapperType,
            functools.partial,
        ),
        "a function",
        "pass the data that it works on, and call it in a step",
    ),
    (types.ModuleType, "a module", "pass its name as text"),
    (Coroutine, "a coroutine", "await it and pass the result"),
    (asyncio.Future, "a task or future", "await it and pass the result"),
    (AsyncIterator, "an asynchronous iterator", "pass a list: `[item async for item in ...]`"),
    (io.IOBase, "an open file", "pass its path or its content (`file.read()`)"),
    (Iterator, "a generator or iterator", "pass a list: `list(...)`"),
    (os.PathLike, "a path", "pass `str(path)`"),
    (re.Pattern, "a compiled pattern", "pass `pattern.pattern`"),
    ((bytearray, memoryview), "a mutable buffer", "pass `bytes(...)` of it"),
    (range, "a range", "pass `list(...)` of it, or its bounds"),
    (dt.tzinfo, "a time zone", "pass its name as text"),
    (str, "a subclass of str", "pass `str(...)` of it"),
    (int, "a subclass of int", "pass `int(...)` of it"),
    (float, "a subclass of float", "pass `float(...)` of it"),
    (complex, "a subclass of complex", "pass `complex(...)` of it"),
    (bytes, "a subclass of bytes", "pass `bytes(...)` of it"),
    (dt.datetime, "a subclass of datetime", "pass `datetime.fromisoformat(value.isoformat())`"),
    (dt.date, "a subclass of date", "pass `date.fromisoformat(value.isoformat())`"),
    (dt.time, "a subclass of time", "pass `time.fromisoformat(value.isoformat())`"),
    (dt.timedelta, "a subclass of timedelta", "pass `timedelta(seconds=value.total_seconds())`"),
    (decimal.Decimal, "a subclass of Decimal", "pass `Decimal(...)` of it"),
    (uuid.UUID, "a subclass of UUID", "pass `UUID(int=value.int)`"),
    (collections.defaultdict, "a defaultdict", "pass `dict(...)` of it"),
    (collections.OrderedDict, "an OrderedDict", "pass `dict(...)` of it: a dict keeps its order too"),
    (MappingView, "a view of a mapping", "pass `list(...)` of it"),
    (Mapping, "a mapping that is not a plain dict", "pass `dict(...)` of it"),
    (tuple, "a subclass of tuple without named fields", "pass `tuple(...)` of it"),
    (Set, "a set that is neither a set nor a frozenset", "pass `set(...)` of it"),
    (Sequence, "a sequence that is neither a list nor a tuple", "pass `list(...)` of it"),
)


def refusal(value: object) -> tuple[str, str]:
    """Say what the unsupported `value` is, and what to pass instead."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _is(kind, loaded("django.db.models.base", "Model")):
        variable = kind.__name__.lower()
        return (
            f"it is an instance of the model {name}, whose row may change or go before the run comes back to it",
            f"pass its primary key (`{variable}.pk`) {_FETCH}",
        )
    for module, class_name, noun, advice in _DJANGO:
        if _is(kind, loaded(module, class_name)):
            return f"it is {noun} ({name})", advice
    for base, noun, advice in _PLAIN:
        if issubclass(kind, base):
            return f"it is {noun} ({name})", advice
    if callable(getattr(kind, "tolist", None)):
        return f"it is an array or scalar ({name})", "pass `value.tolist()`"
    if _is_installed(kind):
        advice = "pass what your code needs of it, such as `str(value)`: it is of an installed package"
    else:
        advice = "pass its fields in a dict, or make it a dataclass at the top level of a module"
    return f"it is an object of the class {name}, which the codec does not know", advice


def _is_installed(kind: type) -> bool:
    """Return True if the class belongs to an installed package, so that the user cannot change it."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _is(kind: type, base: Any) -> bool:
    # The type and not isinstance(): a proxy answers isinstance() by evaluating its object.
    return isinstance(base, type) and issubclass(kind, base)


# Fewer digits than the lowest limit that Python can be given (640), so that any process can read this text.
_PLAIN_INT_BITS: Final = 2_048

_MINUTE: Final = 60_000_000
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_ODD_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _same(value: Any) -> Any:
    return value


def _text(node: object) -> str:
    if type(node) is not str:
        raise Refused(f"it is {type(node).__name__} where text was recorded")
    return node


# str, int, float, complex, bytes ---------------------------------------------------------------------------------


def has_surrogate_pair(value: str) -> bool:
    """Return whether JSON would join two lone surrogates of `value` into one character."""
    return not value.isascii() and SURROGATE_PAIR.search(value) is not None


def write_str(value: str) -> Any:
    if not has_surrogate_pair(value):
        return value
    return {PREFIX + "str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}


def _read_str(node: object) -> str:
    return base64.b64decode(_text(node), validate=True).decode("utf-8", "surrogatepass")


def _read_complex(node: Any) -> complex:
    real, imaginary = node
    return complex(float(_text(real)), float(_text(imaginary)))


# Moments ---------------------------------------------------------------------------------------------------------
# ISO text where that says it all; else [naive ISO text, zone, fold], the zone being the key of a ZoneInfo or
# [offset in microseconds, name] or null.

_read_iso_date: Final = dt.date.fromisoformat


def write_datetime(value: dt.datetime) -> Any:
    return {PREFIX + "datetime": _moment(value)}


def _moment(value: dt.datetime | dt.time) -> Any:
    zone = value.tzinfo
    if not value.fold and (zone is None or zone is dt.UTC):
        return value.isoformat()
    form = _zone(zone)
    # Whole minutes only: fromisoformat() takes an offset of less than a second for UTC.
    if not value.fold and type(form) is list and form[1] is None and form[0] % _MINUTE == 0:
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), form, value.fold]


def _zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        unnamed = dt.timezone(offset).tzname(None)
        return [offset // _MICROSECOND, None if name == unnamed else write_str(name)]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise Refused(
        f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}, which the codec does not know",
        "use `zoneinfo.ZoneInfo` or `datetime.timezone`, or pass `value.astimezone(datetime.UTC)`",
    )


def _reader_of(from_iso: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the reader of moments whose class reads ISO text in this way."""

    def read(node: Any) -> Any:
        if type(node) is str:
            return from_iso(node)
        text, zone, fold = node
        return from_iso(text).replace(tzinfo=_read_zone(zone), fold=fold)

    return read


def _read_zone(node: Any) -> dt.tzinfo | None:
    if node is None:
        return None
    if type(node) is str:
        try:
            return ZoneInfo(node)
        except Exception as error:
            raise Refused(
                f"this machine has no time zone {ascii(node)[:80]}", "install the tzdata package, or update it"
            ) from error
    microseconds, name = node
    offset = microseconds * _MICROSECOND
    if name is None:
        return dt.timezone(offset)
    return dt.timezone(offset, name if type(name) is str else _read_str(name[PREFIX + "str"]))


def write_date(value: dt.date) -> Any:
    return {PREFIX + "date": value.isoformat()}


def _read_timedelta(node: Any) -> dt.timedelta:
    days, seconds, microseconds = node
    return dt.timedelta(days=days, seconds=seconds, microseconds=microseconds)


WRITERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: write_str,
    bool: _same,
    type(None): _same,
    int: lambda value: value if value.bit_length() <= _PLAIN_INT_BITS else {PREFIX + "int": hex(value)},
    float: lambda value: value if math.isfinite(value) else {PREFIX + "float": str(value)},
    complex: lambda value: {PREFIX + "complex": [repr(value.real), repr(value.imag)]},
    bytes: lambda value: {PREFIX + "bytes": base64.b64encode(value).decode("ascii")},
    Decimal: lambda value: {PREFIX + "decimal": str(value)},
    UUID: lambda value: {PREFIX + "uuid": str(value)},
    dt.datetime: write_datetime,
    dt.date: write_date,
    dt.time: lambda value: {PREFIX + "time": _moment(value)},
    dt.timedelta: lambda value: {PREFIX + "timedelta": [value.days, value.seconds, value.microseconds]},
}

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    PREFIX + "str": _read_str,
    PREFIX + "int": lambda node: int(_text(node), 16),
    PREFIX + "float": lambda node: _ODD_FLOATS[_text(node)],
    PREFIX + "complex": _read_complex,
    PREFIX + "bytes": lambda node: base64.b64decode(_text(node), validate=True),
    PREFIX + "decimal": lambda node: Decimal(_text(node)),
    PREFIX + "uuid": lambda node: UUID(_text(node)),
    PREFIX + "datetime": _reader_of(dt.datetime.fromisoformat),
    PREFIX + "date": lambda node: _read_iso_date(_text(node)),
    PREFIX + "time": _reader_of(dt.time.fromisoformat),
    PREFIX + "timedelta": _read_timedelta,
}
