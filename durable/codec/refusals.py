"""The reason why a value cannot be recorded, and what to pass instead.

Owns wording only. Examines the type of a value and never the value: evaluating a lazy object or the repr of a queryset
would run a query, and a value in a message may be a secret. Imports neither Django nor pydantic.
"""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import decimal
import functools
import io
import os
import re
import sys
import types
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, MappingView, Sequence, Set
from typing import Any, Final

from durable.codec.classes import loaded

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
    """Return what the unsupported `value` is, and what to pass instead."""
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
    """Return True if the class is one of an installed package, which its user cannot change."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _is(kind: type, base: Any) -> bool:
    # The type and not isinstance(): a proxy answers isinstance() by evaluating its object.
    return isinstance(base, type) and issubclass(kind, base)
