"""Types of messages' bodies: which bodies fit a type, the value made from JSON, and the type's JSON schema.

Owns the rules by which JSON becomes a value of a type: the types that the codec records, and unions, literals and
collections of them. The codec itself needs no types, since its text names the classes. A body that a person, a shell or
another system sends is plain JSON and names none.

A value that already is of the type stays as it is. Faults name the place in the body and what was found there, never
the value: it may be a secret, and errors are shown to more people than payloads.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, NoReturn, Union
from uuid import UUID

from durable.core.duration import parse_length
from durable.core.words import safe


class Fault(NamedTuple):
    """What is wrong with a body. `at` is the place in it, such as `items/0/sku`; "" for the body itself."""

    at: str
    problem: str

    def __str__(self) -> str:
        return f"{self.at}: {self.problem}" if self.at else self.problem


class Misfit(Exception):  # the errors that users meet are made of it
    """A value does not fit a type; `faults` say where and why."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))


def fit(value: Any, hint: Any) -> Any:
    """Convert `value` to the type `hint` and return it. Raises Misfit."""
    faults: list[Fault] = []
    try:
        fitted = _fit(value, hint, "", faults)
    except RecursionError:
        faults = [Fault("", "is nested too deeply")]
    if faults:
        raise Misfit(_told(faults))
    return fitted


def _told(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first faults, shortened and without unprintable characters.

    They are recorded, and names in them come from the sender.
    """
    told = [Fault(*(safe(part)[:_LONGEST] for part in each)) for each in faults[:_MOST]]
    return told if len(faults) <= _MOST else [*told, Fault("", f"and {len(faults) - _MOST} more")]


def check_type(hint: Any, what: str) -> None:
    """Raise TypeError if a body cannot have the type `hint`. `what` names the type in the message."""
    if (stranger := hint if isinstance(hint, str) else _stranger(hint, ())) is not None:
        raise TypeError(
            f"{what} is declared as {_name(hint)}, and {_name(stranger)} is not a type that a message can have: use a dataclass, "
            "a TypedDict, a named tuple, a pydantic model, an Enum, str, int, float, bool, None, Decimal, UUID, date, datetime, "
            "time, timedelta, or a list, dict, tuple, set or union of them; object for anything"
        )


# -- what a hint is

_MOST: Final = 20  # faults of one body
_LONGEST: Final = 300  # characters of a place and of a problem

_MAPPINGS: Final = (dict, Mapping, MutableMapping)
_LISTS: Final = (list, Sequence, MutableSequence, Collection, Iterable)
_SETS: Final = (set, Set, MutableSet)
_COLLECTIONS: Final = (*_MAPPINGS, *_LISTS, *_SETS, tuple, frozenset)


@lru_cache(maxsize=1024)
def _plain(hint: Any) -> Any:
    """Strip from the hint what does not change its values: Annotated, NewType and type aliases."""
    while True:
        if hint is None:
            return types.NoneType
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # of Python 3.12
            hint = hint.__value__
        else:
            return hint


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _is_any(hint: Any) -> bool:
    return hint is Any or hint is object or isinstance(hint, str | typing.ForwardRef | typing.TypeVar)


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _stranger(hint: Any, seen: tuple[Any, ...]) -> Any:
    """Return the first part of the hint that is not a valid body type, or None."""
    hint = _plain(hint)
    if _is_any(hint) or hint in seen:
        return None
    if typing.get_origin(hint) is Literal:
        return None
    kind = typing.get_origin(hint) or hint
    if _is_union(hint) or kind in _COLLECTIONS:
        parts = (each for each in typing.get_args(hint) if each is not Ellipsis)
        return next((found for each in parts if (found := _stranger(each, seen)) is not None), None)
    if not isinstance(kind, type):
        return hint
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind) or _is_named_tuple(kind):
        fields = _hints(kind).values()
        return next((found for each in fields if (found := _stranger(each, (*seen, hint))) is not None), None)
    is_known = kind in _SCALARS or issubclass(kind, Enum) or _is_pydantic(kind)
    return None if is_known else hint


@lru_cache(maxsize=1024)
def _hints(kind: type, *, is_whole: bool = False) -> dict[str, Any]:
    """Return the types of a class's fields, or {} if one cannot be resolved; then every value fits."""
    try:
        return typing.get_type_hints(kind, include_extras=is_whole)
    except Exception:  # an annotation is code, and may raise anything
        return {}


def _fields(kind: type) -> dict[str, bool]:
    """Return the fields of a class by name, with whether each is required."""
    if typing.is_typeddict(kind):
        typed: Any = kind
        written = _hints(kind, is_whole=True)  # text, where annotations are postponed: the class has not read it
        return {
            name: name in typed.__required_keys__ and typing.get_origin(written.get(name)) is not typing.NotRequired
            for name in typed.__annotations__
        }
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            each.name: each.default is missing and each.default_factory is missing
            for each in dataclasses.fields(kind)
            if each.init
        }
    named: Any = kind
    return {name: name not in named._field_defaults for name in named._fields}


# -- values


def _fit(value: Any, hint: Any, at: str, faults: list[Fault]) -> Any:
    hint = _plain(hint)
    if _is_any(hint):
        return value
    if _is_union(hint):
        return _fit_union(value, hint, at, faults)
    if typing.get_origin(hint) is Literal:
        return _one_of(value, typing.get_args(hint), lambda each: each, at, faults)
    kind = typing.get_origin(hint) or hint
    if kind in _SCALARS:
        return _fit_scalar(value, kind, at, faults)
    if kind in _COLLECTIONS:
        return _fit_collection(value, kind, typing.get_args(hint), at, faults)
    if not typing.is_typeddict(kind) and isinstance(value, kind):
        return value
    if _is_pydantic(kind):
        return _validated(kind, value, at, faults)
    if issubclass(kind, Enum):
        return _one_of(value, list(kind), lambda each: each.value, at, faults)
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind) or _is_named_tuple(kind):
        return _fit_fields(value, kind, at, faults)
    return _misfit(at, faults, _name(kind), value)


def _misfit(at: str, faults: list[Fault], expected: str, value: Any) -> None:
    faults.append(Fault(at, f"expected {expected}, found {_found(value)}"))


def _fit_union(value: Any, hint: Any, at: str, faults: list[Fault]) -> Any:
    """Return the value as the first member of a union that it fits."""
    members = [_plain(each) for each in typing.get_args(hint)]
    closest: list[Fault] | None = None
    for each in members:
        of_member: list[Fault] = []
        fitted = _fit(value, each, at, of_member)
        if not of_member:
            return fitted
        is_inside = all(fault.at != at for fault in of_member)  # it is an object, as the member is
        if is_inside and (closest is None or len(of_member) < len(closest)):
            closest = of_member
    if closest is None:
        return _misfit(at, faults, " or ".join(map(_expected, members)), value)
    faults += closest
    return None


def _one_of(value: Any, members: Collection[Any], text: Callable[[Any], Any], at: str, faults: list[Fault]) -> Any:
    for each in members:
        if text(each) == value and type(text(each)) is type(value):
            return each
    faults.append(Fault(at, f"expected one of {', '.join(repr(text(each)) for each in members)}"))
    return None


def _fit_collection(value: Any, kind: Any, args: tuple[Any, ...], at: str, faults: list[Fault]) -> Any:
    if kind in _MAPPINGS:
        if not isinstance(value, Mapping):
            return _misfit(at, faults, "an object", value)
        of_key, of_value = args or (Any, Any)
        return {
            _fit_key(key, of_key, at, faults): _fit(each, of_value, _within(at, key), faults)
            for key, each in value.items()
        }
    if not isinstance(value, list | tuple | set | frozenset):
        return _misfit(at, faults, "a list", value)
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(value):
            faults.append(Fault(at, f"expected a list of {len(args)}, found one of {len(value)}"))
            return None
        each_type: Iterable[Any] = args
    else:
        each_type = [args[0] if args else Any] * len(value)
    fitted = [
        _fit(each, of, _within(at, number), faults)
        for number, (each, of) in enumerate(zip(value, each_type, strict=True))
    ]
    try:
        return tuple(fitted) if kind is tuple else _kind_made(kind)(fitted)
    except TypeError:  # a set of what cannot be in one
        return None if faults else _misfit(at, faults, "a list of values that a set can have", value)


def _kind_made(kind: Any) -> Callable[[list[Any]], Any]:
    return set if kind in _SETS else frozenset if kind is frozenset else list


def _fit_key(key: Any, hint: Any, at: str, faults: list[Fault]) -> Any:
    """Fit a key of an object, which is text in JSON whatever it means."""
    hint = _plain(hint)
    if hint is int and isinstance(key, str) and key.removeprefix("-").isdecimal():
        return int(key)
    return _fit(key, hint, _within(at, key), faults)


def _fit_fields(value: Any, kind: Any, at: str, faults: list[Fault]) -> Any:
    """Build a dataclass, named tuple or TypedDict from a JSON object; a named tuple also from a list."""
    fields, hints, known = _fields(kind), _hints(kind), len(faults)
    if isinstance(value, list | tuple) and not dataclasses.is_dataclass(kind) and not typing.is_typeddict(kind):
        if len(value) > len(fields):
            faults.append(Fault(at, f"expected a list of at most {len(fields)}, found one of {len(value)}"))
            return None
        value = dict(zip(fields, value, strict=False))
    if not isinstance(value, Mapping):
        return _misfit(at, faults, "an object", value)
    for name, is_required in fields.items():
        if is_required and name not in value:
            faults.append(Fault(_within(at, name), "is missing"))
    fitted = {}
    for name, each in value.items():
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            question = f', did you mean "{near[0]}"?' if near else f"; it has {', '.join(fields) or 'none'}"
            faults.append(Fault(_within(at, name), f"is not a field of {kind.__name__}{question}"))
        else:
            fitted[name] = _fit(each, hints.get(name, Any), _within(at, name), faults)
    if typing.is_typeddict(kind):
        return fitted
    return None if len(faults) > known else _built(kind, fitted, at, faults)


def _built(kind: Any, fields: dict[str, Any], at: str, faults: list[Fault]) -> Any:
    try:
        return kind(**fields)
    except Exception as error:  # of a `__post_init__` that checks its fields
        faults.append(Fault(at, str(error) or type(error).__name__))
        return None


def _validated(kind: Any, value: Any, at: str, faults: list[Fault]) -> Any:
    try:
        return kind.model_validate(value)
    except Exception as error:  # pydantic's own error, or one of a validator
        found = error.errors(include_input=False) if hasattr(error, "errors") else None
        if not found:
            faults.append(Fault(at, str(error) or type(error).__name__))
        faults += [Fault(_within(at, *each["loc"]), str(each["msg"])) for each in found or ()]
        return None


def _within(at: str, *steps: object) -> str:
    return "/".join([*([at] if at else []), *(str(each)[:100] for each in steps)])


# -- scalars


def _fit_scalar(value: Any, kind: type, at: str, faults: list[Fault]) -> Any:
    expected, read = _SCALARS[kind]
    if type(value) is kind:
        return value
    if isinstance(value, kind) and not isinstance(value, bool) and not (kind is date and isinstance(value, datetime)):
        return value  # of a subclass
    try:
        return read(value)
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        return _misfit(at, faults, expected, value)


def _refused(value: Any) -> NoReturn:
    raise TypeError(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else _refused(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        _refused(value)
    if isinstance(value, float) and not math.isfinite(value):
        _refused(value)
    return Decimal(str(value))


def _of_text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: read(value) if isinstance(value, str) else _refused(value)


def _length(value: Any) -> timedelta:
    return _refused(value) if isinstance(value, bool) else parse_length(value)


#: Each type with the words for it and how it is read from JSON.
_SCALARS: Final[Mapping[type, tuple[str, Callable[[Any], Any]]]] = {
    types.NoneType: ("null", _refused),
    bool: ("true or false", _refused),
    int: ("a whole number", _refused),
    float: ("a number", _number),
    complex: ("a complex number", _refused),
    str: ("text", _refused),
    bytes: ("bytes", _refused),
    Decimal: ("a decimal number", _decimal),
    UUID: ("a UUID", _of_text(UUID)),
    datetime: ('a moment, such as "2026-01-31T12:00:00+00:00"', _of_text(datetime.fromisoformat)),
    date: ('a date, such as "2026-01-31"', _of_text(date.fromisoformat)),
    time: ('a time, such as "12:30:00"', _of_text(time.fromisoformat)),
    timedelta: ('a length of time, such as "3 hours" or a number of seconds', _length),
}

_FOUND: Final[Mapping[type, str]] = {
    types.NoneType: "null",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def _found(value: Any) -> str:
    return _FOUND.get(type(value)) or f"a {type(value).__name__}"


def _expected(hint: Any) -> str:
    """Return the words that describe the expected type in an error."""
    kind = typing.get_origin(hint) or hint
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    if kind in _COLLECTIONS:
        return "an object" if kind in _MAPPINGS else "a list"
    return _name(hint)


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else repr(hint)


# -- the schema

_FORMATS: Final[Mapping[type, dict[str, Any]]] = {
    types.NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Decimal: {"type": ["string", "number"], "format": "decimal"},
    UUID: {"type": "string", "format": "uuid"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": ["string", "number"], "format": "length-of-time"},
}


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; `{}` if every value fits. A recursive class is named, not repeated."""
    return _schema(hint, ())


def _schema(hint: Any, around: tuple[Any, ...]) -> dict[str, Any]:
    hint = _plain(hint)
    kind = typing.get_origin(hint) or hint
    if _is_any(hint):
        return {}
    if _is_union(hint):
        return {"anyOf": [_schema(each, around) for each in typing.get_args(hint)]}
    if kind is Literal:
        return {"enum": list(typing.get_args(hint))}
    if kind in _SCALARS:
        return dict(_FORMATS.get(kind, {}))
    if kind in _COLLECTIONS:
        return _collection_schema(kind, typing.get_args(hint), around)
    if _is_pydantic(kind):
        return dict(kind.model_json_schema())
    if issubclass(kind, Enum):
        return {"title": kind.__name__, "enum": [each.value for each in kind if type(each.value) in _FOUND]}
    if kind in around:
        return {"type": "object", "title": kind.__name__}
    fields, hints = _fields(kind), _hints(kind)
    return {
        "type": "object",
        "title": kind.__name__,
        "properties": {name: _schema(hints.get(name, Any), (*around, kind)) for name in fields},
        "required": [name for name, is_required in fields.items() if is_required],
        "additionalProperties": False,
    }


def _collection_schema(kind: Any, args: tuple[Any, ...], around: tuple[Any, ...]) -> dict[str, Any]:
    if kind in _MAPPINGS:
        return {"type": "object", "additionalProperties": _schema(args[1], around) if args else {}}
    if kind is tuple and args and args[-1] is not Ellipsis:
        return {
            "type": "array",
            "prefixItems": [_schema(each, around) for each in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    return {"type": "array", "items": _schema(args[0], around) if args else {}}


_EXAMPLES: Final[Mapping[str, Any]] = {
    "uuid": "00000000-0000-0000-0000-000000000000",
    "date-time": "2026-01-31T12:00:00+00:00",
    "date": "2026-01-31",
    "time": "12:30:00",
    "decimal": "9.99",
    "length-of-time": "3 hours",
    "string": "",
    "integer": 0,
    "number": 0.0,
    "boolean": True,
}


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return an example value for a schema: the required fields, each with the simplest value."""
    return _example(schema, schema.get("$defs", {}), 0)


def _example(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int) -> Any:
    if "$ref" in schema and depth < 20:
        return _example(named.get(schema["$ref"].rpartition("/")[2], {}), named, depth + 1)
    for word in ("default", "const"):
        if word in schema:
            return schema[word]
    if schema.get("enum"):
        return schema["enum"][0]
    for choices in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        if choices and depth < 20:
            return _example(choices[0], named, depth + 1)
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: _example(fields.get(name, {}), named, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return [_example(each, named, depth + 1) for each in schema.get("prefixItems", ())]
    first = kind[0] if isinstance(kind, list) else kind
    return _EXAMPLES.get(str(schema.get("format")), _EXAMPLES.get(str(first)))
